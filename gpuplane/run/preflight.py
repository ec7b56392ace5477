"""Checks and chooses addresses, the children's environment and the embedded Redis's socket.

Used by the supervisor before it starts anything. Every refusal says what to do.
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

from gpuplane.listeners.plan import ListenAddress
from gpuplane.run.redis import LONGEST_SOCKET_PATH

ROOT = Path(__file__).resolve().parent.parent.parent
PORT_WAIT_SECONDS = 3.0
LOOPBACK = "127.0.0.1,localhost"


class CannotRun(Exception):
    """Something on this machine prevents a run; the text says what, and what to do."""


def choose_port(host: str, port: int) -> int:
    """The port, or a free one for 0."""
    if port:
        return port
    with _socket(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def check_free(listeners: Iterable[ListenAddress]) -> None:
    """Raises CannotRun when an address is in use."""
    deadline = time.monotonic() + PORT_WAIT_SECONDS
    for listener in listeners:
        while (problem := _bind_problem(listener)) is not None:
            if time.monotonic() > deadline:
                address = f"{listener.host}:{listener.port}"
                raise CannotRun(
                    f"the {listener.name} listener cannot open {address}: {problem}\n{_ADVICE[listener.name]}"
                )
            time.sleep(0.1)  # the address of a server that has just ended may be in use for a moment


_ADVICE = {
    "main": "Set GPUPLANE_PORT to another port, or to 0 for any free one.",
    "extender": "Set GPUPLANE_EXTENDER_LISTEN to another address.",
    "webhook": "Set GPUPLANE_WEBHOOK_LISTEN to another address.",
}


def _bind_problem(listener: ListenAddress) -> str | None:
    try:
        with _socket(listener.host) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((listener.host, listener.port))
    except OSError as error:
        return error.strerror or str(error)
    return None


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)


def redis_url(data_dir: Path) -> str:
    """Address of the embedded Redis: a socket in the data folder, or in a temporary one where its path would be too
    long for the kernel. Raises CannotRun.
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
    """The children's environment: the supervisor's, with what was chosen, and its Python first on PATH."""
    return os.environ | {
        "GPUPLANE_DATA_DIR": str(data_dir),
        "GPUPLANE_PORT": str(port),
        "GPUPLANE_REDIS_URL": redis,
        "DJANGO_SETTINGS_MODULE": "gpuplane.settings",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()]),
        "PYTHONUNBUFFERED": "1",
        # the processes call each other, which no proxy of the machine can do for them
        **{name: ",".join(filter(None, (os.environ.get(name), LOOPBACK))) for name in ("NO_PROXY", "no_proxy")},
    }
