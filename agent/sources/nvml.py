"""The driver itself, through NVML: devices, NVLink graph, figures, ECC and Xid health.

Opened by `agent.sources`; names and meanings are those of NVIDIA's NVML API reference. Kept true: what the driver does not support on a GPU is unknown
there, never zero; a GPU that is listed no more, or answers nothing but errors, is reported until it answers again, and the others go on, whatever
its reading raises; Xid faults stay reported until the driver is loaded anew; a driver that is missing, or goes away, is SourceAway until it is there
again, and then everything is read anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from agent.protocol import BOUNDS, COLUMNS, DeviceDetails
from agent.sources import FALLEN, UNANSWERING, Column, DeviceFacts, Machine, Reading, SourceAway
from agent.sources.counters import Rates
from agent.sources.nvml_details import Ask, Closely, Key, count_of, text
from agent.sources.nvml_faults import unsound
from agent.sources.wiring import SWITCH, LinkEnd, Seen, links_of, numa_of, switch_of

T = TypeVar("T")

HARMLESS_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, not of the GPU (NVIDIA's Xid catalogue): the next program runs as if nothing had happened."""
KIB: Final = 1024
MOST_MEMORY: Final = BOUNDS["memory_used_bytes"][1]
_ALL_LINKS: Final = 0xFFFFFFFF
_FIGURE: Final = -2
"""In place of a link's number: the field is a figure of a sample."""
_BUS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.IGNORECASE)

log = structlog.get_logger(__name__)


class NvmlSource:
    """All GPUs of this machine. `nv`: the module, for tests. `clock`: seconds, for rates."""

    def __init__(
        self, *, sys: Path = Path("/sys"), nv: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if nv is None:
            import pynvml

            nv = pynvml
        self._nv = nv
        self._sys = sys
        self._rates = Rates(clock)
        self._closely = Closely(nv, self._maybe)
        self._members = _members(nv)
        self._figures: list[Ask] = [
            ((name, _FIGURE), getattr(nv, field), _ALL_LINKS if name.startswith("nvlink") else 0)
            for name, field in _FIELDS.items()
            if hasattr(nv, field)  # fields grow with the driver's headers
        ]
        self._handles: dict[str, Any] = {}
        self._wrong: dict[str, str] = {}
        self._absent = (nv.NVMLError_NotSupported, nv.NVMLError_FunctionNotFound, nv.NVMLError_NoPermission)
        self._events: Any = None
        self._open = False
        self._answered = 0
        self._failed = 0
        """Calls of one GPU's reading that gave something, and that failed for another reason than that there is no such thing."""
        self._logged: set[tuple[str, str]] = set()

    def machine(self) -> Machine:
        """See Source. GPUs that cannot be read at all are left out, those that were there before are reported by `read`."""
        self._begin()
        nv = self._nv
        seen: list[Seen] = []
        unread = 0
        for index in range(self._sure(nv.nvmlDeviceGetCount)):
            try:
                one = self._seen(nv.nvmlDeviceGetHandleByIndex(index), index)
                self._closely.look(one)
            except SourceAway:
                raise
            except Exception as error:  # noqa: BLE001 - a binding or a driver may raise anything; one card must not hide the others
                self._gone(error)
                unread += 1
                self._note(str(index), error)
            else:
                seen.append(one)
        self._closely.name_ends(seen)
        fresh = {one.facts.uuid: one.handle for one in seen}
        if fresh.keys() - self._handles.keys():
            self._listen(fresh)
        # One that could not be looked at may be any of those that were there: its old handle tells. One that is listed no more is gone.
        self._handles = {**self._handles, **fresh} if unread else fresh
        devices = tuple(sorted((one.facts for one in seen), key=lambda facts: facts.minor))
        return Machine(devices, links_of(seen))

    def read(self, machine: Machine, /) -> Reading:
        """See Source."""
        self._begin()
        self._hear()
        columns: dict[str, Column] = {}
        health: dict[str, str] = {}
        details: list[DeviceDetails] = []
        for gpu in machine.gpus:
            values, closer, wrong = self._guarded(gpu.uuid)
            details.append(closer)
            for name in _MEASURED:
                columns.setdefault(name, []).append(values.get(name))
            wrong = wrong or self._wrong.get(gpu.uuid, "")
            if wrong:
                health[gpu.uuid] = wrong
        self._closely.forget_others(details)
        known = {name: column for name, column in columns.items() if any(value is not None for value in column)}
        return Reading(known, health, details)

    def close(self) -> None:
        """See Source."""
        if self._open:
            self._open = False
            self._handles.clear()
            self._events = None
            try:
                self._nv.nvmlShutdown()
            except self._nv.NVMLError as error:
                log.info("nvml.shutdown", error=str(error))

    # the driver

    def _begin(self) -> None:
        if self._open:
            return
        try:
            self._nv.nvmlInit()
        except self._nv.NVMLError as error:
            raise SourceAway(f"the driver does not answer: {error}") from error
        self._open = True
        self._logged.clear()
        self._wrong.clear()  # what was said of GPUs before the driver was loaded anew is over
        self._rates.forget()

    def _gone(self, error: Exception) -> None:
        """Raise SourceAway where the error says that the driver has gone, not one GPU."""
        nv = self._nv
        if isinstance(error, (nv.NVMLError_Uninitialized, nv.NVMLError_DriverNotLoaded)):
            self.close()
            raise SourceAway(f"the driver has gone: {error}") from error

    def _sure(self, call: Callable[[], T]) -> T:
        """What the call gives. Raises SourceAway."""
        try:
            return call()
        except self._nv.NVMLError as error:
            self._gone(error)
            self.close()
            raise SourceAway(f"the driver does not answer: {error}") from error

    def _maybe(self, call: Callable[..., T], *args: Any) -> T | None:
        """What the call gives, None where this GPU or this driver has no such thing. Raises NVMLError_GpuIsLost, SourceAway."""
        nv = self._nv
        try:
            given = call(*args)
        except nv.NVMLError_GpuIsLost:
            raise
        except UnicodeDecodeError as error:  # the binding decodes strictly; names of programs are any bytes
            return text(error.object)  # type: ignore[return-value]  # of the calls that give text
        except nv.NVMLLibraryMismatchError:  # a driver older than the binding; no NVMLError
            return None
        except nv.NVMLError as error:
            self._gone(error)
            self._failed += not isinstance(error, self._absent)
            return None
        self._answered += 1
        return given

    def _note(self, whose: str, error: Exception) -> None:
        """Log it, once until the driver is loaded anew: it comes again each second."""
        key = whose, type(error).__name__
        if key not in self._logged:
            self._logged.add(key)
            log.warning("nvml.device_unread", device=whose, error=f"{type(error).__name__}: {error}")

    # one GPU

    def _seen(self, handle: Any, index: int) -> Seen:
        nv = self._nv
        uuid = text(nv.nvmlDeviceGetUUID(handle))
        memory = self._maybe(nv.nvmlDeviceGetMemoryInfo, handle)
        minor = self._maybe(nv.nvmlDeviceGetMinorNumber, handle)
        bus = text(nv.nvmlDeviceGetPciInfo(handle).busId).lower()
        facts = DeviceFacts(
            minor=index if minor is None else minor,
            uuid=uuid,
            model=text(self._maybe(nv.nvmlDeviceGetName, handle) or ""),
            memory=(count_of(memory.total, MOST_MEMORY) or 0) if memory is not None else 0,
            numa=numa_of(self._sys, bus),
            pcie=switch_of(self._sys, bus),
        )
        return Seen(facts, handle, bus, self._nvlinks(handle))

    def _nvlinks(self, handle: Any) -> list[LinkEnd]:
        nv = self._nv
        ends: list[LinkEnd] = []
        for link in range(nv.NVML_NVLINK_MAX_LINKS):
            state = self._maybe(nv.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:
                break  # links are numbered without gaps
            ends.append(LinkEnd(link, state == nv.NVML_FEATURE_ENABLED, self._far_end(handle, link)))
        return ends

    def _far_end(self, handle: Any, link: int) -> str:
        """See LinkEnd; a link that is down may not say."""
        nv = self._nv
        kind = self._maybe(nv.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        if kind == nv.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            return SWITCH
        remote = self._maybe(nv.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        bus = "" if remote is None else text(remote.busId).lower()
        return bus if _BUS.fullmatch(bus) else ""

    def _guarded(self, uuid: str) -> tuple[dict[str, int | float | None], DeviceDetails, str]:
        """(column → value, details, what is wrong): nothing is known of a GPU that cannot be read."""
        handle = self._handles.get(uuid)
        if handle is None:
            return {}, DeviceDetails(), FALLEN
        self._answered = self._failed = 0
        try:
            values, details, wrong = self._one(uuid, handle)
        except SourceAway:
            raise
        except self._nv.NVMLError_GpuIsLost:
            self._handles.pop(uuid, None)  # until the machine is looked at again
            return {}, DeviceDetails(), FALLEN
        except Exception as error:  # noqa: BLE001 - a binding or a driver may raise anything; one card must not hide the others
            self._note(uuid, error)
            return {}, DeviceDetails(), ""
        if self._failed and not self._answered:
            return {}, DeviceDetails(), UNANSWERING
        return values, details, wrong

    def _one(self, uuid: str, handle: Any) -> tuple[dict[str, int | float | None], DeviceDetails, str]:
        """As `_guarded`. Raises NVMLError_GpuIsLost, SourceAway."""
        nv = self._nv
        rates = self._maybe(nv.nvmlDeviceGetUtilizationRates, handle)
        memory = self._maybe(nv.nvmlDeviceGetMemoryInfo, handle)
        power = self._maybe(nv.nvmlDeviceGetPowerUsage, handle)
        fields, more = self._fields(uuid, handle)
        values = {
            "utilisation_percent": None if rates is None else rates.gpu,
            "memory_used_bytes": None if memory is None else memory.used,
            "temperature_celsius": self._maybe(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU),
            "power_watts": None if power is None else power / 1000,
            "nvlink_tx_bytes": self._rates.of(uuid, "nvlink-tx", _times(fields.get("nvlink_tx"), KIB)),
            "nvlink_rx_bytes": self._rates.of(uuid, "nvlink-rx", _times(fields.get("nvlink_rx"), KIB)),
            "pcie_tx_bytes": self._rates.of(uuid, "pcie-tx", fields.get("pcie_tx")),
            "pcie_rx_bytes": self._rates.of(uuid, "pcie-rx", fields.get("pcie_rx")),
            "sm_clock_mhz": self._maybe(nv.nvmlDeviceGetClockInfo, handle, nv.NVML_CLOCK_SM),
            "memory_clock_mhz": self._maybe(nv.nvmlDeviceGetClockInfo, handle, nv.NVML_CLOCK_MEM),
        }
        details = self._closely.details(uuid, handle, more)
        return values, details, unsound(fields, ecc_uncorrected=details.ecc_uncorrected)

    def _fields(self, uuid: str, handle: Any) -> tuple[dict[str, int], dict[Key, int]]:
        """Field values that this GPU has, asked for in one call: (of the figures, of the details)."""
        nv = self._nv
        wanted = self._figures + self._closely.asks(uuid)
        answers = self._maybe(nv.nvmlDeviceGetFieldValues, handle, [(number, scope) for _, number, scope in wanted])
        if any(answer.nvmlReturn == nv.NVML_ERROR_GPU_IS_LOST for answer in answers or ()):
            raise nv.NVMLError(nv.NVML_ERROR_GPU_IS_LOST)
        found: dict[Key, int] = {}
        for (key, _, _), answer in zip(wanted, answers or (), strict=False):
            if answer.nvmlReturn == nv.NVML_SUCCESS:
                value = count_of(getattr(answer.value, self._members.get(answer.valueType, "ullVal")))
                if value is not None:
                    found[key] = value
        if answers is not None and not found:
            self._answered -= 1  # the call came back, and of nothing in it
        return {name: value for (name, link), value in found.items() if link == _FIGURE}, found

    # faults

    def _listen(self, handles: dict[str, Any]) -> None:
        """Hear of Xid errors from now on, on those GPUs that tell."""
        nv = self._nv
        if self._events is not None:
            self._hear()
            self._maybe(nv.nvmlEventSetFree, self._events)
        self._events = self._maybe(nv.nvmlEventSetCreate)
        if self._events is None:
            return
        for handle in handles.values():
            try:
                supported = self._maybe(nv.nvmlDeviceGetSupportedEventTypes, handle) or 0
                wanted = (nv.nvmlEventTypeXidCriticalError | nv.nvmlEventTypeDoubleBitEccError) & supported
                if wanted:
                    self._maybe(nv.nvmlDeviceRegisterEvents, handle, wanted, self._events)
            except nv.NVMLError_GpuIsLost:
                continue  # its own figures tell

    def _hear(self) -> None:
        """Take note of the faults since the last time; waits for none."""
        nv = self._nv
        if self._events is None:
            return
        for _ in range(256):
            try:
                event = self._maybe(nv.nvmlEventSetWait, self._events, 0)
                uuid = None if event is None else self._maybe(nv.nvmlDeviceGetUUID, event.device)
            except nv.NVMLError_GpuIsLost:
                return  # which one it is, its own figures tell
            if event is None:
                return
            if event.eventType == nv.nvmlEventTypeXidCriticalError and event.eventData not in HARMLESS_XIDS:
                reason = f"Xid {event.eventData}"
            elif event.eventType == nv.nvmlEventTypeDoubleBitEccError:
                reason = "double-bit ECC error"
            else:
                continue
            for one in self._handles if uuid is None else [text(uuid)]:
                self._wrong[one] = reason


_MEASURED: Final = tuple(
    name for name in COLUMNS if name not in {"nvlinks_down", "nvlink_errors", "ecc_corrected", "ecc_uncorrected"}
)
"""The columns that are figures; the others come from the details."""
_FIELDS: Final = {
    "nvlink_tx": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
    "nvlink_rx": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
    "pcie_tx": "NVML_FI_DEV_PCIE_COUNT_TX_BYTES",
    "pcie_rx": "NVML_FI_DEV_PCIE_COUNT_RX_BYTES",
    "remap_failed": "NVML_FI_DEV_REMAPPED_FAILURE",
    "remap_pending": "NVML_FI_DEV_REMAPPED_PENDING",
    "recovery_action": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
}
"""NVLink counts are KiB since the driver was loaded, over all links; PCIe counts are bytes."""


def _members(nv: Any) -> dict[int, str]:
    """Type of a field's value → the member of the union that holds it."""
    return {
        nv.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nv.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nv.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nv.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nv.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }


def _times(value: int | None, unit: int) -> int | None:
    return None if value is None else value * unit
