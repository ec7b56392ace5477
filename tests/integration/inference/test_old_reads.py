"""Reads of the database that come back once the request has gone on."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from allocations.models import Allocation
from gpuplane.listeners.gateway import dispatcher as dispatcher_module
from gpuplane.listeners.gateway.dispatcher import Dispatcher
from inference.choices import RequestState, State
from inference.dispatch import reading
from inference.models import Slot
from tests.integration.inference.dispatchers import Clock, flight, states, until

pytestmark = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)


class Held:
    """The first read that finds something is held back until `go_on`."""

    def __init__(self, read: Callable[[Any], Any], found: Callable[[Any], bool]) -> None:
        self._read, self._found = read, found
        self.done, self.go_on, self.back = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, asked: Any) -> Any:
        answer = self._read(asked)
        if not self.done.is_set() and self._found(answer):
            self.done.set()
            self.go_on.wait(30)
        elif self.done.is_set():
            self.back.set()
        return answer


async def test_a_place_that_was_refused_meanwhile(
    dispatcher: Dispatcher, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-9 the request waits, as the database says, and is not sent to the slot that refused it."""
    held = Held(reading.requests_seen, lambda seen: any(one.place for one in seen.values()))
    monkeypatch.setattr(dispatcher_module, "requests_seen", held)
    await asyncio.to_thread(lambda: Slot.objects.update(state=State.STARTING))
    mine = flight(clock)
    waits = asyncio.create_task(dispatcher.place(mine))
    await until(lambda: states() == ["waiting"])
    await asyncio.to_thread(lambda: Slot.objects.update(state=State.READY))  # as a report does
    dispatcher._woken("chat")
    await waits  # placed by the round of that look
    assert await asyncio.to_thread(held.done.wait, 30)
    again = asyncio.create_task(dispatcher.place_again(mine, "the slot takes no requests"))
    await until(lambda: states() == ["waiting"])
    held.go_on.set()
    assert await asyncio.to_thread(held.back.wait, 30)  # the next look has read
    assert not again.done()
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    dispatcher.close(mine, RequestState.CANCELLED)


async def test_a_slot_that_was_left_meanwhile(
    dispatcher: Dispatcher, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-9 the end of a slot is the end of the requests that are in it, not of those that went on to another."""
    held = Held(reading.lost_requests, bool)
    monkeypatch.setattr(dispatcher_module, "lost_requests", held)
    mine = flight(clock)
    first = await dispatcher.place(mine)
    await asyncio.to_thread(_second_slot)
    await asyncio.to_thread(lambda: Slot.objects.filter(pk=first.slot).update(state=State.FAILED, reason="died"))
    dispatcher._woken("chat")
    assert await asyncio.to_thread(held.done.wait, 30)
    assert (await dispatcher.place_again(mine, "the connection was closed")).slot == "other"
    held.go_on.set()
    dispatcher._woken("chat")
    with mine.cuts():  # the answer of the other slot is on its way
        assert await asyncio.to_thread(held.back.wait, 30)
    dispatcher.close(mine, RequestState.DONE)


def _second_slot() -> None:
    allocation = Allocation.objects.get()
    allocation.id, allocation.holder = uuid.uuid4(), "slot/chat/other"
    allocation.save(force_insert=True)
    slot = Slot.objects.get()
    slot.pk, slot.allocation, slot.address, slot.active = "other", allocation, "127.0.0.1:2", 0
    slot.save(force_insert=True)
