"""Prepares what the children run in: addresses checked and chosen, environment, the embedded Redis's socket.

Used by the runner before it starts anything. Every refusal is a sentence that says what to do.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from gpuplane.doors.plan import Door
from gpuplane.run.redis import LONGEST_SOCKET_PATH

ROOT = Path(__file__).resolve().parent.parent.parent
PORT_WAIT_SECONDS = 3.0


class CannotRun(Exception):
    """Something on this machine stands in the way; the text says what and what to do."""


def choose_port(host: str, port: int) -> int:
    """The port, or a free one for 0."""
    if port:
        return port
    with _socket(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_free(doors: Iterable[Door]) -> None:
    """Refuse when somebody listens on an address already. Raises CannotRun."""
    deadline = time.monotonic() + PORT_WAIT_SECONDS
    for door in doors:
        while (problem := _bind_problem(door)) is not None:
            if time.monotonic() > deadline:
                raise CannotRun(
                    f"the {door.name} door cannot listen on {door.host}:{door.port}: {problem}\n{_ADVICE[door.name]}"
                )
            time.sleep(0.1)  # a server that has just ended may leave its address for a moment


_ADVICE = {
    "main": "Set GPUPLANE_PORT to another port, or to 0 for any free one.",
    "extender": "Set GPUPLANE_EXTENDER_LISTEN to another address.",
    "webhook": "Set GPUPLANE_WEBHOOK_LISTEN to another address.",
}


def _bind_problem(door: Door) -> str | None:
    try:
        with _socket(door.host) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((door.host, door.port))
    except OSError as error:
        return error.strerror or str(error)
    return None


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)


def redis_url(data_dir: Path) -> str:
    """Address of the embedded Redis: a socket in the data folder, or where its path would be too long for
    the kernel, in a folder of ours under the temporary one. Raises CannotRun.
    """
    path = data_dir / "redis.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return f"unix://{path}"
    name = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]
    folder = Path(tempfile.gettempdir()) / f"gpuplane-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CannotRun(f"{folder} belongs to somebody else; set a shorter GPUPLANE_DATA_DIR")
    return f"unix://{folder / 'redis.sock'}"


def environment(*, data_dir: Path, port: int, redis: str) -> dict[str, str]:
    """The children's environment: ours, with what was chosen, and our Python first on PATH."""
    own = str(Path(sys.executable).parent)
    return os.environ | {
        "GPUPLANE_DATA_DIR": str(data_dir),
        "GPUPLANE_PORT": str(port),
        "GPUPLANE_REDIS_URL": redis,
        "DJANGO_SETTINGS_MODULE": "gpuplane.settings",
        "PATH": os.pathsep.join([own, *os.get_exec_path()]),
        "PYTHONUNBUFFERED": "1",
    }
