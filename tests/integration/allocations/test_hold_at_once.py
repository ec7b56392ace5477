"""A hold as one statement of PostgreSQL: all of it or nothing, whatever was not as decided."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Sequence
from dataclasses import replace

import psycopg
import pytest
from django.db import IntegrityError, connection, transaction

from allocations import fleet, ledger
from allocations.choices import State
from allocations.engine.decision import Decision
from allocations.engine.plan import plan
from allocations.errors import LostRace, MovedOn, PodHasOne
from allocations.ledger.device_reservations import Taker
from allocations.ledger.rows import AllocationRow, write_taken_at_once
from allocations.models import Allocation, AllocationDevice
from audit.choices import EventKind
from audit.models import Event
from claims.dialects.request import DeviceRequest
from nodes.models import Device
from nodes.revisions import next_revision
from storage.clock import database_now
from tests.builders import share, whole
from tests.databases import TestDatabase
from tests.factories import NodeFactory
from tests.ledger_truth import problems

TWO = whole(2)
HALF = share(core=50, ratio=50)
WAITED_MOST = "3s"

pytestmark = [
    pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True),
    pytest.mark.usefixtures("two_gpus"),
]


@pytest.fixture
def two_gpus(ledger_db: TestDatabase) -> None:
    """One node of two GPUs."""
    assert ledger_db
    NodeFactory(name="n1", gpus=2)
    fleet.forget()


def decided(request: DeviceRequest = TWO) -> Decision:
    """What the engine says of this moment."""
    return plan(fleet.current().snapshot, request)


def terms(pod: str = "pod", request: DeviceRequest = TWO) -> ledger.Terms:
    """For a pod."""
    return ledger.Terms(holder=ledger.pod_holder("research", pod, f"uid-{pod}"), request=request)


def held(decision: Decision, *, pod: str = "pod", request: DeviceRequest = TWO) -> uuid.UUID:
    """Hold what was decided."""
    return ledger.hold(terms(pod, request), decision=decision, previous=None, now=database_now(), hold_seconds=30)


def written(decision: Decision, *, node: str = "n1") -> bool:
    """What the statement alone says."""
    row = AllocationRow(
        id=uuid.uuid4(),
        state=State.HELD,
        terms=terms(),
        node=node,
        summary="",
        now=database_now(),
        until=database_now(),
    )
    taker = Taker("uid-pod", None, database_now())
    return write_taken_at_once(row, decision.grants, row.event(EventKind.ALLOCATION_HELD, ""), taker=taker)


def nothing_is_written(rows: int = 0) -> None:
    """No allocation, grant or event more than these, and the devices agree with the grants."""
    assert Allocation.objects.count() == rows
    assert Event.objects.filter(kind="allocation.held").count() == rows
    assert problems() == []


def fall_sick(minors: Sequence[int]) -> None:
    """These devices are sick."""
    with transaction.atomic():
        Device.objects.filter(minor__in=minors).update(healthy=False, revision=next_revision())


@pytest.mark.parametrize("request_", [pytest.param(TWO, id="whole"), pytest.param(HALF, id="a share")])
def test_it_is_one_statement(request_: DeviceRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-2 devices, allocation, grants and event together; the way in steps is not needed."""
    monkeypatch.setattr(importlib.import_module("allocations.ledger.hold"), "_replace", None)
    decision = decided(request_)
    allocation_id = held(decision, request=request_)
    grants = AllocationDevice.objects.filter(allocation_id=allocation_id, live=True)
    assert set(grants.values_list("device_id", flat=True)) == {one.device_id for one in decision.grants}
    assert Event.objects.get(kind="allocation.held").allocation_id == allocation_id
    nothing_is_written(1)


@pytest.mark.parametrize("minors", [[0], [1], [0, 1]], ids=str)
def test_a_device_that_is_not_free_undoes_all(minors: Sequence[int]) -> None:
    """LEASE-2 whichever of the devices it is; the way in steps says which."""
    decision = decided()
    fall_sick(minors)
    assert written(decision) is False
    nothing_is_written()
    with pytest.raises(LostRace) as lost:
        held(decision)
    want = set(Device.objects.filter(minor__in=minors).values_list("pk", flat=True))
    assert set(lost.value.device_ids) == want
    nothing_is_written()


def test_a_node_that_is_gone_undoes_all() -> None:
    """LEASE-5 the devices are not taken for an allocation that cannot be."""
    assert written(decided(), node="gone") is False
    nothing_is_written()
    with pytest.raises(MovedOn):
        held(replace(decided(), node="gone"))
    nothing_is_written()


def test_a_pod_that_has_one_undoes_all() -> None:
    """LEASE-2 the other attempt of the pod was quicker."""
    held(decided(HALF), request=HALF)
    with pytest.raises(PodHasOne):
        held(decided(HALF), request=HALF)
    nothing_is_written(1)


def test_a_device_that_is_not_free_waits_for_no_grant_of_others(ledger_db: TestDatabase) -> None:
    """LEASE-2 an uncommitted grant of another keeps a hold waiting only while the device looks free."""
    decision = decided()
    other = held(decided(HALF), pod="other", request=HALF)
    taken = Allocation.objects.get(pk=other).devices.get().device_id
    grant = next(one for one in decision.grants if one.device_id != taken)
    with psycopg.connect(ledger_db.url) as stranger:
        stranger.execute(
            "INSERT INTO allocations_allocationdevice "
            "(allocation_id, device_id, uuid, type, minor, core_percent, memory_bytes, whole, live) "
            "VALUES (%s, %s, %s, 'gpu', %s, 100, 1, TRUE, TRUE)",
            [other, grant.device_id, grant.uuid, grant.minor],
        )
        fall_sick([0, 1])
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = '{WAITED_MOST}'")
        assert written(decision) is False
        with pytest.raises(LostRace):
            held(decision)
        stranger.rollback()
    nothing_is_written(1)


def test_another_constraint_is_an_error() -> None:
    """LEASE-2 only the missing node means that the way in steps has to say why."""
    decision = decided()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_event ADD CONSTRAINT none CHECK (kind <> 'allocation.held')")
    with pytest.raises(IntegrityError):
        held(decision)
    nothing_is_written()
