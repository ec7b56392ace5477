"""Every edge of the state table is walked by its verb, and no verb makes a move that is not in the table."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from allocations import fleet, ledger
from allocations.choices import EDGES, LIVE, State
from allocations.engine.plan import plan
from allocations.models import Allocation
from audit.models import Event
from claims.dialects.request import DeviceAsk, DeviceRequest
from nodes.models import Device
from tests.databases import TestDatabase
from tests.factories import NodeFactory
from tests.ledger_truth import problems

NOW = datetime.now(UTC)
REQUEST = DeviceRequest(asks=(DeviceAsk(type="gpu", count=1),))


def held() -> uuid.UUID:
    """A fresh hold."""
    picture, now = fleet.current()
    holder = ledger.pod_holder("research", "pod", f"uid-{uuid.uuid4()}")
    return ledger.hold(
        holder=holder,
        request=REQUEST,
        decision=plan(picture, REQUEST),
        claim_id=None,
        previous=None,
        now=now,
        hold_seconds=30,
    )


def reserved() -> uuid.UUID:
    allocation_id = held()
    assert ledger.reserve(allocation_id=allocation_id, now=NOW)
    return allocation_id


def bound() -> uuid.UUID:
    allocation_id = reserved()
    assert ledger.bound(allocation_id=allocation_id, now=NOW)
    return allocation_id


def let_go(allocation_id: uuid.UUID, outcome: State) -> bool:
    sources = (State.RESERVED, State.BOUND)
    return ledger.begin_release(
        allocation_id=allocation_id, sources=sources, outcome=outcome, reason="test", now=NOW, actor="test"
    )


def releasing(outcome: State) -> uuid.UUID:
    allocation_id = bound()
    assert let_go(allocation_id, outcome)
    return allocation_id


def dropped(allocation_id: uuid.UUID, outcome: State) -> bool:
    return ledger.drop_hold(allocation_id=allocation_id, outcome=outcome, reason="test", now=NOW, actor="test")


def finished(allocation_id: uuid.UUID, outcome: State) -> bool:
    return ledger.finish_release(allocation_id=allocation_id, outcome=outcome, now=NOW, actor="test")


WALKS: dict[tuple[State, State], tuple[Callable[[], uuid.UUID], Callable[[uuid.UUID], bool]]] = {
    (State.HELD, State.RESERVED): (held, lambda one: ledger.reserve(allocation_id=one, now=NOW)),
    (State.HELD, State.RELEASED): (held, lambda one: dropped(one, State.RELEASED)),
    (State.HELD, State.FAILED): (held, lambda one: dropped(one, State.FAILED)),
    (State.RESERVED, State.BOUND): (reserved, lambda one: ledger.bound(allocation_id=one, now=NOW)),
    (State.RESERVED, State.RELEASING): (reserved, lambda one: let_go(one, State.FAILED)),
    (State.BOUND, State.RELEASING): (bound, lambda one: let_go(one, State.RELEASED)),
    (State.RELEASING, State.RELEASED): (
        lambda: releasing(State.RELEASED),
        lambda one: finished(one, State.RELEASED),
    ),
    (State.RELEASING, State.FAILED): (lambda: releasing(State.FAILED), lambda one: finished(one, State.FAILED)),
}


def test_the_walks_cover_the_table() -> None:
    assert set(WALKS) == {(source, target) for source, targets in EDGES.items() for target in targets}


@pytest.mark.parametrize(("source", "target"), sorted(WALKS), ids=str)
def test_every_edge(ledger_db: TestDatabase, source: State, target: State) -> None:
    """LEASE-2 each move changes the state, writes one event, and keeps devices used exactly while live."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    make, move = WALKS[source, target]
    allocation_id = make()
    before = Event.objects.count()
    assert Allocation.objects.get(pk=allocation_id).state == source
    assert move(allocation_id) is True
    assert Allocation.objects.get(pk=allocation_id).state == target
    assert Event.objects.count() == before + 1
    assert Device.objects.get().core_used == (100 if target in LIVE else 0)
    assert move(allocation_id) is False, "a move happens once"
    assert Event.objects.count() == before + 1
    assert [problem for problem in problems() if not problem.startswith("lease")] == []


@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
@pytest.mark.parametrize("state", [State.RELEASED, State.FAILED])
def test_ended_is_ended(ledger_db: TestDatabase, state: State) -> None:
    """LEASE-2 no verb moves an ended allocation."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    allocation_id = held()
    assert dropped(allocation_id, state)
    assert not ledger.reserve(allocation_id=allocation_id, now=NOW)
    assert not ledger.bound(allocation_id=allocation_id, now=NOW)
    assert not let_go(allocation_id, State.FAILED)
    assert not finished(allocation_id, State.RELEASED)
    assert Allocation.objects.get().state == state
