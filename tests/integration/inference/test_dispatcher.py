"""The dispatcher of a web process on a real database: its row, its flights, and what becomes of them without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import OperationalError

from gpuplane.listeners.answers import Refused
from gpuplane.listeners.gateway import dispatcher as dispatcher_module
from gpuplane.listeners.gateway.dispatcher import Dispatcher
from gpuplane.listeners.gateway.flights import GatewayEnded
from inference.choices import RequestState
from inference.dispatch import gateways
from inference.dispatch.records import Arrival, Ending, Round, Step
from inference.dispatch.rounds import dispatch
from inference.models import Gateway, Request, Slot
from storage.clock import database_now
from storage.transactions import atomic_retry
from tests.integration.inference.dispatchers import Clock, flight, states, until

pytestmark = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)


async def test_a_stop_ends_what_is_under_way(dispatcher: Dispatcher, clock: Clock) -> None:
    """SLOT-9 places are free, endings written and the row ended when it returns."""
    cut: list[str] = []

    async def one() -> None:
        mine = flight(clock)
        try:
            with mine.cuts():
                await dispatcher.place(mine)
                await asyncio.Event().wait()
        except GatewayEnded as ended:
            cut.append(str(ended))
            dispatcher.close(mine, RequestState.FAILED, str(ended))

    tasks = [asyncio.create_task(one()) for _ in range(2)]
    await until(lambda: states() == ["running", "waiting"])
    await dispatcher.stop()
    await asyncio.gather(*tasks)
    await until(lambda: states() == ["failed", "failed"])
    assert cut == ["the web process stops"] * 2
    ended, active = await asyncio.to_thread(lambda: (Gateway.objects.get().ended_at, Slot.objects.get().active))
    assert ended is not None
    assert active == 0
    await dispatcher.start()


async def test_a_process_that_stood_still_sends_nothing(dispatcher: Dispatcher, clock: Clock) -> None:
    """SLOT-9 its flights are cut and new ones refused before others may give its places away; then it has a new row."""
    mine = flight(clock)
    await dispatcher.place(mine)
    clock.ahead += gateways.VALID_SECONDS + 1
    with pytest.raises(Refused, match="the database does not answer"):
        await dispatcher.place(flight(clock))
    with pytest.raises(GatewayEnded, match="not answered for too long"), mine.cuts():
        await asyncio.Event().wait()
    dispatcher.close(mine, RequestState.FAILED, "cut")
    await until(lambda: states() == ["failed"])


async def test_a_process_taken_for_dead_begins_anew(
    dispatcher: Dispatcher, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-9"""
    monkeypatch.setattr(gateways, "RENEW_SECONDS", 0.05)
    await dispatcher.registration.stop()
    dispatcher.registration.start()
    mine = flight(clock)
    await dispatcher.place(mine)
    before = dispatcher.registration.gateway
    await asyncio.to_thread(lambda: gateways.end(before, now=database_now()))
    with pytest.raises(GatewayEnded, match="took the web process for dead"), mine.cuts():
        await asyncio.Event().wait()
    dispatcher.close(mine, RequestState.FAILED, "cut")
    await until(lambda: Gateway.objects.filter(ended_at=None).exists())
    await dispatcher.registration.held()
    assert dispatcher.registration.gateway not in {"", before}


async def test_an_arrival_of_a_process_that_has_lost_its_row(
    dispatcher: Dispatcher, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-9 is not written: if this process died now, nobody would give its place back."""

    await dispatcher.registration.held()  # else the first row comes in between

    async def lost_since() -> None:
        dispatcher.registration.gateway = ""

    monkeypatch.setattr(dispatcher.registration, "held", lost_since)
    with pytest.raises(Refused, match="the database does not answer"):
        await dispatcher.place(flight(clock))
    assert await asyncio.to_thread(states) == []


@pytest.fixture
def rounds(rounds: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Those of arrivals and endings alone; an ending waits for an arrival however long it takes."""
    monkeypatch.setattr(dispatcher_module, "ENDINGS_SECONDS", 600)
    monkeypatch.setattr(dispatcher_module, "LOOK_SECONDS", 600)
    return rounds


async def test_an_ending_goes_along_with_an_arrival(
    dispatcher: Dispatcher, clock: Clock, rounds: list[list[str]]
) -> None:
    """SLOT-9 One round gives the place back and away while the model is busy, and not after it."""
    first, second, third = flight(clock), flight(clock), flight(clock)
    before = await dispatcher.place(first)
    waits = asyncio.create_task(dispatcher.place(second))
    await until(lambda: states() == ["running", "waiting"])
    dispatcher.close(first, RequestState.DONE)
    assert (await waits).slot == before.slot
    rounds.clear()
    dispatcher.close(second, RequestState.DONE)
    assert (await dispatcher.place(third)).slot == before.slot
    assert rounds == [["Arrival", "Ending"]]


async def test_an_arrival_does_not_carry_endings_where_there_is_room(
    dispatcher: Dispatcher, clock: Clock, rounds: list[list[str]]
) -> None:
    """SLOT-9 Its place is there before they are written; where it is not, they follow at once."""
    first, second = flight(clock), flight(clock)
    before = await dispatcher.place(first)
    dispatcher.close(first, RequestState.DONE)
    assert (await dispatcher.place(second)).slot == before.slot
    assert rounds == [["Arrival"], ["Arrival"], ["Ending"]]


@pytest.mark.parametrize("bound", [{"_queue_length": 0}, {"_queue_seconds": 0.0}], ids=str)
async def test_a_place_that_comes_free_where_nobody_may_wait(
    dispatcher: Dispatcher, clock: Clock, rounds: list[list[str]], bound: dict[str, float]
) -> None:
    """SLOT-9 the ending goes along, or the arrival would be refused beside a free place."""
    for name, value in bound.items():
        setattr(dispatcher, name, value)
    before = await dispatcher.place(first := flight(clock))
    dispatcher.close(first, RequestState.DONE)
    assert (await dispatcher.place(flight(clock))).slot == before.slot
    assert rounds == [["Arrival"], ["Arrival", "Ending"]]


async def test_a_round_that_is_committed_after_its_connection_broke(
    dispatcher: Dispatcher, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-9 the request is ended again, and its place comes back."""
    lost: list[Callable[[], Round]] = []
    endings: list[str] = []

    def late(steps: Sequence[Step], **about: Any) -> Round:
        if isinstance(steps[0], Arrival) and not lost:
            lost.append(lambda: dispatch(steps, **about))
            raise OperationalError("server closed the connection unexpectedly")
        found = dispatch(steps, **about)
        if isinstance(steps[0], Ending):
            endings.append(str(found.outcomes[0]))
            if len(endings) == 1:
                lost[0]()
        return found

    monkeypatch.setattr(dispatcher_module, "dispatch", late)
    monkeypatch.setattr(dispatcher_module, "LATE_SECONDS", 0.05)
    mine = flight(clock)
    with pytest.raises(Refused):
        await dispatcher.place(mine)
    dispatcher.close(mine, RequestState.FAILED, "the database does not answer")
    await until(lambda: states() == ["failed"])
    assert endings == ["over", "over"]
    assert await asyncio.to_thread(lambda: Slot.objects.get().active) == 0


async def test_an_ending_does_not_wait_where_its_place_is_waited_for(
    dispatcher: Dispatcher, clock: Clock, rounds: list[list[str]]
) -> None:
    """SLOT-9"""
    first, second = flight(clock), flight(clock)
    before = await dispatcher.place(first)
    waits = asyncio.create_task(dispatcher.place(second))
    await until(lambda: states() == ["running", "waiting"])
    dispatcher.close(first, RequestState.DONE)
    assert (await waits).slot == before.slot
    assert rounds == [["Arrival"], ["Arrival"], ["Ending"]]


async def test_an_ending_waits_for_a_moment(dispatcher: Dispatcher, clock: Clock) -> None:
    """SLOT-9 It is written also where nobody comes."""
    mine = flight(clock)
    await dispatcher.place(mine)
    dispatcher.close(mine, RequestState.DONE)
    await until(lambda: states() == ["done"])


async def test_an_ending_is_written_when_the_database_is_back(
    dispatcher: Dispatcher, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-9 the place is not lost."""
    mine = flight(clock)
    await dispatcher.place(mine)
    works, failures = dispatch, iter(range(3))

    def failing(*args: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise OperationalError("the connection is closed")
        return works(*args, **options)

    monkeypatch.setattr(dispatcher_module, "dispatch", failing)
    dispatcher.close(mine, RequestState.DONE)
    await until(lambda: states() == ["done"])
    assert await asyncio.to_thread(lambda: Slot.objects.get().active) == 0


async def test_an_arrival_without_a_database_is_refused(
    dispatcher: Dispatcher, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-9"""

    def failing(*args: Any, **options: Any) -> Any:
        raise OperationalError("the connection is closed")

    with monkeypatch.context() as patched:
        patched.setattr(dispatcher_module, "dispatch", failing)
        mine = flight(clock)
        with pytest.raises(Refused, match="the database does not answer") as refused:
            await dispatcher.place(mine)
    assert refused.value.status == 503
    dispatcher.close(mine, RequestState.FAILED, "no database")


async def test_who_waits_is_found_without_a_message(dispatcher: Dispatcher, clock: Clock) -> None:
    """SLOT-9 a request that another process started runs within a second, Redis or not."""
    first, second = flight(clock), flight(clock)
    await dispatcher.place(first)
    waiting = asyncio.create_task(dispatcher.place(second))
    await until(lambda: states() == ["running", "waiting"])

    @atomic_retry
    def started_elsewhere() -> None:
        Request.objects.filter(pk=first.id).update(state=RequestState.DONE)
        Request.objects.filter(pk=second.id).update(state=RequestState.RUNNING, slot=Slot.objects.get())

    await asyncio.to_thread(started_elsewhere)
    place = await waiting
    assert place.address == "127.0.0.1:1"
    dispatcher.close(first, RequestState.DONE)
    dispatcher.close(second, RequestState.DONE)
