"""Whether the NVSwitch fabric that a GPU hangs on has taken it in: until then CUDA does not start on it.

Used by the NVML source with each look at the machine. By NVML's reference: the status counts once the registration is
complete; the health mask is of fields with a width and a place each; version 3 of the call adds the driver's own
verdict. Kept true: a GPU without a fabric is well; a call that is not answered changes nothing. No fault of the GPU is
a fabric with less bandwidth: work goes on, slower.
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
"""Where in the mask it says (1) that routes are being recovered, are bad, or that an access timed out and is being
recovered from.
"""
_CONFIGURATION: Final = 8
_CONFIGURED: Final = frozenset({0, 1})
"""Of four bits there: not said, and nothing wrong."""


class Fabric:
    """Of all GPUs of a machine."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._version = 0
        self.wrong: dict[str, str] = {}
        """UUID → why the GPU cannot be used, for those that cannot."""
        driver.on_start(self._started)

    def _started(self, anew: bool) -> None:
        if anew:
            self._version = 0
            self.wrong.clear()

    def look(self, uuid: str, handle: Any) -> None:
        """Ask for one GPU. Raises NVMLError_GpuIsLost, SourceAway."""
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
                self.wrong.pop(uuid, None)  # of this GPU alone
                return
            if not self._driver.is_none(error):
                return
            self._version += 1  # a driver that does not know this one yet


def unregistered(state: int, status: int, mask: int, summary: int) -> str:
    """What is wrong, empty for nothing."""
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
