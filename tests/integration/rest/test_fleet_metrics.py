"""Every GPU for Prometheus: read back with Prometheus' own parser."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient

from access.choices import Role
from access.tokens import issue
from agent.protocol import COLUMNS
from allocations.fleet_metrics import FRESH_SECONDS, MEASURED, fleet_metrics
from allocations.ledger_metrics import ledger_metrics
from allocations.models import PodRefusal
from nodes.live.samples import SampleView
from nodes.models import Device
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory, UserFactory

pytestmark = pytest.mark.django_db
NOW = 1_800_000_000.0
URL = "/api/v1/fleet/metrics/"


def sample(node: str, *, age: float = 1.0, **columns: Any) -> SampleView:
    uuids = tuple(Device.objects.filter(node__name=node).order_by("minor").values_list("uuid", flat=True))
    unknown = (None,) * len(uuids)
    values = {name: tuple(columns.get(name, unknown)) for name in COLUMNS}
    return SampleView(node=node, boot="b", seq=1, time=NOW, received_at=NOW - age, devices=uuids, **values)


def read(text: str) -> dict[tuple[str, str, str], tuple[float, dict[str, str]]]:
    """(metric, node, minor) → value and labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert (family.type, bool(family.documentation)) == ("gauge", True)
        for one in family.samples:
            key = one.name, one.labels["node"], one.labels["gpu"] + one.labels["pod"] * ("holder" in one.name)
            assert key not in found
            found[key] = one.value, one.labels
    return found


def test_what_each_gpu_does_and_who_holds_it() -> None:
    """VIEW-5 labels by which dashboards join; what is not known, or old, has no line; sharers have lines of their own."""
    NodeFactory(name="n1", gpus=2)
    NodeFactory(name="n2", gpus=1)
    GpuClaimFactory(name="half", spec={"devices": {"count": 1, "core": 40}})
    GpuClaimFactory(name="one", spec={"devices": {"count": 1}})
    for name, claim in (("a", "half"), ("b", "half"), ("c", "one")):
        pod = pod_manifest(name, claim=claim)
        assert bound(pod, filtered(pod, ["n1"])) == ""
    Device.objects.filter(node__name="n2").update(healthy=False, model='odd "model"\\')
    known: Any = {"utilisation_percent": (55, None), "power_watts": (300, 70)}
    samples = {"n1": sample("n1", **known), "n2": sample("n2", age=FRESH_SECONDS + 1, power_watts=(99,))}
    found = read(fleet_metrics(samples=samples, now=NOW))

    assert found["gpuplane_gpu_utilisation_percent", "n1", "0"][0] == 55
    assert ("gpuplane_gpu_utilisation_percent", "n1", "1") not in found
    assert [found["gpuplane_gpu_power_watts", "n1", minor][0] for minor in "01"] == [300, 70]
    assert ("gpuplane_gpu_power_watts", "n2", "0") not in found
    shared, whole = ("0", "1") if found["gpuplane_gpu_core_allocated_percent", "n1", "0"][0] == 80 else ("1", "0")
    assert found["gpuplane_gpu_healthy", "n1", shared][1]["pod"] == ""
    assert found["gpuplane_gpu_healthy", "n1", whole][1]["pod"] == "c"
    assert found["gpuplane_gpu_healthy", "n1", whole][1]["namespace"] == "research"
    assert {found["gpuplane_gpu_holder_core_percent", "n1", shared + pod][0] for pod in "ab"} == {40}
    value, labels = found["gpuplane_gpu_healthy", "n2", "0"]
    assert (value, labels["model"]) == (0, 'odd "model"\\')
    assert set(labels) == {"gpu", "uuid", "model", "node", "namespace", "pod"}


def families(text: str) -> dict[tuple[str, ...], float]:
    """(metric, value of its label) → value."""
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_the_ledger_as_a_whole() -> None:
    """VIEW-5 live allocations by state, waiting pods by rule and the longest wait, the age of samples; zero is told too."""
    empty = families(ledger_metrics(samples={}, now=time.time()))
    nothing: dict[tuple[str, ...], float] = {
        ("gpuplane_allocations", "held"): 0,
        ("gpuplane_allocations", "reserved"): 0,
        ("gpuplane_allocations", "bound"): 0,
        ("gpuplane_allocations", "releasing"): 0,
        ("gpuplane_pods_waiting", "no-room"): 0,
        ("gpuplane_pod_waiting_longest_seconds",): 0,
    }
    assert empty == nothing
    NodeFactory(name="n1", gpus=2)
    GpuClaimFactory(name="one", spec={"devices": {"count": 1}})
    GpuClaimFactory(name="many", spec={"devices": {"count": 3}})
    placed, held = pod_manifest("placed", claim="one"), pod_manifest("held", claim="one")
    assert bound(placed, filtered(placed, ["n1"])) == ""
    assert filtered(held, ["n1"]) == "n1"
    for name in ("large", "larger"):
        assert filtered(pod_manifest(name, claim="many"), ["n1"]) is None
    assert filtered(pod_manifest("lost", claim="missing"), ["n1"]) is None
    PodRefusal.objects.filter(pod_name="larger").update(first_at=datetime.fromtimestamp(NOW - 90, UTC))
    PodRefusal.objects.exclude(pod_name="larger").update(first_at=datetime.fromtimestamp(NOW - 30, UTC))

    found = families(ledger_metrics(samples={"n1": sample("n1", age=4.5)}, now=NOW))
    assert (found["gpuplane_allocations", "bound"], found["gpuplane_allocations", "held"]) == (1, 1)
    assert found["gpuplane_pods_waiting", "no-room"] == 2
    assert [value for (name, *of), value in found.items() if name == "gpuplane_pods_waiting" and of != ["no-room"]] == [
        1
    ]
    assert found["gpuplane_pod_waiting_longest_seconds",] == 90
    assert found["gpuplane_node_sample_age_seconds", "n1"] == 4.5

    assert filtered(pod_manifest("lost", claim="one"), ["n1"]) is None  # another reason, told anew
    assert families(ledger_metrics(samples={}, now=NOW))["gpuplane_pods_waiting", "no-room"] == 3


def test_every_column_has_a_metric() -> None:
    assert set(MEASURED) == set(COLUMNS)


@pytest.mark.parametrize(
    ("role", "service", "status"),
    [(Role.ADMIN, False, 200), (Role.OPERATOR, True, 200), (Role.OPERATOR, False, 403), (Role.VIEWER, False, 403)],
)
def test_who_may_scrape(role: Role, service: bool, status: int) -> None:
    """VIEW-6 names of pods of all namespaces are for those who may see all of them."""
    NodeFactory(name="n1", gpus=1)
    client = APIClient()
    token = issue(UserFactory(role=role, service=service))
    answer = client.get(URL, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == status
    if status == 200:
        assert answer["Content-Type"].startswith("text/plain")
        told = families(answer.content.decode())
        assert ("gpuplane_allocations", "held") in told
        assert any(name == "gpuplane_gpu_healthy" for name, *_ in told)
    assert client.get(URL).status_code == 401
