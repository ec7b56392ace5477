"""What the web process keeps open does not grow with the requests that it answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import httpx
import pytest
from django.conf import settings
from redis import Redis

from access.choices import Role, TokenScope
from agent.protocol import Frame, Inventory, Sample, encode
from tests import access_matrix
from tests.factories import UserFactory, session_of
from tests.servers import redis
from tests.servers.web import LiveApp

NODE = "steady"
WARM_ROUNDS, ROUNDS = 2, 4
MORE = 3
"""A connection or a thread that is only now needed is no leak; one for each path of each round is."""
PATHS = sorted(
    path for path in access_matrix.DJANGO if "<" not in path and not path.startswith(("admin/", "login/", "accounts/"))
)
NODE_PATHS = (f"api/v1/nodes/{NODE}/", f"nodes/{NODE}/", f"nodes/{NODE}/devices/")


@dataclass(frozen=True, slots=True)
class Open:
    """What a process has: numbers."""

    descriptors: int
    threads: int
    redis_clients: int

    def more_than(self, before: Open) -> dict[str, int]:
        """What grew by more than `MORE`."""
        grew = {one.name: getattr(self, one.name) - getattr(before, one.name) for one in fields(self)}
        return {name: number for name, number in grew.items() if number > MORE}


def _open(app: LiveApp) -> Open:
    process = Path(f"/proc/{app.pid()}")
    with Redis.from_url(redis.server_url("web")) as client:
        clients = len(client.client_list())
    return Open(len(list((process / "fd").iterdir())), len(list((process / "task").iterdir())), clients)


@pytest.fixture
def browser(live_app: LiveApp) -> Iterator[httpx.Client]:
    """A signed-in admin without a token."""
    cookies = {settings.SESSION_COOKIE_NAME: session_of(UserFactory(role=Role.ADMIN)).session_key or ""}
    with httpx.Client(base_url=live_app.url, cookies=cookies, timeout=30, verify=False) as client:
        yield client


class Agent:
    """The node's, which posts one frame after the other."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._numbers = itertools.count(1)
        self.post(Inventory("b", next(self._numbers), time.time(), _inventory()))

    def post(self, frame: Frame) -> None:
        """One that has to be taken, or comes too soon after another."""
        answer = self._client.post(f"/api/v1/agents/{NODE}/samples/", content=encode(frame))
        assert answer.status_code in {200, 429}, answer.text

    def sample(self) -> None:
        """The next one."""
        number = next(self._numbers)
        self.post(Sample("b", number, time.time(), utilisation_percent=[number % 100], devices=["GPU-steady"]))


@pytest.fixture
def agent(live_app: LiveApp) -> Iterator[Agent]:
    """Of the node `NODE`, registered."""
    bearer = {"Authorization": f"Bearer {live_app.token(scope=TokenScope.AGENT, node=NODE)}"}
    headers = {**bearer, "Content-Type": "application/msgpack"}
    with httpx.Client(base_url=live_app.url, headers=headers, timeout=30, verify=False) as client:
        yield Agent(client)


def _inventory() -> dict[str, object]:
    return {"name": NODE, "devices": [{"minor": 0, "uuid": "GPU-steady", "model": "H100", "memory": "80Gi"}]}


def test_requests_leave_nothing_open(live_app: LiveApp, browser: httpx.Client, agent: Agent) -> None:
    """NODE-2 VIEW-1 every page and list again and again, between frames of an agent: reads of samples left a flusher
    with a Redis client each.
    """
    with live_app.client() as rest:

        def go_round() -> int:
            found = 0
            for path in (*PATHS, *NODE_PATHS):
                client = rest if path.startswith("api/") else browser
                answer = client.get(f"/{path}")
                assert answer.status_code < 500, (path, answer.text)
                found += answer.status_code == 200
                agent.sample()
            return found

        found = [go_round() for _ in range(WARM_ROUNDS)]
        before = _open(live_app)
        found += [go_round() for _ in range(ROUNDS)]
        after = _open(live_app)
    assert after.more_than(before) == {}
    assert min(found) > len(PATHS) / 2, "most paths were answered"
