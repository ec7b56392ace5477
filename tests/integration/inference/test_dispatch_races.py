"""Gateways of several processes at once, on real connections, while slots begin to drain."""

from __future__ import annotations

import itertools
import random
import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from inference.choices import REQUEST_OPEN, RequestState, State
from inference.dispatch import gateways
from inference.dispatch.records import Arrival, Ending, Place, Retry, Step, StepResult
from inference.dispatch.rounds import dispatch
from inference.models import Gateway, Model, Request, Slot
from inference.transitions import slot_moved
from storage.clock import database_now
from storage.transactions import atomic_retry
from tests.databases import TestDatabase, somebody_waits_for_a_lock
from tests.gateway import LENGTH, miscounted, ready_slots
from tests.gateway_client import until
from tests.slots import SlotWorld

GATEWAYS = 3
ROUNDS = 25


@pytest.fixture
def world(ledger_db: TestDatabase, redis_url: str, settings: Any) -> SlotWorld:
    settings.GPUPLANE_REDIS_URL = redis_url
    return SlotWorld()


class Watched:
    """How many requests gateways hold in each slot at one time, as the gateways themselves see it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[str, int] = {}
        self.most = 0

    def change(self, slot: str, by: int) -> None:
        with self._lock:
            self._now[slot] = self._now.get(slot, 0) + by
            self.most = max(self.most, self._now[slot])


def behave(name: str, watched: Watched, numbers: itertools.count[int]) -> int:
    """One gateway: it asks, ends, gives up and is refused, in an order of its own. Requests that it ended."""
    chance = random.Random(name)
    mine: dict[uuid.UUID, str] = {}
    ended = 0

    def round_of(steps: list[Step]) -> None:
        done = dispatch(steps, gateway=name, now=database_now(), monotonic=float(next(numbers)), queue_length=LENGTH)
        for step, outcome in zip(steps, done.outcomes, strict=True):
            if isinstance(outcome, Place) and isinstance(step, Arrival | Retry):
                started(step.id, outcome.slot)
            elif isinstance(step, Arrival):
                assert outcome is StepResult.WAITS
                mine.setdefault(step.id, "")
        for one in done.started:
            if one.gateway == name and mine.get(one.request) == "":
                started(one.request, one.place.slot)

    def started(pk: uuid.UUID, slot: str) -> None:
        mine[pk] = slot
        watched.change(slot, 1)

    def left(pk: uuid.UUID) -> None:
        if slot := mine[pk]:
            watched.change(slot, -1)

    for _ in range(ROUNDS):
        steps: list[Step] = []
        for pk in chance.sample(sorted(mine), min(len(mine), chance.randrange(3))):
            left(pk)
            if mine[pk] and chance.random() < 0.2:
                steps.append(Retry(id=pk, model="chat", slot=mine[pk], reason="refused", at=float(next(numbers))))
                mine[pk] = ""
            else:
                del mine[pk]
                ended += 1
                steps.append(Ending(id=pk, model="chat", state=RequestState.DONE, at=float(next(numbers))))
        steps += [
            Arrival(id=uuid.uuid4(), model="chat", token=name, at=float(next(numbers)))
            for _ in range(chance.randrange(3))
        ]
        if steps:
            round_of(steps)
    return ended


@atomic_retry
def drain(slot_id: str) -> bool:
    """As the loop does for an eviction."""
    return slot_moved(Slot.objects.get(pk=slot_id), State.DRAINING, now=database_now(), only_idle=True)


def test_many_gateways_and_slots_that_drain(world: SlotWorld, ledger_db: TestDatabase) -> None:
    """SLOT-3b SLOT-9 no slot ever has more than `parallel`, none drains with a request, and every count is right."""
    world.runner(gpus=2, memory=80)
    world.model(parallel=2)
    slots = ready_slots(world, "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
    now = database_now()
    names = [f"g{number}" for number in range(GATEWAYS)]
    for name in names:
        Gateway.objects.create(pk=name, started_at=now, seen_at=now)
    watched, numbers = Watched(), itertools.count(1)

    def drainer() -> int:
        return sum(drain(slot.pk) for _ in range(ROUNDS) for slot in slots[1:])

    works: list[Callable[[], int]] = [partial(behave, name, watched, numbers) for name in names]
    results = ledger_db.race([*works, drainer])
    assert [one for one in results if isinstance(one, Exception)] == []
    assert miscounted() == []
    assert watched.most <= 2
    drained = Slot.objects.filter(state=State.DRAINING)
    assert not Request.objects.filter(slot__in=drained, state=RequestState.RUNNING).exists()
    done = Request.objects.filter(state=RequestState.DONE, token__in=names).count()
    assert done == sum(one for one in results[:-1] if not isinstance(one, Exception))
    gateways_end(names)
    assert not Request.objects.filter(state__in=REQUEST_OPEN).exists()
    assert set(Slot.objects.values_list("active", flat=True)) == {0}


def gateways_end(names: list[str]) -> None:
    for name in names:
        gateways.end(name, now=database_now())
    gateways.fail_orphans(now=database_now(), queue_length=LENGTH)


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
def test_a_place_comes_back_once(world: SlotWorld, ledger_db: TestDatabase) -> None:
    """SLOT-3b two who end one request of a model that was deleted: nothing locks the model any more."""
    ended, stays, end_it, _ = running_pair(world)
    Model.objects.all().delete()
    with transaction.atomic():
        end_it()
        thread = threading.Thread(target=end_it)
        thread.start()
        until(somebody_waits_for_a_lock)
    thread.join()
    assert Request.objects.get(pk=ended).state == RequestState.DONE
    assert Request.objects.get(pk=stays).state == RequestState.RUNNING
    assert miscounted() == []


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
def test_a_slot_that_is_counted_again(world: SlotWorld, ledger_db: TestDatabase) -> None:
    """SLOT-3b a request that is placed at once meanwhile is counted."""
    _, _, end_it, ask = running_pair(world)
    Slot.objects.update(active=0)  # so the round that gives back finds it wrong
    with transaction.atomic():
        assert isinstance(ask(), Place)
        thread = threading.Thread(target=end_it)
        thread.start()
        until(somebody_waits_for_a_lock)
    thread.join()
    assert miscounted() == []


def running_pair(world: SlotWorld) -> tuple[uuid.UUID, uuid.UUID, Callable[[], object], Callable[[], object]]:
    """Two requests that run in one slot; what ends the first, and what asks for another place."""
    world.runner(gpus=1, memory=40)
    world.model(parallel=4)
    ready_slots(world, "127.0.0.1:1")
    now = database_now()
    Gateway.objects.create(pk="g1", started_at=now, seen_at=now)

    def round_of(step: Step) -> object:
        return dispatch([step], gateway="g1", now=now, monotonic=1.0, queue_length=LENGTH).outcomes[0]

    first, second = uuid.uuid4(), uuid.uuid4()
    for pk in (first, second):
        assert isinstance(round_of(Arrival(id=pk, model="chat", at=1.0)), Place)
    ending = Ending(id=first, model="chat", state=RequestState.DONE, at=1.0)
    return first, second, lambda: round_of(ending), lambda: round_of(Arrival(id=uuid.uuid4(), model="chat", at=1.0))


def test_a_request_that_ends_while_it_is_to_go_elsewhere(world: SlotWorld) -> None:
    """SLOT-9 in one round; it is over, and its place comes back."""
    ended, stays, *_ = running_pair(world)
    slot, now = Slot.objects.get().pk, database_now()
    steps: list[Step] = [
        Retry(id=ended, model="chat", slot=slot, reason="refused", at=1.0),
        Ending(id=ended, model="chat", state=RequestState.CANCELLED, at=1.0),
    ]
    done = dispatch(steps, gateway="g1", now=now, monotonic=1.0, queue_length=LENGTH)
    assert done.outcomes == [StepResult.OVER, StepResult.OVER]
    assert Request.objects.get(pk=ended).state == RequestState.CANCELLED
    assert Request.objects.get(pk=stays).state == RequestState.RUNNING
    assert miscounted() == []


def test_the_last_place_is_given_once(world: SlotWorld, ledger_db: TestDatabase) -> None:
    """SLOT-3b of two gateways that ask for the last place at one moment one gets it."""
    world.runner(gpus=1, memory=40)
    world.model(parallel=1)
    ready_slots(world, "127.0.0.1:1")
    now = database_now()
    for name in ("g1", "g2"):
        Gateway.objects.create(pk=name, started_at=now, seen_at=now)

    def ask(name: str) -> object:
        step = Arrival(id=uuid.uuid4(), model="chat", token=name, at=1.0)
        return dispatch([step], gateway=name, now=now, monotonic=1.0, queue_length=LENGTH).outcomes[0]

    results = ledger_db.race([partial(ask, "g1"), partial(ask, "g2")])
    assert sorted(isinstance(one, Place) for one in results) == [False, True]
    assert StepResult.WAITS in results
    assert miscounted() == []
