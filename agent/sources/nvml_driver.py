"""Calls of NVML: values, errors of one GPU, and a driver that is gone.

Used by the modules of the NVML source, in one thread at a time. Invariants: only a lost GPU and a driver that is gone
are raised, other errors are returned beside the value; owners of handles are called after each start of NVML.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog

from agent.protocol import BOUNDS
from agent.sources import SourceAway

T = TypeVar("T")

MOST_MEMORY: Final = BOUNDS["memory_used_bytes"][1]

NO_SUCH: Final = (
    "NVMLError_NotSupported",
    "NVMLError_FunctionNotFound",
    "NVMLError_NoPermission",
    "NVMLError_ArgumentVersionMismatch",
)
"""Errors that say that something is not available here."""

log = structlog.get_logger(__name__)


class Driver:
    """NVML in this program. `nv`: the binding."""

    def __init__(self, nv: Any) -> None:
        self.nv = nv
        self.answered = 0
        self.failed = 0
        """Calls that succeeded, and that failed for another reason than NO_SUCH; the caller resets them."""
        self._no_such = tuple(getattr(nv, name) for name in NO_SUCH if hasattr(nv, name))
        self._open = False
        self._may_be_reloaded = True
        """Whether the driver may have been reloaded since the last start."""
        self._plain_memory = False
        self._on_start: list[Callable[[bool], None]] = []

    def on_start(self, call: Callable[[bool], None]) -> None:
        """Register a call after each start of NVML, with True where the driver may have been reloaded."""
        self._on_start.append(call)

    def begin(self) -> None:
        """Start NVML unless it runs. Raises SourceAway."""
        if not self._open:
            self._start()

    def restart(self) -> None:
        """Restart NVML on the same driver, which invalidates handles and event sets. Raises SourceAway."""
        self.close()
        self._start()

    def _start(self) -> None:
        try:
            self.nv.nvmlInit()
        except self.nv.NVMLError as error:
            self._may_be_reloaded = self._may_be_reloaded or isinstance(error, self.nv.NVMLError_DriverNotLoaded)
            raise SourceAway(f"the driver does not answer: {error}") from error
        reloaded, self._may_be_reloaded = self._may_be_reloaded, False
        self._open = True
        self._plain_memory = False
        for call in self._on_start:
            call(reloaded)

    def close(self) -> None:
        """Stop NVML."""
        if self._open:
            self._open = False
            try:
                self.nv.nvmlShutdown()
            except self.nv.NVMLError as error:
                log.info("nvml.shutdown", error=str(error))

    def gone(self, error: Exception) -> None:
        """Raise SourceAway if the error is that the driver is gone."""
        if isinstance(error, (self.nv.NVMLError_Uninitialized, self.nv.NVMLError_DriverNotLoaded)):
            self._may_be_reloaded = True
            self.close()
            raise SourceAway(f"the driver has gone: {error}") from error

    def sure(self, call: Callable[[], T]) -> T:
        """The result of the call. Raises SourceAway for any error."""
        try:
            return call()
        except self.nv.NVMLError as error:
            self.gone(error)
            self.close()
            raise SourceAway(f"the driver does not answer: {error}") from error

    def tried(self, call: Callable[..., T], *args: Any) -> tuple[T | None, Exception | None]:
        """(result, None) or (None, error). Raises NVMLError_GpuIsLost, SourceAway."""
        nv = self.nv
        try:
            given = call(*args)
        except nv.NVMLError_GpuIsLost:
            raise
        except UnicodeDecodeError as error:  # names of programs may be any bytes
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
        """The result of the call, None for an error. Raises NVMLError_GpuIsLost, SourceAway."""
        return self.tried(call, *args)[0]

    def is_none(self, error: Exception | None) -> bool:
        """Whether the error says that something is not available here, not that it failed now."""
        return isinstance(error, (*self._no_such, self.nv.NVMLLibraryMismatchError))

    def memory(self, handle: Any) -> Any:
        """`total` and `used` in bytes, or None. `used` is of programs, as in `nvidia-smi`; before driver 510 with the
        driver's own.
        """
        nv = self.nv
        if not self._plain_memory and hasattr(nv, "nvmlMemory_v2"):
            found, error = self.tried(nv.nvmlDeviceGetMemoryInfo, handle, nv.nvmlMemory_v2)
            if error is None or not self.is_none(error):
                return found
            self._plain_memory = isinstance(error, nv.NVMLError_FunctionNotFound)
        return self.maybe(nv.nvmlDeviceGetMemoryInfo, handle)


def text(value: str | bytes) -> str:
    """Text of a binding, which may be bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def count_of(value: float | None, most: int = 2**63 - 1) -> int | None:
    """A driver's count, None where it is invalid: drivers set all bits for `unknown`."""
    return int(value) if value is not None and 0 <= value <= most else None
