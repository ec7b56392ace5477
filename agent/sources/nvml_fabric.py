"""Registration of GPUs with their NVSwitch fabric, without which CUDA does not start.

Used by the NVML source with each listing of the machine. By NVML's reference: the status counts once registration is
complete; the health mask has fields of several bits; version 3 of the call adds the driver's own summary. Invariants: a
GPU without a fabric is healthy; an error changes nothing. A fabric with less bandwidth is no fault: jobs run, slower.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any, Final

from agent.sources.nvml_driver import Driver

_VERSIONS: Final = (
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
    ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)
"""Newest first."""
_STATE_NONE: Final = 0
_STATE_COMPLETED: Final = 3
_SUMMARY_UNHEALTHY: Final = 2
_SUMMARY_UNKNOWN: Final = 0
_ROUTES: Final = (2, 4, 6)
"""Offsets in the mask of flags (1: set) for routes in recovery, bad routes, and recovery from a timed out access."""
_CONFIGURATION: Final = 8
_CONFIGURED: Final = frozenset({0, 1})
"""Values of the four bits there: not known, and no fault."""


class Fabric:
    """Fabric registration of a machine's GPUs."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._version = 0
        self.wrong: dict[str, str] = {}
        """UUID → why the GPU cannot be used."""
        driver.on_start(self._started)

    def _started(self, reloaded: bool) -> None:
        if reloaded:
            self._version = 0
            self.wrong.clear()

    def read(self, uuid: str, handle: Any) -> None:
        """Read one GPU. Raises NVMLError_GpuIsLost, SourceAway."""
        nv = self._driver.nv
        while self._version < len(_VERSIONS):
            call, struct = _VERSIONS[self._version]
            info = getattr(nv, struct)()
            _, error = self._driver.tried(getattr(nv, call), handle, byref(info))
            if error is None:
                reason = unregistered(
                    info.state, info.status, getattr(info, "healthMask", 0), getattr(info, "healthSummary", 0)
                )
                if reason:
                    self.wrong[uuid] = reason
                else:
                    self.wrong.pop(uuid, None)
                return
            if isinstance(error, nv.NVMLError_NotSupported):
                self.wrong.pop(uuid, None)  # by this GPU
                return
            if not self._driver.is_none(error):
                return
            self._version += 1  # the driver is older than this version


def unregistered(state: int, status: int, mask: int, summary: int) -> str:
    """Why the GPU cannot be used, empty if it can."""
    if state == _STATE_NONE:
        return ""
    if state != _STATE_COMPLETED:
        return "the GPU is not registered with its NVSwitch fabric"
    if status:
        return "registration with the NVSwitch fabric failed"
    if summary == _SUMMARY_UNHEALTHY:
        return "the NVSwitch fabric is not well for the GPU"
    if summary != _SUMMARY_UNKNOWN:
        return ""
    if any(mask >> place & 0x3 == 1 for place in _ROUTES):
        return "the NVSwitch fabric has no good route to the GPU"
    if mask >> _CONFIGURATION & 0xF not in _CONFIGURED:
        return "the NVSwitch fabric is not configured for the GPU"
    return ""
