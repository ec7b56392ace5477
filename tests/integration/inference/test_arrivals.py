"""Requests that a web process places from its event loop, on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest
from django.db import connection, transaction

from gpuplane.listeners.answers import Refused
from gpuplane.listeners.gateway import dispatcher as dispatcher_module
from gpuplane.listeners.gateway.dispatcher import Dispatcher
from gpuplane.listeners.gateway.flights import ClientLeft, Flight
from inference.choices import RequestState
from inference.models import Request, Slot
from storage.loop_connection import LoopConnection
from tests.databases import backend_of, end_backend, somebody_waits_for_a_lock
from tests.integration.inference.dispatchers import Clock, flight, states, until

pytestmark = pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)


@pytest.fixture
async def connected(dispatcher: Dispatcher) -> LoopConnection:
    """Its connection, once there is one."""
    found = dispatcher._arrivals._connection
    assert found is not None
    await backend_of(found)
    return found


@contextlib.asynccontextmanager
async def locked_slot() -> AsyncIterator[None]:
    """Somebody else holds the slot's row."""
    held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            list(Slot.objects.select_for_update())
            held.set()
            assert may_end.wait(20)
        connection.close()

    holder = asyncio.create_task(asyncio.to_thread(hold))
    try:
        assert await asyncio.to_thread(held.wait, 10)
        yield
    finally:
        may_end.set()
        await holder


def active() -> int:
    return Slot.objects.get().active


async def test_a_request_with_room_needs_no_round(
    dispatcher: Dispatcher, clock: Clock, connected: LoopConnection, rounds: list[list[str]]
) -> None:
    """SLOT-9 Where there is none a round decides, and again once places come free."""
    first, second = flight(clock), flight(clock)
    place = await dispatcher.place(first)
    assert rounds == []
    assert await asyncio.to_thread(states) == ["running"]
    waits = asyncio.create_task(dispatcher.place(second))
    await until(lambda: states() == ["running", "waiting"])
    assert rounds[0] == ["Arrival"]
    dispatcher.close(first, RequestState.DONE)
    assert await waits == place
    dispatcher.close(second, RequestState.DONE)
    await until(lambda: states() == ["done", "done"])
    assert await asyncio.to_thread(active) == 0


async def test_requests_of_one_moment_are_placed_together(
    dispatcher: Dispatcher, clock: Clock, connected: LoopConnection, rounds: list[list[str]]
) -> None:
    """SLOT-9 those that come while a statement is under way share the next, and get a slot with room for all."""
    await asyncio.to_thread(Slot.objects.update, launch={"parallel": 20})
    asked = [flight(clock) for _ in range(20)]
    places = await asyncio.gather(*map(dispatcher.place, asked))
    assert len({place.slot for place in places}) == 1
    assert rounds == []
    assert await asyncio.to_thread(lambda: (active(), Request.objects.filter(slot__isnull=False).count())) == (20, 20)


async def test_a_client_that_leaves_while_its_place_is_taken(
    dispatcher: Dispatcher, clock: Clock, connected: LoopConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-9 The ending is written after the arrival, or the place would stay taken."""
    monkeypatch.setattr(dispatcher_module, "LATE_SECONDS", 600)
    left: list[str] = []
    flights: list[Flight] = []

    async def asks() -> None:
        mine = flight(clock)
        flights.append(mine)
        try:
            with mine.cuts():
                await dispatcher.place(mine)
        except ClientLeft as error:
            left.append(str(error))
            dispatcher.close(mine, RequestState.CANCELLED, "gone")

    async with locked_slot():
        asking = asyncio.create_task(asks())
        await until(somebody_waits_for_a_lock)
        flights[0].cut(ClientLeft("gone"))
        await asking
        assert left == ["gone"]
        await asyncio.sleep(dispatcher_module.ENDINGS_SECONDS * 5)  # an ending that did not wait would be over by now
    await until(lambda: states() == ["cancelled"])
    assert await asyncio.to_thread(active) == 0


async def test_a_connection_that_breaks_while_a_place_is_taken(
    dispatcher: Dispatcher, clock: Clock, connected: LoopConnection
) -> None:
    """SLOT-9 The request is refused, and whatever became of it on the server is ended."""
    pid, mine = await backend_of(connected), flight(clock)
    async with locked_slot():
        asked = asyncio.create_task(dispatcher.place(mine))
        await until(somebody_waits_for_a_lock)
        await asyncio.to_thread(end_backend, pid)
        with pytest.raises(Refused, match="the database does not answer") as refused:
            await asked
    assert refused.value.status == 503
    dispatcher.close(mine, RequestState.FAILED, "database")
    assert (await dispatcher.place(flight(clock))).address == "127.0.0.1:1"
    assert await asyncio.to_thread(active) == 1


async def test_a_connection_that_the_server_closed(
    dispatcher: Dispatcher, clock: Clock, connected: LoopConnection
) -> None:
    """SLOT-9 Nobody notices: a round places the request, and there is a new connection soon."""
    before = await backend_of(connected)
    await asyncio.to_thread(end_backend, before)
    assert (await dispatcher.place(flight(clock))).address == "127.0.0.1:1"
    assert await backend_of(connected) != before
