"""Every GPU for Prometheus: read back with Prometheus' own parser."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import DjangoAssertNumQueries
from rest_framework.test import APIClient

from access.choices import Role, TokenScope
from access.tokens import issue
from agent.protocol import COLUMNS
from allocations.choices import GROUP_LIVE, GroupState
from allocations.ledger.groups import fail_group
from allocations.models import Allocation, AllocationDevice, PodRefusal
from allocations.publish.fleet_metrics import FRESH_SECONDS, MEASURED, fleet_metrics
from allocations.publish.ledger_metrics import ledger_metrics
from nodes.choices import Mode, NodeState
from nodes.live.samples import SampleView
from nodes.models import Device
from nodes.unverified_devices import UNREAD
from tests.extender import bound, filtered, pod_manifest
from tests.factories import H100_BYTES, GpuClaimFactory, NodeFactory, UserFactory
from tests.groups import share, whole

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
    """VIEW-5 labels by which dashboards join; what is not known, or old, has no line; sharers have lines of
    their own.
    """
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
    assert set(labels) == {"gpu", "uuid", "model", "node", "namespace", "pod", "container"}


def test_allocated_amounts_are_those_of_the_ledger() -> None:
    """VIEW-5 every GPU's figures and its holders' lines add up to the ledger's live grants, state by state."""
    for node in ("n1", "n2"):
        NodeFactory(name=node, gpus=4)
    GpuClaimFactory(name="third", spec={"devices": {"count": 2, "core": 30}})
    GpuClaimFactory(name="two", spec={"devices": {"count": 2}})
    for number, claim in enumerate(("third", "two", "third", "third", "two")):
        pod = pod_manifest(f"p{number}", claim=claim)
        chosen = filtered(pod, ["n1", "n2"])
        if number % 2:
            assert bound(pod, chosen) == ""
    found = read(fleet_metrics(samples={}, now=NOW))
    grants = AllocationDevice.objects.filter(live=True).select_related("allocation__node")
    core: Counter[tuple[str, str]] = Counter()
    memory: Counter[tuple[str, str]] = Counter()
    for grant in grants:
        gpu = grant.allocation.node.name, str(grant.minor)
        core[gpu] += grant.core_percent
        memory[gpu] += grant.memory_bytes
        assert (
            found["gpuplane_gpu_holder_core_percent", gpu[0], gpu[1] + grant.allocation.pod_name][0]
            == grant.core_percent
        )
    assert sum(name == "gpuplane_gpu_holder_core_percent" for name, *_ in found) == len(grants) > 0
    for node in ("n1", "n2"):
        for minor in "0123":
            assert found["gpuplane_gpu_core_allocated_percent", node, minor][0] == core[node, minor]
            assert found["gpuplane_gpu_memory_allocated_bytes", node, minor][0] == memory[node, minor]


def test_memory_in_use_and_free() -> None:
    NodeFactory(name="n1", gpus=2)
    known: Any = {"memory_used_bytes": (H100_BYTES // 4, None)}
    found = read(fleet_metrics(samples={"n1": sample("n1", **known)}, now=NOW))
    assert found["gpuplane_gpu_memory_free_bytes", "n1", "0"][0] == H100_BYTES * 3 // 4
    assert ("gpuplane_gpu_memory_free_bytes", "n1", "1") not in found
    assert found["gpuplane_gpu_memory_total_bytes", "n1", "1"][0] == H100_BYTES


def test_the_container_where_one_alone_has_the_gpu() -> None:
    """VIEW-5 HAMi's pods ask container by container; two of them on one GPU leave it without a name, an init container
    before them does not.
    """
    NodeFactory(name="n1", gpus=1)
    NodeFactory(name="n2", gpus=2)
    NodeFactory(name="n3", gpus=1)
    small = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "20", "nvidia.com/gpumem": "1000"}
    alone = {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}
    for name, node, wants in (("both", "n1", {"a": small, "b": small}), ("apart", "n2", {"a": alone, "b": alone})):
        pod = pod_manifest(name)
        pod["spec"]["containers"] = [{"name": key, "resources": {"limits": limits}} for key, limits in wants.items()]
        assert filtered(pod, [node]) == node
    early = pod_manifest("early")
    early["spec"]["containers"] = [{"name": "main", "resources": {"limits": small}}]
    early["spec"]["initContainers"] = [{"name": "warm-up", "resources": {"limits": small}}]
    assert filtered(early, ["n3"]) == "n3"
    lines = [
        one.labels
        for family in text_string_to_metric_families(fleet_metrics(samples={}, now=NOW))
        for one in family.samples
        if one.name == "gpuplane_gpu_holder_core_percent"
    ]
    told = [("apart", "a"), ("apart", "b"), ("both", ""), ("early", "main")]
    assert sorted((one["pod"], one["container"]) for one in lines) == told


def families(text: str) -> dict[tuple[str, ...], float]:
    """(metric, value of its label) → value."""
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_the_ledger_as_a_whole() -> None:
    """VIEW-5 live allocations by state, waiting pods by rule and the longest wait, the age of samples; zero is told
    too.
    """
    empty = families(ledger_metrics(samples={}, now=time.time()))
    nothing: dict[tuple[str, ...], float] = {
        ("gpuplane_allocations", "held"): 0,
        ("gpuplane_allocations", "reserved"): 0,
        ("gpuplane_allocations", "bound"): 0,
        ("gpuplane_allocations", "releasing"): 0,
        ("gpuplane_allocations_overdue", "held"): 0,
        ("gpuplane_allocations_overdue", "reserved"): 0,
        ("gpuplane_allocations_overdue", "releasing"): 0,
        ("gpuplane_nodes", "ready"): 0,
        ("gpuplane_nodes", "suspect"): 0,
        ("gpuplane_nodes", "not-ready"): 0,
        ("gpuplane_nodes", "gone"): 0,
        ("gpuplane_making_way",): 0,
        ("gpuplane_reservations", "wanted"): 0,
        ("gpuplane_reservations", "starting"): 0,
        ("gpuplane_reservations", "ready"): 0,
        ("gpuplane_reservations", "unprotected"): 0,
        ("gpuplane_reservations", "releasing"): 0,
        ("gpuplane_reservation_nodes_put_off",): 0,
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


def test_nodes_agents_and_external_holders() -> None:
    """VIEW-5 nodes by state, how long agents are silent, and devices in strangers' hands; what is being read is no
    stranger's.
    """
    now = datetime.fromtimestamp(NOW, UTC)
    NodeFactory(name="n1", gpus=3, agent_seen_at=now - timedelta(seconds=90), state=NodeState.NOT_READY)
    NodeFactory(name="n2", agent_seen_at=now + timedelta(seconds=2))
    NodeFactory(name="n3", agent_seen_at=now - timedelta(days=9), state=NodeState.GONE)
    NodeFactory(name="n4")
    Device.objects.filter(minor=0).update(stranger="kube-system/other/uid")
    Device.objects.filter(minor=1).update(stranger=UNREAD)
    found = families(ledger_metrics(samples={}, now=NOW))
    assert {state: found["gpuplane_nodes", state] for state in NodeState.values} == {
        "ready": 2,
        "suspect": 0,
        "not-ready": 1,
        "gone": 1,
    }
    silent = {rest[0]: value for (name, *rest), value in found.items() if name == "gpuplane_node_agent_silent_seconds"}
    assert silent == {"n1": 90, "n2": 0}
    strange = {tuple(rest): value for (name, *rest), value in found.items() if name == "gpuplane_devices_with_stranger"}
    assert strange == {("n1", "gpu"): 1}


def test_groups_by_state_and_nodes_that_begin_none() -> None:
    """VIEW-5 SHARE-7 groups behind reservation pods by state; a node is put off until its time has come."""
    for name in ("n1", "n2"):
        NodeFactory(name=name, gpus=4, mode=Mode.DEVICE_PLUGIN)
    now = datetime.fromtimestamp(NOW, UTC)
    share("a", node="n1", request=whole(1))
    share("b", node="n1", request=whole(1), state=GroupState.UNPROTECTED)
    group = share("c", node="n2", state=GroupState.STARTING)
    fail_group(group.pk, "no GPU left", now=now, actor="test")
    share("d", node="n1", state=GroupState.WANTED)
    for seconds, put_off in ((29, 1), (31, 0)):
        found = families(ledger_metrics(samples={}, now=NOW + seconds))
        assert {state: found["gpuplane_reservations", state] for state in GROUP_LIVE} == {
            "wanted": 1,
            "starting": 0,
            "ready": 1,
            "unprotected": 1,
            "releasing": 1,
        }
        assert found["gpuplane_reservation_nodes_put_off",] == put_off


def test_what_collection_has_left_lying() -> None:
    """VIEW-5 a hold is overdue a minute after its end, and not before."""
    NodeFactory(name="n1", gpus=1)
    GpuClaimFactory(name="one", spec={"devices": {"count": 1}})
    assert filtered(pod_manifest("held", claim="one"), ["n1"]) == "n1"
    until = Allocation.objects.values_list("hold_until", flat=True).get()
    assert until is not None
    for seconds, want in ((59, 0), (61, 1)):
        found = families(ledger_metrics(samples={}, now=until.timestamp() + seconds))
        assert found["gpuplane_allocations_overdue", "held"] == want


def test_as_many_queries_whatever_the_size(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for node in ("n1", "n2", "n3"):
        NodeFactory(name=node, gpus=4)
        with django_assert_num_queries(11):
            fleet_metrics(samples={}, now=NOW)
            ledger_metrics(samples={}, now=NOW)


def test_every_column_has_a_metric() -> None:
    assert set(MEASURED) == set(COLUMNS)


@pytest.mark.parametrize(
    ("role", "scope", "signed_in", "status"),
    [
        pytest.param(Role.VIEWER, TokenScope.METRICS, False, 200, id="a scraper"),
        pytest.param(Role.ADMIN, TokenScope.REST, True, 200, id="an admin's session"),
        pytest.param(Role.ADMIN, TokenScope.REST, False, 403, id="an admin's token is for REST"),
        pytest.param(Role.ADMIN, TokenScope.INVENTORY, False, 403, id="another machine, whatever its role"),
        pytest.param(Role.OPERATOR, TokenScope.REST, True, 403, id="an operator's session"),
        pytest.param(Role.VIEWER, TokenScope.REST, False, 403, id="a viewer's token"),
    ],
)
def test_who_may_scrape(role: Role, scope: TokenScope, signed_in: bool, status: int) -> None:
    """VIEW-6 names of pods of all namespaces are for the scope metrics, and for admins in person."""
    NodeFactory(name="n1", gpus=1)
    client = APIClient()
    user = UserFactory(role=role, scope=scope)
    if signed_in:
        client.force_login(user)
        answer = client.get(URL)
        client.logout()
    else:
        answer = client.get(URL, headers={"Authorization": f"Bearer {issue(user)}"})
    assert answer.status_code == status
    if status == 200:
        assert answer["Content-Type"].startswith("text/plain")
        told = families(answer.content.decode())
        assert ("gpuplane_allocations", "held") in told
        assert any(name == "gpuplane_gpu_healthy" for name, *_ in told)
        assert ("gpuplane_runners", "connected") in told
    assert client.get(URL).status_code == 401
