import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from audit.choices import EventKind
from audit.events import NewEvent
from audit.models import Event
from audit.services import record, record_many
from audit.tasks import event_prune

NOW = datetime(2026, 11, 21, 9, 30, 15, 123456, tzinfo=UTC)


def happening(number=0, **more):
    return NewEvent(kind=EventKind.CLAIM_CREATED, message=f"m{number}", actor="ada", at=NOW, **more)


def test_an_event_is_kept_whole(ledger_db):
    """VIEW-6 an event holds who, what, where and when, on both databases."""
    allocation = uuid.uuid4()
    record(
        kind=EventKind.ALLOCATION_BOUND,
        message="bound",
        actor="scheduler",
        now=NOW,
        namespace="ns",
        name="pod",
        node="n1",
        claim="c",
        allocation_id=allocation,
        data={"devices": ["GPU-ü"], "at": NOW, "none": None},
    )
    event = Event.objects.get()
    assert (event.kind, event.actor, event.at, event.allocation_id) == (
        "allocation.bound",
        "scheduler",
        NOW,
        allocation,
    )
    assert (event.namespace, event.name, event.node, event.claim) == ("ns", "pod", "n1", "c")
    assert event.data == {"devices": ["GPU-ü"], "at": NOW.isoformat(), "none": None}
    assert Event.objects.get(allocation_id=allocation, data__has_key="devices") == event


@pytest.mark.django_db
def test_any_number_of_events_costs_one_statement():
    with CaptureQueriesContext(connection) as queries:
        record_many([happening(number) for number in range(90)])
    assert len(queries) == 1
    assert list(Event.objects.order_by("id").values_list("message", flat=True)) == [f"m{n}" for n in range(90)]
    record_many([])
    record_many([happening(number) for number in range(200)])
    assert Event.objects.count() == 290


@pytest.mark.django_db(transaction=True)
def test_what_is_rolled_back_leaves_no_event():
    """VIEW-6 an event exists exactly when its change does."""
    with transaction.atomic():
        record_many([happening()])
        transaction.set_rollback(True)
    assert Event.objects.count() == 0
    with transaction.atomic():
        record_many([happening(1), happening(2)])
    assert list(Event.objects.order_by("id").values_list("message", flat=True)) == ["m1", "m2"]


@pytest.mark.django_db
def test_long_texts_are_cut_rather_than_refused():
    record(kind=EventKind.DIFFERENCE, message="m" * 900, actor="a" * 900, now=NOW, name="n" * 900)
    event = Event.objects.get()
    assert (len(event.message), len(event.actor), len(event.name)) == (500, 150, 253)


@pytest.mark.django_db
def test_old_events_go_in_batches_and_young_ones_stay():
    """VIEW-6 events are kept GPUPLANE_AUDIT_DAYS."""
    for days in (91, 92, 93, 90, 1):
        Event.objects.create(at=NOW - timedelta(days=days, seconds=-1 if days == 90 else 0), kind="x", actor="a")
    assert event_prune(now=NOW, days=90, batch=2, most_batches=1) == 2
    assert event_prune(now=NOW, days=90, batch=2) == 1
    assert Event.objects.count() == 2
