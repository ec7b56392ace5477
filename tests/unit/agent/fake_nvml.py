"""A driver that does what a test says, with the names, errors and constants of the real binding, and what it wraps its
calls into.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

KIB = 1024


@dataclass
class Card:
    """One GPU. `links`: minor at the far end of each NVLink, `switch`, or None for one that is down.

    `without`: calls it does not support.
    """

    uuid: str
    minor: int
    links: list[Any] = field(default_factory=list)
    name: str = "NVIDIA H100 80GB HBM3"
    power: int = 350_000
    memory: tuple[int, int] = (80 * 2**30, 2**30)
    nvlink: int = 0
    pcie: int = 0
    remap_failed: int = 0
    remap_pending: int = 0
    recovery: int = 0
    """What the driver wants done, by nvmlDeviceGpuRecoveryAction_t."""
    ecc: tuple[int, int] = (0, 0)
    errors: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Replay, recovery and CRC errors of a link."""
    old: bool = False
    """Fields by link number only, and no state among them, as before Hopper."""
    processes: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    """Processes that the list of graphics has."""
    mig: list[str | None] = field(default_factory=list)
    """Profiles of its MIG devices, None where a place is free; none: the mode is off."""
    without: set[str] = field(default_factory=set)
    lost: bool = False
    fails: int = 0
    """The error of every call of this card; 0: none."""

    @property
    def bus(self) -> str:
        return f"00000000:{0x10 + self.minor:02X}:00.0"


class FakeNvml:
    """Stands in for the module `pynvml`."""

    def __init__(self, *cards: Card) -> None:
        self.cards = list(cards)
        self.loaded = True
        self.initialised = 0
        self.events: list[SimpleNamespace] = []
        self.listening: set[str] = set()
        self.event_sets = 0
        self.names: dict[int, bytes] = {}
        """What processes are called; the others python3, those above 9000 nothing."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        if name.startswith("nvml") and callable(real):
            raise AssertionError(f"{name} is not faked")
        return real

    # the driver

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        if not self.loaded:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.initialised += 1

    def nvmlShutdown(self) -> None:  # noqa: N802 - NVML's name
        self.event_sets = 0

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's name
        self._driver()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802 - NVML's name
        return self._card(self.cards[index], "handle")

    # facts

    def nvmlDeviceGetUUID(self, card: Card) -> str:  # noqa: N802 - NVML's name
        return self._card(card, "uuid").uuid

    def nvmlDeviceGetMinorNumber(self, card: Card) -> int:  # noqa: N802 - NVML's name
        return self._card(card, "minor").minor

    def nvmlDeviceGetName(self, card: Card) -> str:  # noqa: N802 - NVML's name
        return self._card(card, "name").name

    def nvmlDeviceGetMemoryInfo(self, card: Card, _version: int | None = None) -> Any:  # noqa: N802 - NVML's name
        total, used = self._card(card, "memory").memory
        return SimpleNamespace(total=total, used=used)

    def nvmlDeviceGetPciInfo(self, card: Card) -> Any:  # noqa: N802 - NVML's name
        return SimpleNamespace(busId=self._card(card, "pci").bus)

    def nvmlDeviceGetGpuFabricInfoV(self, card: Card, _info: object) -> None:  # noqa: N802 - NVML's name
        self._card(card, "fabric")
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetNvLinkState(self, card: Card, link: int) -> int:  # noqa: N802 - NVML's name
        if link >= len(self._card(card, "nvlink").links):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(card.links[link] is not None)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card: Card, link: int) -> int:  # noqa: N802 - NVML's name
        if card.links[link] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        switch = card.links[link] == "switch"
        return int(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: Card, link: int) -> Any:  # noqa: N802 - NVML's name
        if card.links[link] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(busId=f"00000000:{0x10 + card.links[link]:02X}:00.0".encode())

    # figures

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:  # noqa: N802 - NVML's name
        self._card(card, "utilisation")
        return SimpleNamespace(gpu=40 + card.minor)

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:  # noqa: N802 - NVML's name
        return self._card(card, "power").power

    def nvmlDeviceGetTemperature(self, card: Card, _: int) -> int:  # noqa: N802 - NVML's name
        self._card(card, "temperature")
        return 55

    def nvmlDeviceGetFieldValues(self, card: Card, asked: list[Any]) -> list[Any]:  # noqa: N802 - NVML's name
        self._card(card, "fields")
        known = {
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX: card.nvlink,
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX: 2 * card.nvlink,
            pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: card.pcie,
            pynvml.NVML_FI_DEV_REMAPPED_FAILURE: card.remap_failed,
            pynvml.NVML_FI_DEV_REMAPPED_PENDING: card.remap_pending,
            pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: card.recovery,
            pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT: len(card.links),
            pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: card.ecc[0],
            pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: card.ecc[1],
        }
        answers = []
        for number, scope in asked:
            if scope != 0xFFFFFFFF:
                known |= self._of_link(card, scope)
            supported = number in known and str(number) not in card.without
            answers.append(
                SimpleNamespace(
                    nvmlReturn=pynvml.NVML_SUCCESS if supported else pynvml.NVML_ERROR_NOT_SUPPORTED,
                    valueType=pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
                    value=SimpleNamespace(ullVal=known.get(number, 0)),
                )
            )
        return answers

    def _of_link(self, card: Card, link: int) -> dict[int, int]:
        if card.old:
            return {
                getattr(pynvml, f"NVML_FI_DEV_NVLINK_{name}_ERROR_COUNT_L{number}"): errors[place]
                for number, errors in card.errors.items()
                for place, name in enumerate(("REPLAY", "RECOVERY", "CRC_FLIT"))
            }
        if link >= len(card.links):
            return {}
        replay, recovery, crc = card.errors.get(link, (0, 0, 0))
        return {
            pynvml.NVML_FI_DEV_NVLINK_GET_STATE: int(card.links[link] is not None),
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY: replay,
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY: recovery,
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC: crc,
        }

    def nvmlDeviceGetClockInfo(self, card: Card, kind: int) -> int:  # noqa: N802 - NVML's name
        self._card(card, "clocks")
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}[kind]

    # processes and parts

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:  # noqa: N802 - NVML's name
        found: list[Any] = self._processes(card)
        return found

    @pynvml.throwOnVersionMismatch
    def _processes(self, card: Card) -> list[Any]:
        found = self._card(card, "processes").processes
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in found.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: Card) -> list[Any]:  # noqa: N802 - NVML's name
        listed = self._card(card, "processes").graphics
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in listed.items()]

    @pynvml.convertStrBytes
    def nvmlSystemGetProcessName(self, pid: int) -> bytes:  # noqa: N802 - NVML's name
        if pid > 9000 and pid not in self.names:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.names.get(pid, b"/usr/bin/python3")

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:  # noqa: N802 - NVML's name
        return [int(bool(self._card(card, "mig").mig)), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:  # noqa: N802 - NVML's name
        return len(card.mig)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, index: int) -> Card:  # noqa: N802 - NVML's name
        profile = card.mig[index]
        if profile is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return Card(f"MIG-{card.minor}-{index}", card.minor, memory=(10 * 2**30, 0), name=f"NVIDIA H100 MIG {profile}")

    def nvmlDeviceGetGpuInstanceId(self, card: Card) -> int:  # noqa: N802 - NVML's name
        return int(card.uuid.rpartition("-")[2])

    def nvmlDeviceGetComputeInstanceId(self, _card: Card) -> int:  # noqa: N802 - NVML's name
        return 0

    # events

    def nvmlEventSetCreate(self) -> object:  # noqa: N802 - NVML's name
        self.event_sets += 1
        return self

    def nvmlEventSetFree(self, _events: object) -> None:  # noqa: N802 - NVML's name
        self.event_sets -= 1

    def nvmlDeviceGetSupportedEventTypes(self, card: Card) -> int:  # noqa: N802 - NVML's name
        self._card(card, "events")
        return int(pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError)

    def nvmlDeviceRegisterEvents(self, card: Card, _wanted: int, _events: object) -> None:  # noqa: N802 - NVML's name
        self.listening.add(self._card(card, "events").uuid)

    def nvmlEventSetWait(self, _events: object, _milliseconds: int) -> Any:  # noqa: N802 - NVML's name
        self._driver()
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return self.events.pop(0)

    def xid(self, card: Card, number: int) -> None:
        """An Xid error of a GPU."""
        kind = pynvml.nvmlEventTypeXidCriticalError
        self.events.append(SimpleNamespace(device=card, eventType=kind, eventData=number))

    def double_bit(self, card: Card) -> None:
        """An uncorrectable ECC error of a GPU."""
        kind = pynvml.nvmlEventTypeDoubleBitEccError
        self.events.append(SimpleNamespace(device=card, eventType=kind, eventData=0))

    def _driver(self) -> None:
        if not self.loaded:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def _card(self, card: Card, call: str) -> Card:
        self._driver()
        if card.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if card.fails:
            raise pynvml.NVMLError(card.fails)
        if call == "processes" and "newer" in card.without:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if call in card.without:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return card
