"""GPUs by NVML: devices, NVLinks, measurements, ECC and Xid health, MIG instances.

Opened by `agent.sources`; names and meanings are those of NVIDIA's NVML API reference. Invariants: what a GPU does not
support is unknown, never zero; a GPU that is not listed any more, or answers with errors only, is unhealthy until it
answers again, a lost one until NVML was restarted and it answers; an error of one GPU, whatever it is, does not affect
the others; Xid faults stay until the driver is reloaded; without a driver SourceAway is raised, and everything is read
anew when it is back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
from msgspec import structs

from agent.protocol import COLUMNS, DeviceDetails
from agent.sources import FALLEN, UNANSWERING, Column, DeviceFacts, Machine, Reading, SourceAway, by_type_and_minor
from agent.sources.counters import Rates, gained_a_second
from agent.sources.mig import MigInstance
from agent.sources.nvml_details import DetailReader
from agent.sources.nvml_driver import MOST_MEMORY, Driver, count_of, text
from agent.sources.nvml_events import Faults
from agent.sources.nvml_fabric import Fabric
from agent.sources.nvml_faults import CountedFaults
from agent.sources.nvml_fields import FIGURE, Fields, FieldValues
from agent.sources.nvml_links import NvLinks
from agent.sources.nvml_mig import MigInstances
from agent.sources.nvml_minors import Minors, Numbered
from agent.sources.wiring import Seen, links_of, numa_of, short, switch_of

KIB: Final = 1024
FIRST_RESTART_PAUSE: Final = 20.0
"""Seconds before NVML is restarted for a lost GPU, doubling: with a dead GPU a start takes seconds."""
LONGEST_RESTART_PAUSE: Final = 320.0
UNNUMBERED: Final = -1
"""Minor until those of all GPUs are known."""

Values = dict[str, int | float | None]

log = structlog.get_logger(__name__)


class _Looked(NamedTuple):
    """One GPU as looked at, the facts without their minor, and its MIG instances."""

    seen: Seen
    numbered: Numbered
    parts: Sequence[MigInstance]


class NvmlSource:
    """All GPUs of this machine. `nv`: the binding, for tests; `clock`: monotonic seconds."""

    def __init__(
        self, *, sys: Path = Path("/sys"), nv: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if nv is None:
            import pynvml

            nv = pynvml
        self._nv = nv
        self._sys = sys
        self._clock = clock
        self._driver = Driver(nv)
        self._rates = Rates(clock)
        self._fields = Fields(self._driver)
        self._links = NvLinks(self._driver, self._fields)
        self._parts = MigInstances(self._driver)
        self._minors = Minors(self._driver)
        self._fabric = Fabric(self._driver)
        self._faults = Faults(self._driver)
        self._counted = CountedFaults(self._driver)
        self._closely = DetailReader(self._driver)
        self._driver.on_start(self._started)
        self._handles: dict[str, Any] = {}
        self._lost: set[str] = set()
        """GPUs lost since NVML was started."""
        self._any_lost = False
        self._awaited: set[str] = set()
        """Lost GPUs that are not back yet."""
        self._restart_at = float("-inf")
        self._restart_pause = FIRST_RESTART_PAUSE
        self._logged: set[tuple[str, str]] = set()

    def machine(self) -> Machine:
        """See Source. GPUs that cannot be read are left out; those that were there before are unhealthy in `read`."""
        self._driver.begin()
        if (self._any_lost or self._awaited) and self._clock() >= self._restart_at:
            self._restart_at = self._clock() + self._restart_pause
            self._restart_pause = min(2 * self._restart_pause, LONGEST_RESTART_PAUSE)
            log.info("nvml.restart", lost=sorted(self._awaited))
            self._driver.restart()
        looked: list[_Looked] = []
        unread = 0
        for index in range(self._driver.sure(self._nv.nvmlDeviceGetCount)):
            try:
                one = self._look(index)
            except SourceAway:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not hide the other GPUs
                self._driver.gone(error)
                unread += 1
                self._any_lost = self._any_lost or isinstance(error, self._nv.NVMLError_GpuIsLost)
                self._note(str(index), error)
            else:
                if one.numbered.uuid not in self._lost:
                    looked.append(one)
        minors = self._minors.of([one.numbered for one in looked])
        seen: list[Seen] = []
        devices: list[DeviceFacts] = []
        for one in looked:
            facts = structs.replace(one.seen.facts, minor=minors[one.numbered.uuid])
            seen.append(one.seen._replace(facts=facts))
            devices += [facts, *(part.facts(facts) for part in one.parts)]
        self._closely.name_ends(seen)
        fresh = {one.facts.uuid: one.handle for one in seen}
        # a GPU that could not be read may be any of those known, which keep their handles; one not listed is gone
        self._handles = {**self._handles, **fresh} if unread else fresh
        self._faults.listen(self._handles)
        self._awaited -= fresh.keys()
        if not self._any_lost and not self._awaited:
            self._restart_at, self._restart_pause = float("-inf"), FIRST_RESTART_PAUSE
        return Machine(by_type_and_minor(devices), links_of(seen))

    def read(self, machine: Machine, /) -> Reading:
        """See Source."""
        self._driver.begin()
        self._faults.hear(self._handles)
        columns: dict[str, Column] = {}
        health: dict[str, str] = {}
        details: list[DeviceDetails] = []
        for gpu in machine.gpus:
            values, closer, wrong = self._guarded(gpu.uuid)
            details.append(closer)
            for name in _MEASURED:
                columns.setdefault(name, []).append(values.get(name))
            wrong = wrong or self._faults.wrong.get(gpu.uuid, "") or self._fabric.wrong.get(gpu.uuid, "")
            if wrong:
                health[gpu.uuid] = wrong
        self._closely.forget_others(details)
        known = {name: column for name, column in columns.items() if any(value is not None for value in column)}
        return Reading(known, health, details)

    def close(self) -> None:
        """See Source."""
        self._handles.clear()
        self._driver.close()

    def _started(self, reloaded: bool) -> None:
        self._handles.clear()
        self._lost.clear()
        self._any_lost = False
        if reloaded:
            self._awaited.clear()
            self._logged.clear()
            self._rates.forget()

    def _note(self, whose: str, error: Exception) -> None:
        """Log the error, once until the driver is reloaded."""
        key = whose, type(error).__name__
        if key not in self._logged:
            self._logged.add(key)
            log.warning("nvml.device_unread", device=whose, error=f"{type(error).__name__}: {error}")

    def _look(self, index: int) -> _Looked:
        """Look at one GPU and its MIG instances. May raise anything."""
        nv, maybe = self._nv, self._driver.maybe
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        uuid = text(nv.nvmlDeviceGetUUID(handle))
        memory = self._driver.memory(handle)
        minor = maybe(nv.nvmlDeviceGetMinorNumber, handle)
        bus = text(nv.nvmlDeviceGetPciInfo(handle).busId).lower()
        is_cut, parts = self._parts.of(uuid, handle)
        facts = DeviceFacts(
            minor=UNNUMBERED,
            uuid=uuid,
            model=text(maybe(nv.nvmlDeviceGetName, handle) or ""),
            memory=(count_of(memory.total, MOST_MEMORY) or 0) if memory is not None else 0,
            numa=numa_of(self._sys, bus),
            pcie=switch_of(self._sys, bus),
            busid=short(bus),
            mig=is_cut,
        )
        seen = Seen(facts, handle, bus, self._links.of(uuid, handle))
        self._fabric.read(uuid, handle)
        self._closely.note_migs(uuid, [part.details for part in parts])
        return _Looked(seen, Numbered(uuid, index, minor), parts)

    def _guarded(self, uuid: str) -> tuple[Values, DeviceDetails, str]:
        """(column → value, details, what is wrong) of one GPU; no values if it cannot be read."""
        handle = self._handles.get(uuid)
        if handle is None:
            return {}, DeviceDetails(), FALLEN
        self._driver.answered = self._driver.failed = 0
        try:
            values, details, wrong = self._one(uuid, handle)
        except SourceAway:
            raise
        except self._nv.NVMLError_GpuIsLost:
            self._handles.pop(uuid, None)  # until NVML is restarted
            self._lost.add(uuid)
            self._awaited.add(uuid)
            self._any_lost = True
            self._rates.forget(uuid)
            return {}, DeviceDetails(), FALLEN
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not hide the other GPUs
            self._note(uuid, error)
            return {}, DeviceDetails(), self._counted.last(uuid)
        if self._driver.failed and not self._driver.answered:
            return {}, DeviceDetails(), UNANSWERING
        return values, details, wrong

    def _one(self, uuid: str, handle: Any) -> tuple[Values, DeviceDetails, str]:
        """As `_guarded`. Raises NVMLError_GpuIsLost, SourceAway."""
        nv, maybe = self._nv, self._driver.maybe
        answers = self._fields.read(handle, self._fields.figures + self._closely.asks(uuid))
        at = self._clock()
        fields = answers.figures()
        rates = maybe(nv.nvmlDeviceGetUtilizationRates, handle)
        memory = self._driver.memory(handle)
        power = maybe(nv.nvmlDeviceGetPowerUsage, handle)
        values = {
            "utilisation_percent": None if rates is None else rates.gpu,
            "memory_used_bytes": None if memory is None else memory.used,
            "temperature_celsius": maybe(nv.nvmlDeviceGetTemperature, handle, nv.NVML_TEMPERATURE_GPU),
            "power_watts": None if power is None else power / 1000,
            "nvlink_tx_bytes": self._nvlink(uuid, "nvlink_tx", fields, at),
            "nvlink_rx_bytes": self._nvlink(uuid, "nvlink_rx", fields, at),
            "sm_clock_mhz": maybe(nv.nvmlDeviceGetClockInfo, handle, nv.NVML_CLOCK_SM),
            "memory_clock_mhz": maybe(nv.nvmlDeviceGetClockInfo, handle, nv.NVML_CLOCK_MEM),
        }
        details = self._closely.details(uuid, handle, answers)
        values |= self._pcie(uuid, handle, answers, at)
        return values, details, self._counted.note(uuid, answers)

    def _nvlink(self, uuid: str, name: str, fields: dict[str, int], at: float) -> float | None:
        """Traffic of all NVLinks in one direction. NVLink 5 counts bytes, and its count of KiB may stand still."""
        in_bytes, in_kib = fields.get(f"{name}_bytes"), fields.get(name)
        rates = [
            self._rates.of(uuid, f"{name}_bytes", in_bytes, at=at),
            self._rates.of(uuid, name, None if in_kib is None else in_kib * KIB, at=at),
        ]
        return rates[in_bytes is None]

    def _pcie(self, uuid: str, handle: Any, answers: FieldValues, at: float) -> Values:
        """PCIe traffic. Counters of 32 bits are read again a moment later: their pace says how often they wrapped since
        the last reading.
        """
        narrow = {ask[0] for ask in self._fields.pcie} & answers.narrow
        again = self._fields.read(handle, self._fields.pcie).values if narrow else {}
        moment = self._clock() - at
        found: Values = {}
        for name in ("pcie_tx", "pcie_rx"):
            key = name, FIGURE
            count, later = answers.values.get(key), again.get(key)
            about = None if count is None or later is None else gained_a_second(count, later, moment)
            found[f"{name}_bytes"] = self._rates.of(uuid, name, count, at=at, is_narrow=key in narrow, about=about)
        return found


_MEASURED: Final = tuple(
    name for name in COLUMNS if name not in {"nvlinks_down", "nvlink_errors", "ecc_corrected", "ecc_uncorrected"}
)
"""Columns that do not come from details."""
