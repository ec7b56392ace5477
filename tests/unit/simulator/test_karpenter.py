"""The make-believe Karpenter: what it makes for whom, in which steps, and what it takes away."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import msgspec
import pytest

from kube.karpenter import DO_NOT_DISRUPT, NodeClaim, nominated_node_claim
from kube.listing import decode
from simulator.cluster.kinds import EVENTS, NODE_CLAIMS, NODE_POOLS, NODES, PODS, Object
from simulator.karpenter.controller import Karpenter
from simulator.karpenter.disruption import DISRUPTED
from simulator.karpenter.pools import EMPTY_FOR, INSTANCES, POOLS, Instance, taint_of
from simulator.karpenter.provisioner import CAPACITY_BACK
from tests.unit.simulator.clusters import ClockedStore

EXACT = {
    name: msgspec.structs.replace(one, launch=(2, 2), register=(10, 10), ready=(4, 4), scarce=0)
    for name, one in INSTANCES.items()
}
TOLERATED: dict[str, Any] = {"tolerations": [{**taint_of("burst"), "operator": "Equal"}]}
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"of": "trigger"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


class World:
    """A cluster with the NodePools of `make run`, and a clock."""

    def __init__(self, instances: dict[str, Instance] | None = None) -> None:
        self.store = ClockedStore()
        self.karpenter = Karpenter(self.store, rng=random.Random(1), instances=instances or EXACT)
        self.karpenter.install(POOLS)

    def run(self, seconds: int = 0) -> None:
        """Rounds, one a second."""
        self.karpenter.run()
        for _ in range(seconds):
            self.store.wait(1)
            self.karpenter.run()

    def events(self, reason: str) -> list[str]:
        return [item["message"] for item in self.store.list(EVENTS) if item["reason"] == reason]

    @property
    def claim(self) -> Object:
        (found,) = self.store.list(NODE_CLAIMS)
        return found


def waiting(store: ClockedStore, name: str, gpus: int = 8, **spec: Any) -> Object:
    requests = {"nvidia.com/gpu": str(gpus), "cpu": "1"}
    return store.pod(name, requests, unschedulable=True, **{**TOLERATED, **spec})


@pytest.mark.parametrize(
    ("pods", "want_claims"),
    [
        pytest.param([], [], id="nobody waits"),
        pytest.param([{}], ["b200-spot"], id="the heavier pool first"),
        pytest.param([{"gpus": 4}, {"gpus": 4}], ["b200-spot"], id="two that share a node"),
        pytest.param([{}, {}], ["b200", "b200-spot"], id="the limit of the heavier pool sends the second to the other"),
        pytest.param([{}] * 5, ["b200", "b200", "b200-spot"], id="no more than all limits allow"),
        pytest.param([{"gpus": 9}], [], id="no instance has so many GPUs"),
        pytest.param([{"tolerations": []}], [], id="a taint that is not tolerated"),
        pytest.param([{"nodeSelector": {"karpenter.sh/nodepool": "b200"}}], ["b200"], id="the pool that it selects"),
        pytest.param([{"nodeSelector": {"pool": "video"}}], [], id="a label of another pool"),
        pytest.param([{"nodeSelector": {"disk": "fast"}}], [], id="a label that no pool knows"),
        pytest.param([{"schedulingGates": [{"name": "g"}]}], [], id="a gated pod"),
        pytest.param([{"nodeName": "n"}], [], id="a bound pod"),
    ],
)
def test_what_is_made(pods: list[dict[str, Any]], want_claims: list[str]) -> None:
    """NodeClaims for pods that are unschedulable, by requests, rules and limits."""
    world = World()
    for number, about in enumerate(pods):
        waiting(world.store, f"p-{number}", **about)
    world.run()
    world.run(1)
    assert world.store.claims == want_claims


def test_pods_that_stay_apart_get_a_node_each() -> None:
    """As trigger pods do."""
    world = World()
    for number in range(2):
        waiting(world.store, f"p-{number}", 2, labels={"of": "trigger"}, affinity=APART)
    world.run()
    assert world.store.claims == ["b200", "b200-spot"]


@pytest.mark.parametrize(
    ("requests", "want"),
    [
        pytest.param({"gpu.scheduling/pods": "1"}, "Insufficient gpu.scheduling/pods", id="no instance has it"),
        pytest.param({"nvidia.com/gpu": "9"}, "Insufficient nvidia.com/gpu", id="too many"),
    ],
)
def test_why_nothing_is_made(requests: dict[str, str], want: str) -> None:
    """It says so on the pod, once."""
    world = World()
    world.store.pod("p", requests, unschedulable=True, **TOLERATED)
    world.run(3)
    (said,) = [text for text in world.events("FailedScheduling") if text.startswith("Failed to schedule pod")]
    assert want in said
    assert '(NodePool="b200-spot")' in said


def test_limits_are_the_reason() -> None:
    """What exceeds the limits waits; what its pools have is in their status."""
    world = World()
    for number in range(4):
        waiting(world.store, f"p-{number}", nodeSelector={"karpenter.sh/nodepool": "b200"})
    world.run()
    assert world.store.claims == ["b200", "b200"]
    said = [text for text in world.events("FailedScheduling") if "nodepool" in text]
    assert all("all available instance types exceed limits for nodepool" in text for text in said)
    assert len(said) == 2
    world.run()
    used = world.store.get(NODE_POOLS, "", "b200")["status"]["resources"]
    assert (used["nvidia.com/gpu"], used["nodes"]) == ("16", "2")


def test_steps_with_their_times() -> None:
    """Launched, then a node that is not ready, then a ready one with its GPUs; gpuplane reads the shapes."""
    world = World()
    waiting(world.store, "p")
    began = world.store.clock().timestamp()
    world.run(1)
    (said,) = world.events("Nominated")
    assert nominated_node_claim(said) == world.claim["metadata"]["name"]
    assert world.claim["status"]["conditions"] == []
    world.run(12)
    name = world.claim["metadata"]["name"]
    node = world.store.get(NODES, "", name)
    assert {taint["key"] for taint in node["spec"]["taints"]} == {"dedicated", "node.kubernetes.io/not-ready"}
    assert "nvidia.com/gpu" not in node["status"]["allocatable"]
    world.run(4)
    node = world.store.get(NODES, "", name)
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["dedicated"]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    read = decode(msgspec.json.encode(world.claim), NodeClaim)
    since = {step: read.since(step) for step in ("Launched", "Registered", "Initialized", "Ready")}
    moments = [datetime.fromisoformat(at) for at in since.values() if at]
    assert [round(at.timestamp() - began) for at in moments] == [2, 12, 16, 16]
    assert (read.pool, read.status.node_name) == ("b200-spot", name)
    assert sorted(world.events("Nominated")) == [f"Pod should schedule on: node/{name}", said], "each told once"
    world.run(60)
    assert world.store.find(NODES, "", name) is not None, "it is there for the pod, though nobody binds that"


def test_a_node_that_is_coming_is_for_those_that_come_later() -> None:
    """A second pod that fits beside the first is nominated to the same NodeClaim."""
    world = World()
    waiting(world.store, "p-1", 4)
    world.run(5)
    waiting(world.store, "p-2", 4)
    world.run(1)
    assert world.store.claims == ["b200-spot"]
    assert len(set(world.events("Nominated"))) == 1


def test_without_capacity_the_other_pool_serves() -> None:
    """It says what it lacks, its NodeClaim goes, and it is not asked again for a while."""
    scarce = {
        name: msgspec.structs.replace(one, scarce=10 if name == "b200-spot" else 0) for name, one in EXACT.items()
    }
    world = World(scarce)
    waiting(world.store, "p")
    world.run(3)
    (condition,) = world.claim["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "Launched",
        "False",
        "InsufficientCapacity",
    )
    world.run(4)
    assert world.store.claims == ["b200"]
    world.run(int(CAPACITY_BACK.total_seconds()) + 1)
    waiting(world.store, "q")
    world.run(1)
    assert "b200-spot" in world.store.claims


def ready(world: World) -> str:
    """A node that came for a pod that is gone; its name."""
    waiting(world.store, "p")
    world.run(20)
    world.store.delete(PODS, "team", "p")
    return str(world.claim["metadata"]["name"])


def test_an_empty_node_goes() -> None:
    """Tainted first, then deleted with its NodeClaim, as long after as its pool says."""
    world = World()
    name = ready(world)
    world.store.pod("before", {"cpu": "1"}, nodeName=name)
    world.run(60)
    assert world.store.claims == ["b200-spot"], "somebody uses it"
    world.store.delete(PODS, "team", "before")
    world.run(EMPTY_FOR - 1)
    assert DISRUPTED not in world.store.get(NODES, "", name)["spec"]["taints"]
    world.run(1)
    assert DISRUPTED in world.store.get(NODES, "", name)["spec"]["taints"]
    world.run(3)
    assert world.store.find(NODES, "", name) is None
    assert world.store.claims == []
    world.run()
    assert world.store.get(NODE_POOLS, "", "b200-spot")["status"]["resources"]["nvidia.com/gpu"] == "0"


def test_a_pod_that_comes_late_keeps_the_node() -> None:
    """The taint is taken off again."""
    world = World()
    name = ready(world)
    world.run(EMPTY_FOR + 1)
    world.store.pod("late", {"cpu": "1"}, nodeName=name)
    world.run(30)
    assert world.store.get(NODES, "", name)["spec"]["taints"] == [taint_of("burst")]


def test_do_not_disrupt_keeps_an_empty_node() -> None:
    """As long as the annotation is there."""
    world = World()
    name = ready(world)
    world.store.merge(NODES, "", name, {"metadata": {"annotations": {DO_NOT_DISRUPT: "true"}}})
    world.run(90)
    assert world.store.claims == ["b200-spot"]
    world.store.merge(NODES, "", name, {"metadata": {"annotations": {DO_NOT_DISRUPT: None}}})
    world.run(EMPTY_FOR + 4)
    assert world.store.claims == []


def test_a_node_pool_that_is_deleted_takes_its_nodes_along() -> None:
    """Those that are coming too."""
    world = World()
    waiting(world.store, "p")
    world.run(1)
    world.store.delete(NODE_POOLS, "", "b200-spot")
    world.run()
    assert world.store.claims == []


def test_a_restart_goes_on() -> None:
    """Another process makes the same node, at the same times, and no second one."""
    world = World()
    waiting(world.store, "p")
    world.run(5)
    world.karpenter = Karpenter(world.store, rng=random.Random(2), instances=EXACT)
    world.karpenter.install(POOLS)
    world.run(12)
    assert world.store.claims == ["b200-spot"]
    assert world.store.find(NODES, "", world.claim["metadata"]["name"]) is not None
