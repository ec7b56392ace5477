"""Tunes the memory allocator of the web process, in which short requests run beside long ones.

Called by `gpuplane.serve` at the start. Another C library's allocator than glibc's stays as it is.
"""

from __future__ import annotations

import ctypes
from typing import Final

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


def tune_allocator() -> None:
    """Set how the allocator keeps memory, for the rest of the process."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_ARENA_MAX, ARENAS)
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
