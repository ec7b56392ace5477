"""MIG instances by NVML.

Used by the NVML source with each listing of the machine. Invariants: an instance is gone when the driver says that its
index is free or that the GPU is not in MIG mode, never because it does not answer.
"""

from __future__ import annotations

from typing import Any

from agent.protocol import MOST_MIGS
from agent.sources.mig import MigInstance
from agent.sources.nvml_driver import MOST_MEMORY, Driver, count_of, text


class MigInstances:
    """MIG instances of a machine's GPUs."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._known: dict[str, dict[int, MigInstance]] = {}
        driver.on_start(self._started)

    def _started(self, reloaded: bool) -> None:
        if reloaded:
            self._known.clear()

    def of(self, uuid: str, handle: Any) -> tuple[bool, list[MigInstance]]:
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

    def _found(self, handle: Any, before: dict[int, MigInstance]) -> dict[int, MigInstance]:
        nv = self._driver.nv
        most, error = self._driver.tried(nv.nvmlDeviceGetMaxMigDeviceCount, handle)
        if most is None:
            return {} if self._driver.is_none(error) else before
        found: dict[int, MigInstance] = {}
        for index in range(min(most, MOST_MIGS)):
            part, error = self._driver.tried(nv.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
            one = None if part is None else self._part(part, index)
            if one is None and (part is not None or not self._is_free(error)):
                one = before.get(index)
            if one is not None:
                found[index] = one
        return found

    def _is_free(self, error: Exception | None) -> bool:
        """Whether the error says that no instance has this index."""
        nv = self._driver.nv
        return isinstance(error, (nv.NVMLError_NotFound, nv.NVMLError_InvalidArgument)) or self._driver.is_none(error)

    def _part(self, part: Any, index: int) -> MigInstance | None:
        nv, maybe = self._driver.nv, self._driver.maybe
        uuid = maybe(nv.nvmlDeviceGetUUID, part)
        if uuid is None:
            return None
        memory = self._driver.memory(part)
        instance = maybe(nv.nvmlDeviceGetGpuInstanceId, part)
        return MigInstance(
            uuid=text(uuid),
            profile=text(maybe(nv.nvmlDeviceGetName, part) or "").rpartition("MIG ")[2],
            memory_bytes=None if memory is None else count_of(memory.total, MOST_MEMORY),
            instance=index if instance is None else instance,
            compute=maybe(nv.nvmlDeviceGetComputeInstanceId, part) or 0,
        )
