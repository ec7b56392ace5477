"""What queues held and used, recorded minute by minute, and read over REST, by pages and as CSV."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from access.actors import SYSTEM
from access.choices import Role
from access.errors import NotFound
from access.tokens import issue
from allocations.models import Allocation, QueueUsage, QueueUsageMark
from allocations.queue_usage import recording
from allocations.queue_usage.reading import COLUMNS, UsageReport, usage_report
from claims.kinds import QUEUE
from claims.services import manifest_create, manifest_delete
from nodes.history import figures
from nodes.history.rollups import MINUTE
from nodes.models import FleetRollup, Node, Rollup
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory, UserFactory

pytestmark = pytest.mark.usefixtures("ledger_db")
AT = datetime(2026, 6, 1, 12, 30, tzinfo=UTC)


def stored_queue(name: str, **spec: Any) -> None:
    manifest_create(QUEUE, manifest={"metadata": {"name": name}, "spec": spec}, actor=SYSTEM, now=timezone.now())


@pytest.fixture
def node(ledger_db: Any) -> Node:
    """Of four GPUs: `research` holds two, `secret` one; both are in the queue `lab`, and `idle` deserves the rest."""
    made = NodeFactory(name="n1", gpus=4)
    for number, namespace in enumerate(("research", "research", "secret")):
        GpuClaimFactory(namespace=namespace, name=f"own-{number}")
        pod = pod_manifest(f"pod-{number}", namespace=namespace, claim=f"own-{number}")
        assert bound(pod, filtered(pod, ["n1"])) == ""
    Allocation.objects.update(created_at=AT - timedelta(days=1))
    stored_queue("lab", namespaces=["research", "secret"], quotas=[{"deserved": 1}])
    stored_queue("idle", quotas=[{"deserved": 3}])
    QueueUsageMark.objects.create(pk=1, until=AT)
    return made


def measured(node: Node, start: datetime, percent: int) -> None:
    """The history of one minute: this utilisation on every GPU."""
    uuids = tuple(node.devices.order_by("minor").values_list("uuid", flat=True))
    same = figures.Column((60,) * len(uuids), (percent * 10,) * len(uuids), (percent,) * len(uuids))
    body = figures.pack(figures.Figures(uuids, {"utilisation_percent": same}))
    Rollup.objects.create(node=node, seconds=MINUTE, start=start, body=body)
    FleetRollup.objects.create(seconds=MINUTE, start=start, groups={})


def report(
    queue: str = "lab", *, since: datetime = AT - timedelta(hours=1), until: datetime = AT + timedelta(hours=1)
) -> UsageReport:
    return usage_report(queue=queue, since=since, until=until, actor=SYSTEM)


def test_a_minute(node: Node) -> None:
    """QUEUE-6 held and used by namespace and model, borrowed above deserved, lent by the other queue."""
    measured(node, AT, 50)
    assert recording.record_usage(now=AT + timedelta(seconds=65)) == 1
    rows = {(row.namespace, row.model): row.use for row in report().rows}
    assert set(rows) == {("research", "H100"), ("secret", "H100")}
    research = rows["research", "H100"]
    assert (research.held, research.measured, research.used) == pytest.approx((2 / 60, 2 / 60, 1 / 60))
    assert research.borrowed + rows["secret", "H100"].borrowed == pytest.approx(2 / 60)
    (lent,) = report("idle").rows
    assert (lent.namespace, lent.use.held) == ("", 0)
    assert lent.use.lent == pytest.approx(2 / 60)


def test_a_minute_counts_once(node: Node) -> None:
    """QUEUE-6 whoever comes second adds nothing."""
    measured(node, AT, 50)
    now = AT + timedelta(seconds=65)
    recording.record_usage(now=now)
    before = report().total.held
    assert recording.record_usage(now=now) == 0
    assert recording._add(AT) is False
    assert report().total.held == before


def test_what_was_missed_is_made_good(node: Node) -> None:
    """QUEUE-6 a worker that was away adds the minutes since, a part a turn; what was not measured is not used."""
    now = AT + timedelta(minutes=recording.MINUTES_A_TURN + 30)
    assert recording.record_usage(now=now) == recording.MINUTES_A_TURN
    assert recording.record_usage(now=now) == 30 - recording.SETTLED // recording.SPAN
    total = report(until=now + timedelta(hours=2)).total
    assert total.held == pytest.approx(3 * 87 / 60)
    assert (total.measured, total.used) == (0, 0)


def test_a_minute_waits_for_its_history(node: Node) -> None:
    """QUEUE-6 three minutes at most."""
    assert recording.record_usage(now=AT + timedelta(seconds=65)) == 0
    measured(node, AT, 10)
    assert recording.record_usage(now=AT + timedelta(seconds=66)) == 1


def test_what_ended_within_the_minute(node: Node) -> None:
    """QUEUE-6 to the second, and before the row is pruned."""
    ended = Allocation.objects.filter(namespace="secret")
    ended.update(ended_at=AT + timedelta(seconds=30), state="released")
    recording.record_usage(now=AT + timedelta(minutes=5))
    rows = {row.namespace: row.use.held for row in report().rows}
    assert rows["secret"] == pytest.approx(30 / 3600)


def test_unreadable_history(node: Node) -> None:
    """QUEUE-6 counts as not measured."""
    measured(node, AT, 50)
    Rollup.objects.update(body=b"not this")
    assert recording.record_usage(now=AT + timedelta(seconds=65)) == 1
    assert report().total.measured == 0


def test_whole_hours(node: Node) -> None:
    """QUEUE-6 the hours that the times touch."""
    recording.record_usage(now=AT + timedelta(minutes=40))
    assert report(since=AT, until=AT + timedelta(minutes=1)).total.held == pytest.approx(1.5)
    found = report(since=AT + timedelta(minutes=31), until=AT + timedelta(minutes=32))
    assert (found.since, found.until) == (AT + timedelta(minutes=30), AT + timedelta(minutes=90))
    assert found.total.held == pytest.approx(3 * 7 / 60)


def test_a_queue_that_is_gone(node: Node) -> None:
    """QUEUE-6 its hours stay; one that never was is not found."""
    recording.record_usage(now=AT + timedelta(minutes=10))
    manifest_delete(QUEUE, namespace="", name="lab", actor=SYSTEM, now=timezone.now())
    assert report("lab").total.held > 0
    with pytest.raises(NotFound, match="there is no queue nowhere"):
        report("nowhere")


def api(user: Any, path: str) -> Any:
    return Client().get(f"/api/v1/{path}", headers={"Authorization": f"Bearer {issue(user)}"})


def test_rest(node: Node) -> None:
    """QUEUE-6 `GET queues/<name>/usage/`: JSON and CSV; namespaces of other teams are one row without a name."""
    recording.record_usage(now=AT + timedelta(minutes=10))
    times = "from=2026-06-01T12:00:00Z&to=2026-06-01T13:00:00Z"
    viewer = UserFactory(namespaces=["research"])
    found = api(viewer, f"queues/lab/usage/?{times}").json()
    assert (found["queue"], found["from"], found["to"]) == (
        "lab",
        "2026-06-01T12:00:00+00:00",
        "2026-06-01T13:00:00+00:00",
    )
    assert [(row["namespace"], row["model"], row["held"]) for row in found["rows"]] == [
        ("research", "H100", pytest.approx(2 * 7 / 60, abs=1e-3)),
        (None, "H100", pytest.approx(7 / 60, abs=1e-3)),
    ]
    assert found["total"]["held"] == pytest.approx(3 * 7 / 60, abs=1e-3)
    answer = api(UserFactory(role=Role.ADMIN), f"queues/lab/usage/?{times}&format=csv")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    lines = list(csv.reader(io.StringIO(answer.content.decode())))
    assert lines[0][:4] == ["queue", "namespace", "model", "held (GPU-hours)"]
    assert [line[:3] for line in lines[1:]] == [["lab", "research", "H100"], ["lab", "secret", "H100"]]


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("from=yesterday", 400, "from"),
        ("from=2026-06-02T00:00:00Z&to=2026-06-01T00:00:00Z", 400, "from"),
        ("to=0001-01-01T00:00:00Z", 400, "to"),
        ("from=2000-01-01T00:00:00Z", 400, "from"),
        ("format=xml", 400, "format"),
    ],
)
def test_bad_times(node: Node, query: str, status: int, field: str) -> None:
    """QUEUE-6 a clear refusal that names the field."""
    answer = api(UserFactory(), f"queues/lab/usage/?{query}")
    assert answer.status_code == status
    assert field in answer.content.decode()
    assert api(UserFactory(), "queues/nowhere/usage/").status_code == 404


def test_the_page(node: Node) -> None:
    """QUEUE-6 all queues, one queue by namespace, and the same as CSV."""
    QueueUsageMark.objects.update(until=timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=20))
    recording.record_usage(now=timezone.now())
    page = Client()
    page.force_login(UserFactory(namespaces=["research"]))
    everything = page.get("/usage/queues/").content.decode()
    assert '?queue=lab&amp;range=24h"' in everything
    one = page.get("/usage/queues/?queue=lab&range=7d").content.decode()
    assert "research" in one
    assert "other namespaces" in one
    assert "secret" not in one
    lines = list(csv.reader(io.StringIO(page.get("/usage/queues.csv?queue=lab").content.decode())))
    assert [line[1] for line in lines[1:]] == ["research", "(other namespaces)"]
    assert page.get("/usage/queues/?queue=nowhere").status_code == 404
    assert "Nothing was held" in page.get("/usage/queues/?queue=default").content.decode()


def test_hours_expire(node: Node, settings: Any) -> None:
    """QUEUE-6 with the history by hour."""
    from allocations.tasks import prune

    recording.record_usage(now=AT + timedelta(minutes=10))
    settings.GPUPLANE_HOURS_KEPT_DAYS = 3650
    prune()
    assert QueueUsage.objects.exists()
    settings.GPUPLANE_HOURS_KEPT_DAYS = 1
    prune()
    assert not QueueUsage.objects.exists()


@pytest.mark.parametrize("path", ["/usage/queues.csv?queue=lab", "/api/v1/queues/lab/usage/?format=csv"])
def test_a_model_is_no_formula_in_a_spreadsheet(node: Node, path: str) -> None:
    """QUEUE-6 VIEW-6 models are named by agents."""
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    amounts = dict.fromkeys(COLUMNS, 3600)
    QueueUsage.objects.create(queue="lab", namespace="research", model='=HYPERLINK("http://x")', start=hour, **amounts)
    client = Client()
    client.force_login(UserFactory(role=Role.ADMIN))
    lines = list(csv.reader(io.StringIO(client.get(path).content.decode())))
    assert [line[2] for line in lines[1:]] == ['\'=HYPERLINK("http://x")']
