import threading
import uuid
from datetime import UTC, datetime, timedelta

import orjson
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from audit import feed
from audit.choices import Kind
from audit.happenings import Happening
from audit.models import Event
from audit.services import record, record_many
from audit.tasks import event_prune

NOW = datetime(2026, 11, 21, 9, 30, 15, 123456, tzinfo=UTC)


@pytest.fixture
def hints(monkeypatch):
    """What browsers are told."""
    told = []
    monkeypatch.setattr(feed._feed, "put", lambda message: told.append(orjson.loads(message)))
    return told


def happening(number=0, **more):
    return Happening(kind=Kind.CLAIM_CREATED, message=f"m{number}", actor="ada", at=NOW, **more)


def test_an_event_is_kept_whole(ledger_db, hints):
    """VIEW-6 an event holds who, what, where and when, on both databases."""
    allocation = uuid.uuid4()
    record(
        kind=Kind.ALLOCATION_BOUND,
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
    [hint] = hints
    assert (hint["id"], hint["kind"], hint["allocation"]) == (event.pk, "allocation.bound", str(allocation))


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
def test_what_is_rolled_back_was_never_told(hints):
    """VIEW-6 an event exists exactly when its change does."""
    with transaction.atomic():
        record_many([happening()])
        transaction.set_rollback(True)
    assert (Event.objects.count(), hints) == (0, [])
    with transaction.atomic():
        record_many([happening(1), happening(2)])
        assert hints == []
    assert [hint["message"] for hint in hints] == ["m1", "m2"]
    assert [hint["id"] for hint in hints] == list(Event.objects.order_by("id").values_list("id", flat=True))


@pytest.mark.django_db
def test_long_texts_are_cut_rather_than_refused():
    record(kind=Kind.DIFFERENCE, message="m" * 900, actor="a" * 900, now=NOW, name="n" * 900)
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


def test_hints_reach_redis(redis_url, settings):
    """Browsers hear of events over Redis."""
    import redis

    settings.GPUPLANE_REDIS_URL = redis_url
    client = redis.Redis.from_url(redis_url)
    listener = client.pubsub(ignore_subscribe_messages=False)
    listener.subscribe(feed.CHANNEL)
    assert listener.get_message(timeout=10)["type"] == "subscribe"
    one = feed.Feed()
    one.put(orjson.dumps(feed.message_of(7, happening(7, namespace="ns"))))
    told = orjson.loads(listener.get_message(timeout=10)["data"])
    assert (told["id"], told["message"], told["namespace"]) == (7, "m7", "ns")
    listener.close()
    client.close()


def test_without_redis_hints_are_dropped_and_nobody_waits(settings, tmp_path, monkeypatch):
    settings.GPUPLANE_REDIS_URL = f"unix://{tmp_path}/nothing.sock"
    one = feed.Feed(size=5)
    dropped = threading.Event()
    monkeypatch.setattr(one, "_dropped", lambda _: dropped.set())
    one.put(b"1")
    assert dropped.wait(30)


def test_a_full_queue_drops_and_says_so_once(monkeypatch):
    warned = []
    monkeypatch.setattr(feed.log, "warning", lambda *_, **__: warned.append(1))
    one = feed.Feed(size=5)
    monkeypatch.setattr(one, "_start", lambda: None)  # nothing empties the queue
    for number in range(50):
        one.put(b"%d" % number)
    assert one._waiting.qsize() == 5
    assert warned == [1]
