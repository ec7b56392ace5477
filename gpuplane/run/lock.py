"""One supervisor a data folder: a file lock that the supervisor takes and its children inherit.

Invariants: the lock is free only when the supervisor and every child are gone, whatever killed them, since the kernel
drops it with the last open descriptor. So a start right after `kill -9` waits until port and socket are free.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

WAIT_SECONDS = 15.0
PAUSE_SECONDS = 0.05


class AlreadyRunning(Exception):
    """Another supervisor, or what is left of one, uses the data folder."""


def take(folder: Path) -> int:
    """The descriptor that holds the lock, for every child to inherit. Raises AlreadyRunning."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "run.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            if _alive(holder) or time.monotonic() > deadline:
                os.close(descriptor)
                raise AlreadyRunning(
                    f"gpuplane runs already on {folder} (process {holder or 'unknown'}).\n"
                    "Stop it, or set GPUPLANE_DATA_DIR and GPUPLANE_PORT for a second one."
                ) from None
            time.sleep(PAUSE_SECONDS)  # flock has no wait with a deadline
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor


def _holder(descriptor: int) -> int:
    """Process id in the file, 0 when it is not written yet."""
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdecimal() else 0


def _alive(process_id: int) -> bool:
    """Whether the process exists and is no zombie."""
    if not process_id:
        return False
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != "Z"
