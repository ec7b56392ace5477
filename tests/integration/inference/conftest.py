"""A small world of slots without a cluster, on SQLite in memory; and a gateway's dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from pytest_django import Settings

from gpuplane.listeners.gateway import dispatcher as dispatcher_module
from gpuplane.listeners.gateway.dispatcher import Dispatcher
from inference.dispatch.records import Recheck, Round, Step
from inference.dispatch.rounds import dispatch
from tests import ledger_truth
from tests.databases import TestDatabase
from tests.gateway import ready_slots
from tests.integration.inference.dispatchers import Clock
from tests.slots import SlotWorld, problems


@pytest.fixture
def world(db: None, redis_url: str, settings: Settings) -> SlotWorld:
    settings.GPUPLANE_REDIS_URL = redis_url
    return SlotWorld()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def dispatcher(
    ledger_db: TestDatabase, redis_url: str, settings: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Dispatcher]:
    settings.GPUPLANE_REDIS_URL = redis_url
    monkeypatch.setattr(dispatcher_module, "AGAIN_SECONDS", 0.05)

    def world() -> None:
        made = SlotWorld()
        made.runner(gpus=1, memory=40)
        made.model(parallel=1)
        ready_slots(made, "127.0.0.1:1")

    await asyncio.to_thread(world)
    found = Dispatcher(queue_seconds=30, queue_length=10, clock=clock)
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the dispatcher reports, round by round, but for the looks that it takes each second."""
    found: list[list[str]] = []

    def noted(steps: Sequence[Step], **about: Any) -> Round:
        if told := sorted(type(step).__name__ for step in steps if not isinstance(step, Recheck)):
            found.append(told)
        return dispatch(steps, **about)

    monkeypatch.setattr(dispatcher_module, "dispatch", noted)
    return found


def all_is_well() -> None:
    """Ledger and slots say the same."""
    assert ledger_truth.problems() == []
    assert problems() == []
