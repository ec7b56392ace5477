"""Calls into the driver: what is an answer, what is none, and when the driver itself has gone.

Used by the modules of the NVML source, all in one thread at a time. Kept true: a GPU that is lost and a driver that has
gone are raised, everything else that a call may answer is a value or the error beside it; each loading of the driver
and each start of NVML is noticed by whoever keeps handles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog

from agent.sources import SourceAway

T = TypeVar("T")

NO_SUCH: Final = (
    "NVMLError_NotSupported",
    "NVMLError_FunctionNotFound",
    "NVMLError_NoPermission",
    "NVMLError_ArgumentVersionMismatch",
)
"""Errors by which the driver says that there is no such thing here, or not for us."""

log = structlog.get_logger(__name__)


class Driver:
    """NVML as one program has it. `nv`: the binding."""

    def __init__(self, nv: Any) -> None:
        self.nv = nv
        self.answered = 0
        self.failed = 0
        """Calls that gave something, and that failed for another reason than that there is no such thing. Set to 0 by
        whoever counts.
        """
        self._no_such = tuple(getattr(nv, name) for name in NO_SUCH if hasattr(nv, name))
        self._open = False
        self._anew = True
        """Whether the driver may be another than at the last start."""
        self._plain_memory = False
        self._on_start: list[Callable[[bool], None]] = []

    def on_start(self, call: Callable[[bool], None]) -> None:
        """Call it after each start of NVML; True where the driver may have been loaded anew since the last one."""
        self._on_start.append(call)

    def begin(self) -> None:
        """Start NVML where it is not. Raises SourceAway."""
        if not self._open:
            self._start()

    def restart(self) -> None:
        """Start NVML anew on the same driver: handles and event sets of before are of no use any more. Raises
        SourceAway.
        """
        self.close()
        self._start()

    def _start(self) -> None:
        try:
            self.nv.nvmlInit()
        except self.nv.NVMLError as error:
            self._anew = self._anew or isinstance(error, self.nv.NVMLError_DriverNotLoaded)
            raise SourceAway(f"the driver does not answer: {error}") from error
        anew, self._anew = self._anew, False
        self._open = True
        self._plain_memory = False
        for call in self._on_start:
            call(anew)

    def close(self) -> None:
        """Stop NVML."""
        if self._open:
            self._open = False
            try:
                self.nv.nvmlShutdown()
            except self.nv.NVMLError as error:
                log.info("nvml.shutdown", error=str(error))

    def gone(self, error: Exception) -> None:
        """Raise SourceAway where the error says that the driver has gone, not one GPU."""
        if isinstance(error, (self.nv.NVMLError_Uninitialized, self.nv.NVMLError_DriverNotLoaded)):
            self._anew = True
            self.close()
            raise SourceAway(f"the driver has gone: {error}") from error

    def sure(self, call: Callable[[], T]) -> T:
        """What the call gives. Raises SourceAway."""
        try:
            return call()
        except self.nv.NVMLError as error:
            self.gone(error)
            self.close()
            raise SourceAway(f"the driver does not answer: {error}") from error

    def tried(self, call: Callable[..., T], *args: Any) -> tuple[T | None, Exception | None]:
        """(what the call gives, None), or (None, why it gives nothing). Raises NVMLError_GpuIsLost, SourceAway."""
        nv = self.nv
        try:
            given = call(*args)
        except nv.NVMLError_GpuIsLost:
            raise
        except UnicodeDecodeError as error:  # the binding decodes strictly; names of programs are any bytes
            return text(error.object), None  # type: ignore[return-value]  # of the calls that give text
        except nv.NVMLLibraryMismatchError as error:  # a driver older than the binding; no NVMLError
            return None, error
        except nv.NVMLError as error:
            self.gone(error)
            self.failed += not isinstance(error, self._no_such)
            return None, error
        self.answered += 1
        return given, None

    def maybe(self, call: Callable[..., T], *args: Any) -> T | None:
        """What the call gives, None where it gives nothing. Raises as `tried`."""
        return self.tried(call, *args)[0]

    def is_none(self, error: Exception | None) -> bool:
        """Whether the error says that there is no such thing, and not that it cannot be said now."""
        return isinstance(error, (*self._no_such, self.nv.NVMLLibraryMismatchError))

    def memory(self, handle: Any) -> Any:
        """`total` and `used` in bytes, or None. Used is what programs hold, as `nvidia-smi` shows it; before driver 510
        what the driver keeps, too.
        """
        nv = self.nv
        if not self._plain_memory and hasattr(nv, "nvmlMemory_v2"):
            found, error = self.tried(nv.nvmlDeviceGetMemoryInfo, handle, nv.nvmlMemory_v2)
            if error is None or not self.is_none(error):
                return found
            self._plain_memory = isinstance(error, nv.NVMLError_FunctionNotFound)
        return self.maybe(nv.nvmlDeviceGetMemoryInfo, handle)


def text(value: str | bytes) -> str:
    """Older bindings give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def count_of(value: float | None, most: int = 2**63 - 1) -> int | None:
    """A count as the driver gives it, None where it cannot be one: drivers say all bits set for `not known`, and
    counters go astray.
    """
    return int(value) if value is not None and 0 <= value <= most else None
