"""The real web process, with a database of its own, for functional and browser tests.

The fixture `live_app` (tests/conftest.py) gives one a test module. Django in the test's process is
swapped to the same database, so that factories fill it and assertions read what the process committed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from django.conf import settings as django_settings

from access import tokens
from access.choices import Role, TokenScope
from tests.databases import TestDatabase, connected
from tests.factories import UserFactory
from tests.servers import forked, session

START_SECONDS = 60.0
STOP_SECONDS = 15.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class LiveApp:
    """A running web process. `url` has no slash at its end.

    Its clients read no certificates: they speak plain HTTP, and reading takes 20 ms of CPU.
    """

    url: str
    database: TestDatabase
    log: Path
    stop: Callable[[], None]
    """End the process."""
    start: Callable[[], None]
    """Start it again at the same address, once it was stopped."""
    kill: Callable[[], None]
    """End a forked one by SIGKILL."""
    pid: Callable[[], int]
    """Of a forked one that runs."""

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
        with httpx.Client(base_url=self.url, headers=bearer, timeout=30, verify=False) as client:
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

        with httpx.Client(base_url=self.url, auth=bring, timeout=30, verify=False) as client:
            yield client


@contextlib.contextmanager
def running(
    *,
    vendor: str,
    folder: Path,
    redis_url: str,
    settings: dict[str, str] | None = None,
    module: str = "gpuplane.serve",
    is_forked: bool = False,
) -> Iterator[LiveApp]:
    """Start `python -m <module>`, wait until it answers, stop it at the end. `settings`: further variables.

    `is_forked`: by the fork server, for what does not measure the process; `tests.servers.serving` in place of the
    product's module.
    """
    with (
        connected(vendor, folder) as database,
        on_database(database, redis_url, settings=settings, module=module, is_forked=is_forked) as app,
    ):
        yield app


@contextlib.contextmanager
def on_database(
    database: TestDatabase,
    redis_url: str,
    *,
    settings: dict[str, str] | None = None,
    module: str = "gpuplane.serve",
    is_forked: bool = False,
) -> Iterator[LiveApp]:
    """`running`, on a database that is there already: beside another, say."""
    name = f"web-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}-{next(_numbers)}"
    place = session.enter() / name
    port = _free_port()
    environment = {
        **database.environment,
        "GPUPLANE_PORT": str(port),
        "GPUPLANE_REDIS_URL": redis_url,
        "GPUPLANE_SECRET_KEY": django_settings.SECRET_KEY,  # a session that a test makes is good there
        "GPUPLANE_SIMULATE": "0",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        **(settings or {}),
    }
    url, log = f"http://127.0.0.1:{port}", place / "server.log"

    processes: list[forked.Process] = []

    def start() -> None:
        place.mkdir(exist_ok=True)  # a server that is stopped takes its folder along
        if is_forked:
            processes.append(
                forked.start("tests.servers.serving", environment=environment, folder=place, log=log, new_session=True)
            )
            _wait(url, log, lambda: processes[-1].poll() is not None)
        else:
            guard = session.start(name, [sys.executable, "-m", module], folder=place, environment=environment)
            _wait(url, log, lambda: session.ended(guard))

    def stop(number: int = signal.SIGTERM) -> None:
        while processes:
            with processes.pop() as process:
                process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_SECONDS)
            shutil.rmtree(place, ignore_errors=True)
        if not is_forked:
            with contextlib.suppress(FileNotFoundError):  # stopped already
                session.stop(name)

    try:
        start()
        yield LiveApp(
            url,
            database,
            log,
            stop=stop,
            start=start,
            kill=partial(stop, signal.SIGKILL),
            pid=lambda: processes[-1].pid,
        )
    finally:
        stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(url: str, log: Path, has_ended: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    with httpx.Client(base_url=url, timeout=5, verify=False) as client:
        while time.monotonic() < deadline and not has_ended():
            try:
                client.get("/livez")
            except httpx.TransportError:
                time.sleep(0.05)  # the process announces its door to nobody but its log
            else:
                return
    raise RuntimeError(f"the web process did not start:\n{log.read_text()}")
