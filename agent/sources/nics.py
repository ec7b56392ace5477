"""RDMA NICs from sysfs, beside the GPUs of another source.

By the kernel's `Documentation/ABI/stable/sysfs-class-infiniband`: a folder a device under `/sys/class/infiniband`, with
its GUID (`node_guid`), card (`board_id`, `hca_type`) and ports (`ports/<n>/state`, `4: ACTIVE`); its link `device` is
the PCI function. Physical functions are reported; virtual ones (`device/physfn`), sub-functions and devices in
software, without a PCI address of their own, are not. A bond of two ports is one device, at the PCI address of its
first port, and healthy while one port is active. Invariants: minors follow the PCI addresses of all NICs seen since the
start, so that a NIC that disappears renumbers no other; a NIC that is gone or has no active port is unhealthy; where
the folder cannot be read no NICs are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from uuid import NAMESPACE_DNS, uuid5

import msgspec
import structlog

from agent.sources import DeviceFacts, Machine, Reading, Source, by_type_and_minor
from agent.sources.wiring import ADDRESS, numa_of, switch_of
from kube.device_types import RDMA

GONE: Final = "the NIC is there no more"
NO_PORT: Final = "no port of the NIC is active"
NO_STATE: Final = "the state of the NIC's ports cannot be read"
MODEL_MOST: Final = 64
_ACTIVE: Final = 4
"""By the kernel's `enum ib_port_state`."""

log = structlog.get_logger(__name__)


class Nic(NamedTuple):
    """One NIC. `guid`: 16 hexadecimal digits, empty without one."""

    path: Path
    busid: str
    guid: str
    model: str


class WithNics:
    """Another source with this machine's NICs. `node`: for UUIDs of NICs without GUID."""

    def __init__(self, source: Source, *, sys: Path, node: str) -> None:
        self._source = source
        self._sys = sys
        self._node = node
        self._addresses: set[str] = set()
        self._paths: dict[str, Path] = {}
        self._can_read = True

    def machine(self) -> Machine:
        """See Source."""
        machine = self._source.machine()
        nics = found(self._sys)
        if (nics is not None) != self._can_read:
            self._can_read = nics is not None
            log.info("nics.readable", is_so=self._can_read)
        if nics is None:
            self._paths = {}
            return machine
        facts = self._facts(nics)
        devices = by_type_and_minor((*machine.devices, *facts))
        return msgspec.structs.replace(machine, devices=devices, types=(*machine.types, RDMA))

    def read(self, machine: Machine, /) -> Reading:
        """See Source."""
        reading = self._source.read(machine)
        wrong = {
            one.uuid: reason
            for one in machine.devices
            if one.type == RDMA and (reason := self._unsound(self._paths.get(one.uuid)))
        }
        return msgspec.structs.replace(reading, health={**reading.health, **wrong}) if wrong else reading

    def close(self) -> None:
        """See Source."""
        self._source.close()

    def _facts(self, nics: list[Nic]) -> list[DeviceFacts]:
        self._addresses.update(nic.busid for nic in nics)
        minors = {address: minor for minor, address in enumerate(sorted(self._addresses, key=_place))}
        uuids = uuids_of(nics, node=self._node)
        self._paths = {uuids[nic.busid]: nic.path for nic in nics}
        return [
            DeviceFacts(
                minor=minors[nic.busid],
                uuid=uuids[nic.busid],
                model=nic.model,
                numa=numa_of(self._sys, nic.busid),
                pcie=switch_of(self._sys, nic.busid),
                type=RDMA,
                busid=nic.busid,
            )
            for nic in nics
        ]

    @staticmethod
    def _unsound(path: Path | None) -> str:
        if path is None or not path.exists():
            return GONE
        states = [state for port in _folder(path / "ports") if (state := _state(port)) is not None]
        if not states:
            return NO_STATE
        return "" if _ACTIVE in states else NO_PORT


def found(sys: Path) -> list[Nic] | None:
    """The NICs by PCI address; None where the folder cannot be read."""
    try:
        listed = sorted((sys / "class" / "infiniband").iterdir())
    except OSError:
        return None
    nics: dict[str, Nic] = {}
    for path in listed:
        device = path / "device"
        busid = device.resolve().name
        if not ADDRESS.fullmatch(busid) or (device / "physfn").exists() or busid in nics:
            continue
        guid = _text(path / "node_guid").replace(":", "").lower()
        model = _text(path / "board_id") or _text(path / "hca_type")
        nics[busid] = Nic(path, busid, guid if guid.strip("0") else "", model[:MODEL_MOST])
    return sorted(nics.values(), key=lambda nic: _place(nic.busid))


def uuids_of(nics: list[Nic], *, node: str) -> Mapping[str, str]:
    """PCI address → UUID: from the GUID, or from node name and address where that is missing or not unique."""
    times = Counter(nic.guid for nic in nics)
    return {
        nic.busid: f"RDMA-{nic.guid}"
        if nic.guid and times[nic.guid] == 1
        else f"RDMA-{uuid5(NAMESPACE_DNS, f'{node}/{nic.busid}')}"
        for nic in nics
    }


def _place(address: str) -> tuple[int, str]:
    """Sort key of PCI addresses, whose domains have four digits or more."""
    domain, _, rest = address.partition(":")
    return int(domain, 16), rest


def _state(port: Path) -> int | None:
    number = _text(port / "state").partition(":")[0]
    return int(number) if number.isdecimal() else None


def _folder(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    """The file's text without control characters; empty where it cannot be read."""
    try:
        read = path.read_text(errors="replace")
    except OSError:
        return ""
    return "".join(character for character in read.strip() if character.isprintable())
