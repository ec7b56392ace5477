"""The real web process, with a database of its own, for functional and browser tests.

The fixture `live_app` (tests/conftest.py) gives one a test module. Django in the test's process is
swapped to the same database, so that factories fill it and assertions read what the process committed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from access import tokens
from access.choices import Role, TokenScope
from tests.databases import TestDatabase, connected
from tests.factories import UserFactory
from tests.servers import session

START_SECONDS = 60.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LiveApp:
    """A running web process. `url` has no slash at its end."""

    url: str
    database: TestDatabase
    log: Path
    stop: Callable[[], None]
    """End the process."""
    start: Callable[[], None]
    """Start it again at the same address, once it was stopped."""

    def token(
        self,
        *,
        role: Role = Role.ADMIN,
        scope: TokenScope = TokenScope.REST,
        node: str = "",
        namespaces: tuple[str, ...] = (),
    ) -> str:
        """An API token of a fresh account: a person's, or a machine's of another scope."""
        return tokens.issue(UserFactory(role=role, scope=scope, node=node, namespaces=namespaces))

    @contextlib.contextmanager
    def client(self, *, role: Role = Role.ADMIN, scope: TokenScope = TokenScope.REST) -> Iterator[httpx.Client]:
        """A client with a token of a fresh account."""
        bearer = {"Authorization": f"Bearer {self.token(role=role, scope=scope)}"}
        with httpx.Client(base_url=self.url, headers=bearer, timeout=30) as client:
            yield client

    @contextlib.contextmanager
    def cluster(self) -> Iterator[httpx.Client]:
        """A client that brings to each of the cluster's paths the token of its scope, and none anywhere else."""
        given = {f"/{scope.value}/": self.token(scope=scope) for scope in (TokenScope.EXTENDER, TokenScope.WEBHOOKS)}

        def bring(request: httpx.Request) -> httpx.Request:
            for prefix, token in given.items():
                if request.url.path.startswith(prefix):
                    request.headers.setdefault("Authorization", f"Bearer {token}")
            return request

        with httpx.Client(base_url=self.url, auth=bring, timeout=30) as client:
            yield client


@contextlib.contextmanager
def running(
    *,
    vendor: str,
    folder: Path,
    redis_url: str,
    settings: dict[str, str] | None = None,
    module: str = "gpuplane.serve",
) -> Iterator[LiveApp]:
    """Start `python -m <module>`, wait until it answers, stop it at the end. `settings`: further variables."""
    with (
        connected(vendor, folder) as database,
        on_database(database, redis_url, settings=settings, module=module) as app,
    ):
        yield app


@contextlib.contextmanager
def on_database(
    database: TestDatabase, redis_url: str, *, settings: dict[str, str] | None = None, module: str = "gpuplane.serve"
) -> Iterator[LiveApp]:
    """`running`, on a database that is there already: beside another, say."""
    name = f"web-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{next(_numbers)}"
    place = session.enter() / name
    port = _free_port()
    environment = {
        **database.environment,
        "GPUPLANE_PORT": str(port),
        "GPUPLANE_REDIS_URL": redis_url,
        "GPUPLANE_SIMULATE": "0",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        **(settings or {}),
    }
    url, log = f"http://127.0.0.1:{port}", place / "server.log"

    def start() -> None:
        place.mkdir(exist_ok=True)  # a server that is stopped takes its folder along
        guard = session.start(name, [sys.executable, "-m", module], folder=place, environment=environment)
        _wait(url, log, guard)

    start()
    try:
        yield LiveApp(url, database, log, stop=lambda: session.stop(name), start=start)
    finally:
        with contextlib.suppress(FileNotFoundError):  # stopped already
            session.stop(name)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(url: str, log: Path, guard: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and not session.ended(guard):
        try:
            httpx.get(f"{url}/livez", timeout=5)
        except httpx.TransportError:
            time.sleep(0.05)  # the process announces its door to nobody but its log
        else:
            return
    raise RuntimeError(f"the web process did not start:\n{log.read_text()}")
