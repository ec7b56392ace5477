"""Open sockets when an account changes: which are closed, and which a fault elsewhere leaves alone."""

from __future__ import annotations

import pytest
from django.db import DatabaseError
from structlog.testing import capture_logs

from access import sockets, tokens
from access.sockets import OpenSocket, Sockets

pytestmark = pytest.mark.django_db(transaction=True)
"""Threads that look tokens up take care of their connections, though the look-up is replaced here."""


class World:
    """Sockets by name, and which were closed, in this order."""

    def __init__(self) -> None:
        self.sockets = Sockets()
        self.closed: list[str] = []

    def by_token(self, name: str) -> None:
        self.sockets.opened(OpenSocket("ada", lambda: self.closed.append(name), token=name, node="n1"))

    def by_session(self, name: str, *, answer: bool | Exception) -> None:
        async def check() -> bool:
            if isinstance(answer, Exception):
                raise answer
            return answer

        self.sockets.opened(OpenSocket("ada", lambda: self.closed.append(name), check=check))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(tokens, "valid_tokens", lambda digests, now: {})
    monkeypatch.setattr(sockets, "database_now", lambda: None)
    return World()


async def test_a_check_that_fails_keeps_no_other_socket_open(world: World) -> None:
    """VIEW-6 every other socket that is not valid any more is closed, and the fault is logged."""
    for number in range(3):
        world.by_session(f"ended {number}", answer=False)
        world.by_session(f"fails {number}", answer=ValueError("a session that cannot be decoded"))
        world.by_session(f"valid {number}", answer=True)
    world.by_token("revoked")
    with capture_logs() as logs:
        assert await world.sockets.check(frozenset({"ada"})) == 4
    assert world.closed[0] == "revoked"
    assert sorted(world.closed[1:]) == ["ended 0", "ended 1", "ended 2"]
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["access.socket_unchecked"] * 3


async def test_a_database_that_is_away_closes_no_socket(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-6 those by token stay open; those by session are checked all the same."""

    def away() -> None:
        raise DatabaseError("away")

    monkeypatch.setattr(sockets, "database_now", away)
    world.by_token("unknown")
    world.by_session("ended", answer=False)
    assert await world.sockets.check(frozenset({"ada"})) == 1
    assert world.closed == ["ended"]
