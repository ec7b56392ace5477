"""What alerts and dashboards ask for is what gpuplane tells: names, labels and values, against a scrape of both
doors.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient

from access.choices import TokenScope
from access.tokens import issue
from agent.protocol import COLUMNS
from autoscaling.counters import PROVISION
from gpuplane.listeners.cluster import ROUTES
from gpuplane.rest import fleet_metrics
from nodes.live.ingest import FRAMES, REFUSED
from nodes.live.samples import SampleView
from nodes.models import Device
from storage.clock import database_now
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory, UserFactory
from tests.promql import Selector, grouped_by, selectors

pytestmark = pytest.mark.django_db
CHART = Path(__file__).resolve().parents[3] / "docker" / "helm" / "gpuplane"
TARGET = {"job", "instance", "service"}
"""Labels that Prometheus puts on what it scrapes; the last one where a ServiceMonitor told it of whom."""


def asked() -> Iterator[tuple[str, str]]:
    """(where, expression) of everything that ships."""
    for group in yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())["groups"]:
        yield from ((rule["alert"], rule["expr"]) for rule in group["rules"])
    for path in sorted((CHART / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem}: {panel['title']}", target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
                assert found is not None
                yield f"{path.stem}: ${variable['name']}", f"sum by ({found[2]}) ({found[1]})"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, set[str]]]:
    """Sample name → label → values, of /metrics and fleet/metrics/ of a fleet in which something of everything is
    there.
    """
    NodeFactory(name="n1", gpus=2, agent_seen_at=database_now())
    GpuClaimFactory(name="one", spec={"devices": {"count": 1}})
    for name, want in (("a", "n1"), ("b", "n1"), ("c", None)):
        pod = pod_manifest(name, claim="one")
        assert filtered(pod, ["n1"]) == want
        if want:
            assert bound(pod, want) == ""
    NodeFactory(name="n2", gpus=1)
    Device.objects.filter(node__name="n2").update(stranger="somebody", conflict="research/intruder")
    assert ROUTES, "the web process has its doors, whose metrics are among these"
    assert PROVISION, "the worker's metrics of growth are relayed; here they are of this process"
    REFUSED.labels("old").inc(0)
    FRAMES.labels("hello").inc(0)
    uuids = tuple(Device.objects.filter(node__name="n1").order_by("minor").values_list("uuid", flat=True))
    now = database_now().timestamp()
    columns: dict[str, Any] = dict.fromkeys(COLUMNS, (1, 1))
    view = SampleView(node="n1", boot="b", seq=1, time=now, received_at=now, devices=uuids, **columns)
    monkeypatch.setattr(fleet_metrics, "latest_samples", lambda: {"n1": view})
    token = issue(UserFactory(scope=TokenScope.METRICS))
    scraped: list[Any] = [
        Client().get("/metrics"),
        APIClient().get("/api/v1/fleet/metrics/", headers={"Authorization": f"Bearer {token}"}),
    ]
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for answer in scraped:
        assert answer.status_code == 200
        for family in text_string_to_metric_families(answer.content.decode()):
            for one in family.samples:
                labels = found[one.name]
                for name, value in one.labels.items():
                    labels[name].add(value)
    return found


FIXED = {"path", "verb", "outcome", "state", "rule"}
"""Labels whose values are known from the start: one that is asked for by `=` has to be among them."""


def wrong(one: Selector, told: dict[str, dict[str, set[str]]]) -> Iterator[str]:
    if one.metric not in told:
        yield f"nothing tells {one.metric}"
        return
    labels = told[one.metric]
    for name, operator, value in one.matchers:
        if name not in labels.keys() | TARGET:
            yield f"{one.metric} has no label {name}"
        elif operator in {"=", "!="} and name in FIXED and value not in labels[name]:
            yield f"{one.metric} has no {name} {value}"


def test_every_metric_of_alerts_and_dashboards_is_scraped(told: dict[str, dict[str, set[str]]]) -> None:
    """VIEW-5 each metric, label and fixed value in alerts and dashboards is one that a scrape brings."""
    found = []
    for where, expression in asked():
        named = list(selectors(expression))
        assert named, where
        for one in named:
            found += [f"{where}: {problem}" for problem in wrong(one, told)]
        known = TARGET.union(*(told[one.metric] for one in named if one.metric in told))
        found += [f"{where}: nothing has the label {name}" for name in sorted(grouped_by(expression) - known)]
    assert found == []


def test_every_scraped_metric_has_its_use(told: dict[str, dict[str, set[str]]]) -> None:
    """VIEW-5 no metric of ours is there for nobody: some panel or alert uses each, or operations.md says what it is
    for.
    """
    used = {one.metric for _, expression in asked() for one in selectors(expression)}
    text = (CHART.parents[2] / "docs" / "operations.md").read_text()
    families = {
        re.sub(r"_(total|bucket|count|sum|created)$", "", name) for name in told if name.startswith("gpuplane_")
    }
    shown = {re.sub(r"_(total|bucket|count|sum)$", "", name) for name in used}
    assert sorted(name for name in families - shown if name not in text) == []


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("absent(gpuplane_no_such_thing)", "nothing tells gpuplane_no_such_thing"),
        ("summ(gpuplane_allocations)", "nothing tells summ"),
        ('gpuplane_allocations{stat="held"}', "gpuplane_allocations has no label stat"),
        ('gpuplane_allocations{state="hold"}', "gpuplane_allocations has no state hold"),
    ],
)
def test_a_misspelt_one_is_found(told: dict[str, dict[str, set[str]]], expression: str, want: str) -> None:
    assert [problem for one in selectors(expression) for problem in wrong(one, told)] == [want]
