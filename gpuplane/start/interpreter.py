"""How the web process's interpreter and its memory allocator are set, for a process in which short requests run beside long ones.

Called by `gpuplane.serve` before anything else runs. Where the C library is not glibc its allocator stays as it is.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.0005
"""How long a thread keeps the interpreter while others want it, a tenth of the default: filter asks for it a dozen times a request."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Names of `mallopt`, as in glibc's malloc.h."""
LARGE_BYTES: Final = 128 * 1024
"""Blocks of this size have pages of their own, which go back to the system when they are freed, as request bodies are. glibc would raise the
size with the first large block that is freed."""
ARENAS: Final = 2
"""glibc would keep the memory of each of eight times as many arenas as there are cores."""


def interpreter_set() -> None:
    """Set both, for the rest of the process."""
    sys.setswitchinterval(SWITCH_SECONDS)
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_ARENA_MAX, ARENAS)
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, LARGE_BYTES)
