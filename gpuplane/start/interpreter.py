"""Tunes the interpreter and the memory allocator of the web process, in which short requests run beside long ones.

`interpreter_set` is called by `gpuplane.serve` at the start; listeners hold `SHORT_SWITCH_INTERVAL` while a thread
works on what may take long. Another C library's allocator than glibc's stays as it is.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Final

SWITCH_SECONDS: Final = 0.005
"""How long a thread keeps the interpreter while others wait for it: Python's default."""
SHORT_SWITCH_SECONDS: Final = 0.0005
"""The same beside long work: filter waits for the interpreter a dozen times a request. Always so short, it would cost a
bind 5 % of its CPU."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Names of `mallopt`, as in glibc's malloc.h."""
LARGE_BYTES: Final = 128 * 1024
"""Blocks of this size, such as request bodies, are mapped, and go back to the system when they are freed. glibc would
raise the size with the first large block that is freed."""
KEPT_BYTES: Final = 16 << 20
"""Free memory that an arena keeps at its end. With glibc's 128 KiB a bind returned pages and requested them again: a
sixth of its CPU."""
ARENAS: Final = 2
"""glibc would use eight for each core, and keep the memory of each."""


class ShortSwitchInterval:
    """While any thread is inside, threads switch often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                sys.setswitchinterval(SHORT_SWITCH_SECONDS)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(SWITCH_SECONDS)


SHORT_SWITCH_INTERVAL: Final = ShortSwitchInterval()


def interpreter_set() -> None:
    """Set the allocator, for the rest of the process."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_ARENA_MAX, ARENAS)
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
