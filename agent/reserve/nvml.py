"""The GPUs that NVML shows, where the driver's files are not enough: UUIDs not known yet, or MIG instances.

Called by `gpus.own_uuids`, about once a second at most. The agent's own source (`agent.sources.nvml`) measures, and
needs packages that would make this program several times as large; this asks for names only. Invariants: without
NVML's library the binding is not even loaded; a driver that hangs keeps one thread, and no signal from being handled.
"""

from __future__ import annotations

from typing import Any, Final

from agent.reserve.gpus import Gpu, NotYet

LIBRARY: Final = "libnvidia-ml.so.1"
PARTS_MOST: Final = 64


def listed() -> list[Gpu]:
    """The GPUs by NVML's index, which is the order of PCI addresses. Raises NotYet."""
    import ctypes
    import threading

    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        raise NotYet("the container has no NVML") from None
    outcome: list[list[Gpu] | NotYet] = []
    # Python handles signals in its main thread, which must not be the one that is in the driver
    asking = threading.Thread(target=_ask, args=(outcome,), daemon=True)
    asking.start()
    asking.join()
    if not outcome:
        raise NotYet("NVML cannot be asked")
    found = outcome[0]
    if isinstance(found, NotYet):
        raise found
    return found


def _ask(outcome: list[list[Gpu] | NotYet]) -> None:
    try:
        import pynvml
    except ImportError:
        outcome.append(NotYet("pynvml is not installed"))
        return
    try:
        pynvml.nvmlInit()
        try:
            count = pynvml.nvmlDeviceGetCount()
            outcome.append([_gpu(pynvml, index) for index in range(count)])
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
        outcome.append(NotYet(f"the driver does not answer: {error}"))


def _gpu(nv: Any, index: int) -> Gpu:
    """One GPU. An error is its problem, so that it keeps its place among the others."""
    try:
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        address = _text(nv.nvmlDeviceGetPciInfo(handle).busId).lower()
        uuid, minor = _text(nv.nvmlDeviceGetUUID(handle)), nv.nvmlDeviceGetMinorNumber(handle)
        return Gpu(address, uuid, minor, parts=_parts(nv, handle))
    except nv.NVMLError as error:
        return Gpu(f"{index:x}", "", problem=f"GPU {index} does not answer: {error}")


def _parts(nv: Any, handle: Any) -> tuple[str, ...] | None:
    """UUIDs of the MIG instances by index, empty for one that is free; None outside MIG mode."""
    try:
        if nv.nvmlDeviceGetMigMode(handle)[0] != nv.NVML_DEVICE_MIG_ENABLE:
            return None
    except (nv.NVMLError_NotSupported, nv.NVMLError_FunctionNotFound):
        return None
    found = []
    for index in range(min(nv.nvmlDeviceGetMaxMigDeviceCount(handle), PARTS_MOST)):
        try:
            found.append(_text(nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))))
        except (nv.NVMLError_NotFound, nv.NVMLError_InvalidArgument):
            found.append("")
    return tuple(found)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
