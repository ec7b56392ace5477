"""Growth over REST, on its page, and for Prometheus."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from allocations.choices import State
from allocations.models import Allocation, PodRefusal
from autoscaling import counters
from autoscaling.metrics import growth_metrics
from autoscaling.models import NodeClaim, PodGrowth, Pool, ScalingRequest, Trigger
from autoscaling.overviews import requests_shown
from storage.clock import database_now
from tests.factories import NodeFactory
from tests.integration.rest.conftest import Api

pytestmark = pytest.mark.django_db
GPU = {"minor": 0, "type": "gpu", "model": "H100", "memory": 80 << 30}


@pytest.fixture
def growth() -> ScalingRequest:
    """A pool, one request whose node launches, and one pod that waits for it in each of two namespaces."""
    now = database_now()
    Pool.objects.create(name="h100", weight=10, stated={"devices": [GPU], "links": []}, changed_at=now)
    Pool.objects.create(name="unknown", changed_at=now, limits={"nodes": "3"}, used={"nodes": "1"})
    request = ScalingRequest.objects.create(
        pool="h100", model="H100", shape="s", state="launching", wanted=1, created_at=now, changed_at=now
    )
    Trigger.objects.create(
        request=request,
        ordinal=0,
        name="gpu-trigger-h100-1",
        gpus=1,
        state="launching",
        node_claim="h100-x",
        created_at=now,
        pods=["u1", "u2"],
    )
    NodeClaim.objects.create(name="h100-x", uid="c1", pool="h100", trigger="gpu-trigger-h100-1", created_at=now)
    for number, namespace in enumerate(("team-a", "team-b"), start=1):
        PodGrowth.objects.create(
            pod_uid=f"u{number}",
            namespace=namespace,
            pod_name="p",
            pool="h100",
            trigger="gpu-trigger-h100-1",
            changed_at=now,
        )
    return request


def test_pools(growth: ScalingRequest, viewer: Api, operator: Api) -> None:
    """VIEW-2 SCALE-1 Everybody reads; an operator says what the nodes of a pool have."""
    del growth
    status, body = viewer.get("pools/")
    assert status == 200
    known, unknown = body["results"]
    assert (known["name"], known["source"], known["model"], known["gpus"]) == ("h100", "nodepool", "H100", 1)
    assert (unknown["source"], unknown["shape"], unknown["nodes_left"]) == ("", None, 2)
    assert unknown["problem"] == "nobody says what its nodes have"
    shape = {"devices": [{"minor": 0, "model": "A100", "memory": "40Gi"}]}
    assert viewer.put("pools/unknown/", {"shape": shape})[0] == 403
    status, body = operator.put("pools/unknown/", {"shape": shape})
    assert (status, body["source"], body["model"]) == (200, "operator", "A100")
    assert operator.put("pools/unknown/", {"shape": {"devices": []}})[0] == 400
    assert operator.put("pools/unknown/", {"shape": {"devices": [], "name": "n"}})[0] == 400
    assert operator.put("pools/none/", {"shape": shape})[0] == 404


def test_scaling_requests(growth: ScalingRequest, viewer: Api, operator: Api) -> None:
    """VIEW-2 SCALE-3 Pods of other namespaces are counted, not named; an operator cancels."""
    status, body = viewer.get("scaling-requests/?state=launching")
    assert status == 200
    (row,) = body["results"]
    assert (row["pods"], row["pods_total"]) == (["team-a/p"], 2)
    assert row["triggers"][0]["node_claim"] == "h100-x"
    path = f"scaling-requests/{growth.pk}/"
    assert viewer.delete(path)[0] == 403
    assert operator.delete(path)[0] == 204
    assert operator.get(path)[1]["state"] == "cancelled"
    assert operator.delete(path)[0] == 409
    assert viewer.get("scaling-requests/999/")[0] == 404


def test_node_claims(growth: ScalingRequest, viewer: Api) -> None:
    """VIEW-2 SCALE-3 With the times of their steps."""
    del growth
    status, body = viewer.get("node-claims/?pool=h100")
    assert status == 200
    assert [(one["name"], one["trigger"], one["ready_at"]) for one in body["results"]] == [
        ("h100-x", "gpu-trigger-h100-1", None)
    ]
    assert viewer.get("node-claims/?pool=other")[1]["results"] == []


def test_explain_goes_on_to_the_node_claim(growth: ScalingRequest, viewer: Api) -> None:
    """VIEW-3c SCALE-4 From node and device to pool and NodeClaim; a namespace that is not seen is none."""
    del growth
    now = database_now()
    PodRefusal.objects.create(
        pod_uid="u1", namespace="team-a", pod_name="p", summary="there are no nodes", first_at=now, last_at=now
    )
    status, body = viewer.get("pods/team-a/p/explain/")
    assert status == 200
    assert body["growth"]["text"] == "waits for a new node of pool h100, NodeClaim h100-x: it is being launched"
    assert body["growth"]["node_claim"] == "h100-x"
    assert viewer.get("pods/team-b/p/explain/")[0] == 404
    assert viewer.user is not None
    page = Client()
    page.force_login(viewer.user)
    for path in ("/pending/team-a/p/", "/pending/", "/pending/count/?list=1"):
        assert body["growth"]["text"] in page.get(path).content.decode(), path


def test_the_page(growth: ScalingRequest, viewer: Api, operator: Api) -> None:
    """VIEW-2c SCALE-3 What grows, for whom and how far; the button for operators alone."""
    NodeClaim.objects.update(inventory_at=database_now() + timedelta(seconds=40))
    page = Client()
    assert viewer.user is not None
    assert operator.user is not None
    page.force_login(viewer.user)
    text = page.get("/scaling/").content.decode()
    assert "team-a/p" in text
    assert "team-b/p" not in text
    assert "and 1 more pod" in text
    assert "h100-x: it is being launched" in text
    assert "provision-times" in text
    assert "/cancel/" not in text
    assert page.post(f"/scaling/{growth.pk}/cancel/").status_code == 403
    page.force_login(operator.user)
    assert "/cancel/" in page.get("/scaling/parts/").content.decode()
    assert page.post(f"/scaling/{growth.pk}/cancel/").status_code == 302
    growth.refresh_from_db()
    assert (growth.state, growth.reason) == ("cancelled", "cancelled by olga")


def test_a_pod_is_named_by_each_of_its_requests(growth: ScalingRequest, viewer: Api) -> None:
    """VIEW-2 SCALE-4 The one that failed and the one that served it."""
    now = database_now()
    Trigger.objects.update(state="failed")
    ScalingRequest.objects.update(state="failed")
    PodGrowth.objects.all().delete()
    again = ScalingRequest.objects.create(
        pool="other", model="H100", shape="s", state="served", created_at=now + timedelta(seconds=9), changed_at=now
    )
    Trigger.objects.create(request=again, ordinal=0, name="gpu-trigger-h100-2", gpus=1, state="served", pods=["u1"])
    about = {"pod_uid": "u1", "namespace": "team-a", "pod_name": "p", "holder": "team-a/p/u1", "dialect": "claim"}
    node = NodeFactory(name="h100-x")
    Allocation.objects.create(**about, node=node, state=State.BOUND, request={}, created_at=now, changed_at=now)
    shown = requests_shown(viewer.actor, now=now)
    assert [(row.request.pk, row.pods) for row in shown] == [(again.pk, ("team-a/p",)), (growth.pk, ("team-a/p",))]


REACHED = ("created", "launched", "registered", "initialized", "ready", "inventory")


@pytest.mark.parametrize(
    ("state", "reached", "gone", "want_tones", "want_text"),
    [
        pytest.param("wanted", 0, False, "n------", "its trigger pod is to be made", id="no trigger pod yet"),
        pytest.param("launching", 2, False, "dddn---", "it is being launched", id="launched, not registered"),
        pytest.param("ready", 5, False, "ddddddn", "it is ready, and has not told", id="the agent is awaited"),
        pytest.param("served", 6, False, "ddddddd", "it has its devices", id="served"),
        pytest.param("served", 6, True, "dddddddd", "Karpenter has taken the node away", id="served, and gone again"),
        pytest.param("failed", 2, True, "dddf---", "no capacity", id="it failed on the way"),
        pytest.param("withdrawn", 0, False, "d------", "nobody waits", id="withdrawn"),
    ],
)
def test_the_timeline(
    growth: ScalingRequest, viewer: Api, state: str, reached: int, gone: bool, want_tones: str, want_text: str
) -> None:
    """VIEW-2 SCALE-3 What is done, what is waited for and what failed; the pods that were served keep their names."""
    now = database_now()
    reasons = {"failed": "no capacity", "withdrawn": "nobody waits"}
    created = None if state == "wanted" else now - timedelta(seconds=90)
    Trigger.objects.update(state=state, reason=reasons.get(state, ""), created_at=created)
    ended = {"served": "served", "failed": "failed", "withdrawn": "cancelled"}.get(state, "launching")
    ScalingRequest.objects.update(state=ended, reason=reasons.get(state, ""))
    times = {f"{step}_at": now - timedelta(seconds=80 - at) for at, step in enumerate(REACHED[:reached])}
    NodeClaim.objects.all().delete()
    if reached:
        about = {"name": "h100-x", "uid": "c1", "pool": "h100", "trigger": "gpu-trigger-h100-1"}
        NodeClaim.objects.create(**about, **times, deleted_at=now if gone else None)
    PodGrowth.objects.all().delete()
    node = NodeFactory(name="h100-x")
    about = {"pod_uid": "u1", "namespace": "team-a", "pod_name": "p", "holder": "team-a/p/u1", "dialect": "claim"}
    Allocation.objects.create(**about, node=node, state=State.BOUND, request={}, created_at=now, changed_at=now)
    shown = requests_shown(viewer.actor, now=now)
    assert [row.request.pk for row in shown] == [growth.pk]
    (way,) = shown[0].nodes
    letters = {"done": "d", "now": "n", "failed": "f", "": "-"}
    assert "".join(letters[step.tone] for step in way.steps) == want_tones
    assert want_text in way.text
    assert (shown[0].pods, shown[0].reason) == (("team-a/p",), "")


def test_the_fleet_as_a_scenario_has_its_pools(growth: ScalingRequest, admin: Api) -> None:
    """VIEW-4 SCALE-5 What-if on the fleet as it is: a pod that no node has room for gets a node of a pool."""
    del growth
    status, scenario = admin.get("simulations/")
    assert (status, [one["name"] for one in scenario["pools"]]) == (200, ["h100"])
    claim = {"metadata": {"name": "one"}, "spec": {"devices": {"count": 1}}}
    pod = {"metadata": {"name": "p", "annotations": {"gpu.scheduling/claim": "one"}}, "spec": {"containers": []}}
    status, result = admin.post("simulations/", {**scenario, "claims": [claim], "pods": [pod]})
    assert status == 200
    assert result["scaling"] == [{"pool": "h100", "gpus": 1, "pods": ["default/p"]}]
    assert result["decisions"][0]["scaling"] == "h100"


def test_metrics(growth: ScalingRequest) -> None:
    """SCALE-6 Trigger pods under way, the age of the oldest, and how many nodes came of those wanted."""
    now = database_now()
    for ordinal, state in enumerate(("served", "served", "served", "failed"), start=1):
        Trigger.objects.create(request=growth, ordinal=ordinal, name=f"t{ordinal}", gpus=1, state=state, ended_at=now)
    found = {family.name: family.samples[0].value for family in text_string_to_metric_families(growth_metrics())}
    assert found["gpuplane_trigger_pods_active"] == 1
    assert found["gpuplane_scaling_success_ratio"] == 0.75
    assert found["gpuplane_trigger_pod_oldest_seconds"] < 60


def test_the_counters_that_alerts_name() -> None:
    """SCALE-6 Every series of growth exists from the start."""
    for counter in (counters.CREATED, counters.CLEANUP_FAILURES, counters.LANDED):
        assert next(iter(counter.collect())).samples
    steps = {one.labels["step"] for one in next(iter(counters.PROVISION.collect())).samples}
    assert steps == {"launched", "registered", "initialized", "ready", "inventory"}
    assert {one.labels["outcome"] for one in next(iter(counters.OUTCOMES.collect())).samples} == {"served", "failed"}
