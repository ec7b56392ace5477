"""MIG instances as NVML shows them.

Used by the NVML source with each look at the machine. Kept true: an instance is gone when the driver says that its
place is free or that the GPU is not in MIG mode, never because it did not answer.
"""

from __future__ import annotations

from typing import Any, Final

from agent.protocol import BOUNDS, MOST_MIGS
from agent.sources.mig import Part
from agent.sources.nvml_driver import Driver, count_of, text

MOST_MEMORY: Final = BOUNDS["memory_used_bytes"][1]


class Parts:
    """Those of all GPUs of a machine."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._known: dict[str, dict[int, Part]] = {}
        driver.on_start(self._started)

    def _started(self, anew: bool) -> None:
        if anew:
            self._known.clear()

    def of(self, uuid: str, handle: Any) -> tuple[bool, list[Part]]:
        """(whether the GPU is in MIG mode, its instances). Raises NVMLError_GpuIsLost, SourceAway."""
        nv = self._driver.nv
        mode, error = self._driver.tried(nv.nvmlDeviceGetMigMode, handle)
        before = self._known.get(uuid)
        if mode is None and before is not None and not self._driver.is_none(error):
            return True, list(before.values())
        if mode is None or mode[0] != nv.NVML_DEVICE_MIG_ENABLE:
            self._known.pop(uuid, None)
            return False, []
        self._known[uuid] = found = self._found(handle, before or {})
        return True, list(found.values())

    def _found(self, handle: Any, before: dict[int, Part]) -> dict[int, Part]:
        nv = self._driver.nv
        most, error = self._driver.tried(nv.nvmlDeviceGetMaxMigDeviceCount, handle)
        if most is None:
            return {} if self._driver.is_none(error) else before
        found: dict[int, Part] = {}
        for index in range(min(most, MOST_MIGS)):
            part, error = self._driver.tried(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            one = None if part is None else self._part(part, index)
            if one is None and (part is not None or not self._is_free(error)):
                one = before.get(index)
            if one is not None:
                found[index] = one
        return found

    def _is_free(self, error: Exception | None) -> bool:
        """Whether the error says that no instance has this place."""
        nv = self._driver.nv
        return isinstance(error, (nv.NVMLError_NotFound, nv.NVMLError_InvalidArgument)) or self._driver.is_none(error)

    def _part(self, part: Any, index: int) -> Part | None:
        nv, maybe = self._driver.nv, self._driver.maybe
        uuid = maybe(nv.nvmlDeviceGetUUID, part)
        if uuid is None:
            return None
        memory = self._driver.memory(part)
        instance = maybe(nv.nvmlDeviceGetGpuInstanceId, part)
        return Part(
            uuid=text(uuid),
            profile=text(maybe(nv.nvmlDeviceGetName, part) or "").rpartition("MIG ")[2],
            memory_bytes=None if memory is None else count_of(memory.total, MOST_MEMORY),
            instance=index if instance is None else instance,
            compute=maybe(nv.nvmlDeviceGetComputeInstanceId, part) or 0,
        )
