"""Requests that are placed at once, beside the rounds that decide in Python."""

from __future__ import annotations

import random
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from inference.choices import RequestState, RunnerState, State
from inference.dispatch import rounds
from inference.dispatch.records import Arrival, Place, Round
from inference.models import Gateway, Model, Request, Runner, Slot, Turn
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.gateway import LENGTH, miscounted, ready_slots, said
from tests.slots import SlotWorld

WORLDS = 150
SLOTS = 4
LORAS = ("", "", "legal")
AT_ONCE = {"postgresql": 1, "sqlite": 3}
"""Statements for requests of one model that are placed at once."""


@pytest.fixture
def world(ledger_db: TestDatabase, redis_url: str, settings: Any) -> SlotWorld:
    """Two models with four slots each."""
    settings.GPUPLANE_REDIS_URL = redis_url
    world = SlotWorld()
    now = database_now()
    Gateway.objects.create(pk="g1", started_at=now, seen_at=now)
    for node, model in (("n1", "chat"), ("n2", "code")):
        world.runner(node, gpus=4, memory=40)
        world.model(model, parallel=3, memory=30)
        ready_slots(world, *(f"10.0.0.{number}:1" for number in range(SLOTS)), model=model)
    return world


def shuffled(chance: random.Random, now: datetime) -> None:
    """Slots in any state that rounds can meet, and requests that wait, or run in them."""
    Request.objects.all().delete()
    Runner.objects.update(state=RunnerState.CONNECTED)
    Model.objects.update(source=chance.choice(("", "qwen3:4b")))
    if chance.random() < 0.2:
        Runner.objects.filter(node__name="n1").update(state=RunnerState.SILENT)
    for slot in Slot.objects.order_by("pk"):
        launch: dict[str, Any] = {"parallel": chance.choice((0, 1, 2, 3)), "runtime": chance.choice(("", "ollama"))}
        if chance.random() < 0.5:
            launch["source"] = chance.choice(("", "llama3:8b"))
        if chance.random() < 0.1:
            launch["runtime"] = "vllm"
        active = chance.choice((0, 0, chance.randrange((launch["parallel"] or 3) + 1)))  # equals are told apart by use
        Slot.objects.filter(pk=slot.pk).update(
            launch=launch,
            lora=chance.choice(LORAS),
            state=chance.choice((State.READY, State.READY, State.READY, State.DRAINING)),
            active=active,
            pod_name=chance.choice(("", "", "pod")),
            last_used_at=chance.choice((None, now - timedelta(seconds=chance.randrange(4)))),
            ready_at=chance.choice((None, now - timedelta(seconds=chance.randrange(4)))),
        )
        Request.objects.bulk_create(
            Request(id=uuid.uuid4(), model_name="chat", arrived_at=now, state=RequestState.RUNNING, slot=slot)
            for _ in range(active)
        )
    if chance.random() < 0.3:
        model, lora = chance.choice(("chat", "code")), chance.choice(LORAS)
        tried = {slot.pk: now.timestamp() for slot in Slot.objects.all() if chance.random() < 0.7}
        Request.objects.create(id=uuid.uuid4(), model_name=model, lora=lora, arrived_at=now, tried=tried)


Rows = tuple[list[Any], list[Any], list[Any]]


def kept() -> Rows:
    """What a round may write. Turns without their keys, which it makes."""
    turns = Turn.objects.order_by("model_name", "lora", "token").values("model_name", "lora", "token", "served_at")
    return [*Slot.objects.order_by("pk").values()], [*Request.objects.order_by("pk").values()], [*turns]


def restored(rows: Rows) -> None:
    slots, requests, turns = rows
    Request.objects.all().delete()
    Turn.objects.all().delete()
    for row in slots:
        Slot.objects.filter(pk=row["id"]).update(**row)
    Request.objects.bulk_create([Request(**row) for row in requests])
    Turn.objects.bulk_create([Turn(**row) for row in turns])


def statements(queries: CaptureQueriesContext) -> int:
    return sum(one["sql"] not in {"BEGIN IMMEDIATE", "BEGIN", "COMMIT"} for one in queries)


def asked(steps: list[Arrival], now: datetime) -> Round:
    return rounds.dispatch(steps, gateway="g1", now=now, monotonic=9.0, queue_length=LENGTH)


def test_sql_decides_as_the_rules_do(world: SlotWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-3b SLOT-9 the same slots, states and rows, whatever stands there."""
    now, placed = database_now(), 0
    for number in range(WORLDS):
        chance = random.Random(number)
        shuffled(chance, now)
        steps = [
            Arrival(
                id=uuid.UUID(int=place + 1),
                model=chance.choice(("chat", "chat", "code", "nobody")),
                lora=chance.choice(LORAS),
                priority=chance.randrange(2),
                token=chance.choice("ab"),
                user="nobody",
                at=8.0,
            )
            for place in range(chance.choice((1, 1, 2, 3)))
        ]
        before = kept()
        with CaptureQueriesContext(connection) as queries:
            at_once = asked(steps, now)
        placed += statements(queries) == AT_ONCE[connection.vendor]
        there = kept()
        restored(before)
        with monkeypatch.context() as patched:
            patched.setattr(rounds, "placed_at_once", lambda *_, **__: {})
            decided = asked(steps, now)
        assert [said(one) for one in at_once.outcomes] == [said(one) for one in decided.outcomes], number
        assert at_once == decided, number
        assert there == kept(), number
    assert placed > WORLDS / 10  # nothing else was needed


def test_a_request_with_room(world: SlotWorld) -> None:
    """SLOT-9 Its row is that of every other request."""
    now = database_now()
    with CaptureQueriesContext(connection) as queries:
        done = asked([Arrival(id=uuid.UUID(int=1), model="chat", priority=3, token="t", user="nobody", at=8.0)], now)
    assert statements(queries) == AT_ONCE[connection.vendor]
    (outcome,) = done.outcomes
    assert isinstance(outcome, Place)
    request = Request.objects.get(pk=uuid.UUID(int=1))
    assert (request.slot_id, request.state, request.priority) == (outcome.slot, RequestState.RUNNING, 3)
    assert (request.started_at, request.arrived_at, request.gateway_id) == (now, now - timedelta(seconds=1), "g1")
    assert miscounted() == []


def test_requests_of_many_loras_are_one_round(world: SlotWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-9 each LoRA that is placed at once is a transaction, so a moment with many is decided about in one."""
    now = database_now()
    monkeypatch.setattr(rounds, "placed_at_once", lambda *_, **__: pytest.fail("one by one"))
    steps = [Arrival(id=uuid.UUID(int=place + 1), model="chat", lora=f"lora-{place}", at=8.0) for place in range(5)]
    assert [said(one) for one in asked(steps, now).outcomes] == ["waits"] * 5


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
def test_a_model_that_others_have_locked(world: SlotWorld, ledger_db: TestDatabase) -> None:
    """SLOT-9 a free place does not wait for the round of somebody else."""
    now = database_now()
    with transaction.atomic():
        list(Model.objects.select_for_update().filter(name="chat"))
        (outcome,) = ledger_db.race([lambda: asked([Arrival(id=uuid.UUID(int=1), model="chat", at=8.0)], now)])
    assert isinstance(outcome, Round)
    assert isinstance(outcome.outcomes[0], Place)
