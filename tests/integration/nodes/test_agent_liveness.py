"""Presence on both databases."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from pytest_django import Settings

from nodes import tasks
from nodes.live.agent_liveness import LISTENERS_KEY, Writer, listener_mark
from nodes.live.samples import LastHeard
from storage.clock import StepClock, database_now
from storage.redis_client import Purpose, client
from tests.factories import NodeFactory

pytestmark = pytest.mark.usefixtures("ledger_db")


@pytest.mark.parametrize("boot", ["\x00", "b" * 100], ids=["NUL", "too long"])
def test_a_boot_that_cannot_be_written_makes_nobody_look_silent(boot: str) -> None:
    """LEASE-5 one agent's odd boot costs no other node its presence (PostgreSQL takes no NUL, and bounds lengths)."""
    good, odd = NodeFactory(name="good"), NodeFactory(name="odd")
    Writer().write(heard={"good": LastHeard("b1", 0.0), "odd": LastHeard(boot, 0.0)}, now=database_now())
    good.refresh_from_db()
    odd.refresh_from_db()
    assert good.agent_seen_at is not None
    assert odd.agent_seen_at is not None


def test_a_clock_that_was_set_forward_makes_no_node_silent(
    redis_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-5 agents are heard again in seconds; one that says nothing is silent as long after the step as ever."""
    settings.GPUPLANE_REDIS_URL = redis_url
    began, ahead, monotonic = database_now(), [0.0], [0.0]
    node = NodeFactory(name="n1", agent_seen_at=began)
    clock = StepClock(read=lambda: began + timedelta(seconds=ahead[0] + monotonic[0]), monotonic=lambda: monotonic[0])
    monkeypatch.setattr(tasks, "CLOCK", clock)

    def state_after(seconds: float) -> str:
        monotonic[0] = seconds
        with client(redis_url, Purpose.WORK) as connection:
            connection.hset(LISTENERS_KEY, "web", listener_mark(started=began.timestamp() - 600, last=time.time()))
        tasks.notice_silent_agents()
        node.refresh_from_db()
        return str(node.state)

    assert state_after(0) == "ready"
    ahead[0] = 3600.0
    states = [state_after(5 + seconds) for seconds in (0, 9, 11, 41)]
    assert states == ["ready", "ready", "suspect", "not-ready"]
