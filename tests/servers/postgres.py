"""A throwaway PostgreSQL: the binaries of the `pgserver` wheel or the system's, root or not.

One server a session, shared by the workers of pytest-xdist; nothing is made durable. Used by
`tests.databases` and, with `session.enter()` and `session.leave()` around it, by `make bench`.
PostgreSQL refuses root: then it runs as `postgres` or `nobody`, from a copy of the binaries where
that user cannot reach them.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from tests.servers import session

OLDEST = 14
"""Django 5.2 asks for PostgreSQL 14."""
START_SECONDS = 60.0


class NoPostgres(Exception):
    """This machine has no PostgreSQL; the text says what to install."""


def server_url() -> str:
    """`postgres://user:password@127.0.0.1:port` of the session's server, started if need be. Raises NoPostgres."""
    return str(session.once("postgres", _start)["url"])


def expected() -> bool:
    """Whether this platform has the wheel, so that a missing PostgreSQL is a failure and not a reason to skip."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 13)


def _binaries() -> Path:
    """The folder with `initdb` and `postgres`."""
    if given := os.environ.get("GPUPLANE_TEST_POSTGRES_BIN"):
        return Path(given)
    candidates = []
    wheel = importlib.util.find_spec("pgserver")  # found, not imported: importing it starts things
    if wheel is not None and wheel.origin:
        candidates.append(Path(wheel.origin).parent / "pginstall" / "bin")
    installed = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdecimal()]
    candidates += sorted(installed, key=lambda path: int(path.parent.name), reverse=True)
    if found := shutil.which("postgres"):
        candidates.append(Path(found).resolve().parent)
    for folder in candidates:
        if (folder / "initdb").exists() and (folder / "postgres").exists() and _version(folder) >= OLDEST:
            return folder
    raise NoPostgres(
        f"no PostgreSQL {OLDEST} or newer: install the `pgserver` wheel or the system's `postgresql` package"
    )


def _version(folder: Path) -> int:
    said = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    number = re.search(r"\d+", said)
    return int(number[0]) if number else 0


def _reachable(binaries: Path, folder: Path, user: session.ServerUser) -> Path:
    """The binaries, or a copy of them where `user` cannot run them in place."""
    if user.uid is None:
        return binaries
    try:
        subprocess.run(
            [binaries / "initdb", "--version"],
            capture_output=True,
            check=True,
            user=user.uid,
            group=user.gid,
            extra_groups=[],
            cwd=folder,
        )
    except (PermissionError, FileNotFoundError, subprocess.CalledProcessError):
        # The wheel keeps its libraries in a sibling folder that the binaries find relative to themselves.
        package = binaries.parent.parent if binaries.parent.name == "pginstall" else binaries.parent
        copy = folder / "programs"
        shutil.copytree(package, copy / package.name, symlinks=False)
        libraries = package.with_name("pgserver.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        return copy / package.name / binaries.relative_to(package)
    return binaries


def _start() -> dict[str, str]:
    folder = session.enter() / "postgres"
    folder.mkdir(mode=0o700)
    user = session.server_user()
    if user.uid is not None and user.gid is not None:
        os.chown(folder, user.uid, user.gid)
    binaries = _reachable(_binaries(), folder, user)
    password = secrets.token_hex(16)
    secret = folder / "password"
    secret.write_text(password)
    secret.chmod(0o644)  # the folder is closed to others
    made = subprocess.run(
        [
            *(binaries / "initdb", "--pgdata", folder / "data", "--username", "gpuplane", "--encoding", "UTF8"),
            # SCRAM costs both sides of each connection 4,096 rounds; the password is random and the address loopback
            *("--auth", "md5", "--pwfile", secret, "--no-sync", "--no-locale"),
        ],
        capture_output=True,
        text=True,
        check=False,
        user=user.uid,
        group=user.gid,
        extra_groups=[] if user.uid is not None else None,
        cwd=folder,
    )
    if made.returncode:
        raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")
    for _ in range(5):
        port = _free_port()
        guard = session.start(
            "postgres", _command(binaries, folder, port), folder=folder, user=user, stop_signal=signal.SIGINT
        )
        url = f"postgres://gpuplane:{password}@127.0.0.1:{port}"
        if _answers(url, guard):
            return {"url": url}
    raise RuntimeError(f"PostgreSQL did not start:\n{(folder / 'server.log').read_text()}")


def _command(binaries: Path, folder: Path, port: int) -> list[str | Path]:
    settings = {
        "listen_addresses": "127.0.0.1",
        "port": port,
        "unix_socket_directories": folder,
        "max_connections": 300,
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
        "autovacuum": "off",
        "jit": "off",
        "shared_buffers": "128MB",
        "dynamic_shared_memory_type": "mmap",  # containers often give /dev/shm 64 MB
        "log_min_messages": "warning",
        "log_min_error_statement": "panic",
    }
    flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    return [binaries / "postgres", "-D", folder / "data", *flags]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str, guard: int) -> bool:
    """Wait until the server takes connections; False when it ended instead (its port was taken meanwhile)."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if session.ended(guard):
            return False
        try:
            psycopg.connect(f"{url}/postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            time.sleep(0.02)  # PostgreSQL announces readiness to nobody but its log
        else:
            return True
    return False
