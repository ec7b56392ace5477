"""The folder that all processes of one test session share, and the servers that live in it.

`enter()` is called when tests/conftest.py is imported: the first process (the controller under
pytest-xdist) makes the folder and passes it on by environment, workers and test subprocesses find
it. `once()` makes something a single time for all of them; `start()` starts a guarded server;
`leave()` stops the guards and removes the folder. What a killed session left is swept by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import select
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = "TESTS_SESSION_FOLDER"
_OWNER = "TESTS_SESSION_PID"
_PREFIX = "gpuplane-tests-"
_GUARD = Path(__file__).with_name("guard.py")
_started: set[int] = set()
"""Guards that are children of this process and not reaped yet."""


@dataclass(frozen=True, slots=True)
class ServerUser:
    """Who a server runs as. None: as ourselves."""

    uid: int | None = None
    gid: int | None = None


def enter() -> Path:
    """Find or make the session's folder. Idempotent."""
    known = os.environ.get(_FOLDER)
    if known and Path(known).is_dir():
        return Path(known)
    base = _base()
    _sweep(base)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
    folder.chmod(0o711)  # a server under another user must reach its own folder inside
    os.environ[_FOLDER] = str(folder)
    os.environ[_OWNER] = str(os.getpid())
    return folder


def leave() -> None:
    """Stop every server of the session and remove the folder. Only the process that made it does anything."""
    if os.environ.get(_OWNER) != str(os.getpid()):
        return
    folder = Path(os.environ[_FOLDER])
    for pidfile in folder.glob("*.guard"):
        _stop(int(pidfile.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    del os.environ[_FOLDER], os.environ[_OWNER]


def once(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The JSON value that `make` gave the first time any process of the session asked for `name`."""
    path = enter() / f"{name}.json"
    with locked(name):
        if not path.exists():
            path.write_text(json.dumps(make()))
        value: dict[str, Any] = json.loads(path.read_text())
        return value


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Alone among the session's processes."""
    with (enter() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def start(
    name: str,
    command: Sequence[str | Path],
    *,
    folder: Path,
    user: ServerUser | None = None,
    stop_signal: int = signal.SIGTERM,
    environment: dict[str, str] | None = None,
) -> int:
    """Start a server that ends with the session; gives its guard's pid. Its output is in `folder`/server.log."""
    who = user or ServerUser()
    as_user = [] if who.uid is None else ["--uid", str(who.uid), "--gid", str(who.gid)]
    words = [
        *(sys.executable, "-I", str(_GUARD), "--watch", os.environ[_OWNER], "--folder", str(folder), *as_user),
        *("--stop-signal", str(int(stop_signal)), "--", *map(str, command)),
    ]
    # Not subprocess.Popen, which complains when it is forgotten while its child runs: the guard outlives a worker.
    guard = os.posix_spawn(
        sys.executable,
        words,
        environment or dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
    )
    _started.add(guard)
    (enter() / f"{name}.guard").write_text(str(guard))
    return guard


def stop(name: str) -> None:
    """Stop one server before the session ends, and wait until it is gone."""
    pidfile = enter() / f"{name}.guard"
    _stop(int(pidfile.read_text()))
    pidfile.unlink()


def ended(pid: int) -> bool:
    """Whether a guard (and so its server) that this process started has ended."""
    if pid in _started and os.waitpid(pid, os.WNOHANG)[0] == pid:
        _started.remove(pid)
    return pid not in _started


def server_user() -> ServerUser:
    """Who runs a server that refuses root (PostgreSQL): `postgres` or `nobody` for root, else ourselves."""
    if os.geteuid() != 0:
        return ServerUser()
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return ServerUser(uid=entry.pw_uid, gid=entry.pw_gid)
    raise LookupError("run as root, with neither a user `postgres` nor `nobody` to run PostgreSQL under")


def _base() -> Path:
    """Where the folder goes: short (socket paths hold 107 bytes) and open to other users when we are root."""
    candidates = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")]
    for path in candidates:
        if len(str(path)) > 50 or not os.access(path, os.W_OK):
            continue
        if os.geteuid() != 0 or all(part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents)):
            return path
    return candidates[0]


def _sweep(base: Path) -> None:
    """Remove folders of sessions that were killed."""
    for path in base.glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(path, ignore_errors=True)


def _stop(pid: int) -> None:
    """SIGTERM to a guard, then wait for its end."""
    try:
        waiting = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    if waiting is not None:
        select.select([waiting], [], [], 30.0)
        os.close(waiting)
    if pid in _started:
        os.waitpid(pid, 0)
        _started.remove(pid)
