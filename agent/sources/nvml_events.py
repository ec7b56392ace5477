"""Faults by NVML events: Xid errors and uncorrectable ECC errors.

Used by the NVML source. Invariants: faults stay until the driver is reloaded; an event set that became invalid, since
one of its GPUs was lost or NVML restarted, is replaced at once, or else with the next listing of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from agent.sources.nvml_driver import Driver, text

HARMLESS_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, not of the GPU (NVIDIA's Xid catalogue): the next program runs as if nothing had happened."""
_EVENTS_MOST: Final = 256
"""Events read at one time."""

log = structlog.get_logger(__name__)


class Faults:
    """Faults of a machine's GPUs."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._set: Any = None
        self._heard: frozenset[str] = frozenset()
        self._renewed = False
        self._logged = False
        self.wrong: dict[str, str] = {}
        """UUID → the last fault."""
        driver.on_start(self._started)

    def _started(self, reloaded: bool) -> None:
        self._set, self._heard = None, frozenset()
        if reloaded:
            self.wrong.clear()
            self._logged = False

    def listen(self, handles: Mapping[str, Any]) -> None:
        """Register these GPUs for events, if not yet; called with each listing of the machine."""
        self._renewed = False
        if self._set is None or handles.keys() - self._heard:
            self.hear(handles)
            self._begin(handles)

    def _begin(self, handles: Mapping[str, Any]) -> None:
        nv, maybe = self._driver.nv, self._driver.maybe
        if self._set is not None:
            maybe(nv.nvmlEventSetFree, self._set)
        self._set = maybe(nv.nvmlEventSetCreate)
        self._heard = frozenset()
        if self._set is None:
            return
        heard = set()
        for uuid, handle in handles.items():
            try:
                supported = maybe(nv.nvmlDeviceGetSupportedEventTypes, handle) or 0
                wanted = (nv.nvmlEventTypeXidCriticalError | nv.nvmlEventTypeDoubleBitEccError) & supported
                if wanted:
                    maybe(nv.nvmlDeviceRegisterEvents, handle, wanted, self._set)
            except nv.NVMLError_GpuIsLost:
                continue  # seen by its reading
            heard.add(uuid)
        self._heard = frozenset(heard)

    def hear(self, handles: Mapping[str, Any]) -> None:
        """Read the faults since the last time, without waiting."""
        nv = self._driver.nv
        for _ in range(_EVENTS_MOST):
            if self._set is None:
                return
            try:
                event, error = self._driver.tried(nv.nvmlEventSetWait, self._set, 0)
            except nv.NVMLError_GpuIsLost as lost:
                event, error = None, lost  # its reading shows which one
            if event is not None:
                self._note(event, handles)
            elif isinstance(error, nv.NVMLError_Timeout) or self._driver.is_none(error):
                return
            else:
                self._renew(handles, error)

    def _renew(self, handles: Mapping[str, Any], why: Exception | None) -> None:
        """Replace an invalid event set, once between two listings, since that takes a call a GPU."""
        if not self._logged:
            log.warning("nvml.events_anew", why=str(why))
        self._logged = True
        if self._renewed:
            self._driver.maybe(self._driver.nv.nvmlEventSetFree, self._set)
            self._set = None
            return
        self._renewed = True
        self._begin(handles)

    def _note(self, event: Any, handles: Mapping[str, Any]) -> None:
        nv = self._driver.nv
        if event.eventType == nv.nvmlEventTypeXidCriticalError and event.eventData not in HARMLESS_XIDS:
            reason = f"Xid {event.eventData}"
        elif event.eventType == nv.nvmlEventTypeDoubleBitEccError:
            reason = "double-bit ECC error"
        else:
            return
        try:
            uuid = self._driver.maybe(nv.nvmlDeviceGetUUID, event.device)
        except nv.NVMLError_GpuIsLost:
            return  # seen by its reading
        for one in handles if uuid is None else [text(uuid)]:
            self.wrong[one] = reason
