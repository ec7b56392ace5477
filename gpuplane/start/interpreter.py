"""How the web process's interpreter and its memory allocator are set, for a process in which short requests run beside long ones.

`interpreter_set` is called by `gpuplane.serve` before anything else runs; `SHORT_TURNS` is held by the doors while a thread works on
what may take long. Where the C library is not glibc its allocator stays as it is.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from types import TracebackType
from typing import Final

TURN_SECONDS: Final = 0.005
"""How long a thread keeps the interpreter while others want it: Python's own default."""
SHORT_TURN_SECONDS: Final = 0.0005
"""The same beside long work: filter asks for the interpreter a dozen times a request. Always so short it costs a bind 5 % of its CPU."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Names of `mallopt`, as in glibc's malloc.h."""
LARGE_BYTES: Final = 128 * 1024
"""Blocks of this size have pages of their own, which go back to the system when they are freed, as request bodies are. glibc would raise the
size with the first large block that is freed."""
ARENAS: Final = 2
"""glibc would keep the memory of each of eight times as many arenas as there are cores."""


class ShortTurns:
    """While any thread is within it, threads take short turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                sys.setswitchinterval(SHORT_TURN_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(TURN_SECONDS)


SHORT_TURNS: Final = ShortTurns()


def interpreter_set() -> None:
    """Set the allocator, for the rest of the process."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_ARENA_MAX, ARENAS)
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, LARGE_BYTES)
