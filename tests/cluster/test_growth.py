"""Growth with the real Karpenter: from no GPU node to pods that run, and back."""

import time
from pathlib import Path

import pytest

from tests.cluster.agents import account, agents_of
from tests.cluster.controlplane.api import Observer
from tests.cluster.controlplane.chart import NAMESPACE
from tests.cluster.controlplane.karpenter import Karpenter
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.growing import POOL, cleared, gpus_of, halves, inventories, karpenter, requests, triggers
from tests.cluster.waiting import count_bound

__all__ = ["account", "cleared", "karpenter"]


@pytest.mark.usefixtures("account")
def test_from_zero_to_served_and_back(stack: Stack, karpenter: Karpenter, namespace: str, tmp_path: Path) -> None:
    """SCALE-1 SCALE-2 SCALE-3 SCALE-4 SCALE-5 sixteen halves: one trigger for eight GPUs, one node, on which an agent
    starts, all bound; then nothing is left.
    """
    karpenter.pool("h100")
    seen: dict[str, int] = {}
    path = f"/api/v1/namespaces/{namespace}/pods"
    with agents_of(stack, POOL, tmp_path), Observer(stack.api, path).watching() as pods:
        started = time.monotonic()
        halves(stack, namespace, 16)
        while not count_bound(16)(pods):
            seen |= {one["metadata"]["name"]: gpus_of(one) for one in triggers(stack)}
            assert time.monotonic() - started < 60, "not bound in a minute"
            time.sleep(0.1)
    assert max(seen.values()) == 8
    assert len(karpenter.claims()) == 1
    eventually(lambda: requests(stack)[0]["state"] == "served", seconds=20, what="the request served")
    (node_claim,) = stack.gpuplane.rest.get("/api/v1/node-claims/").json()["results"][:1]
    assert None not in [node_claim[f"{step}_at"] for step in ("launched", "registered", "ready", "inventory")]
    assert triggers(stack) == []
    stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
    eventually(lambda: kept_by(stack) == [], seconds=15, what="nothing of ours keeps the node")
    # Karpenter's own pace: consolidateAfter 5 s, a look each 10 s, 15 s of doubt; a doubt that holds begins all again
    eventually(lambda: not karpenter.claims(), seconds=180, what="the empty node consolidated")


def kept_by(stack: Stack) -> list[str]:
    """What keeps Karpenter from consolidating a node of its own: pods on it, and a mark not to disrupt it."""
    nodes = {
        node["metadata"]["name"]: node["metadata"].get("annotations", {})
        for node in stack.api.items("/api/v1/nodes")
        if POOL in node["metadata"]["labels"]
    }
    pods = [one["metadata"]["name"] for one in stack.api.items("/api/v1/pods") if one["spec"].get("nodeName") in nodes]
    return pods + [name for name, annotations in nodes.items() if "karpenter.sh/do-not-disrupt" in annotations]


def test_what_no_pool_can_make(stack: Stack, karpenter: Karpenter, namespace: str) -> None:
    """SCALE-1 SCALE-4 a pool without shape, one at its limit, a model that none has: a reason, and no trigger."""
    karpenter.pool("unknown", shape=False)
    karpenter.pool("small", "h100-4", limits={"nvidia.com/gpu": "0"})
    stack.api.create(
        f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims",
        claim("v100", namespace, devices={"count": 1, "model": ["V100"]}),
    )
    stack.add_pods([pod("v100", namespace, claimed="v100")])
    halves(stack, namespace, 1)

    def told() -> bool:
        texts = []
        for name in ("v100", "half-0"):
            answer = stack.gpuplane.rest.get(f"/api/v1/pods/{namespace}/{name}/explain/").json()
            texts.append((answer.get("growth") or {}).get("text", ""))
        return texts == [
            "no node is made for it: no pool can hold it: pool small: no gpu of the models asked",
            "no node is made for it: pool small may make no more nodes",
        ]

    eventually(told, seconds=20, what="both told why")
    pools = stack.gpuplane.rest.get("/api/v1/pools/").json()["results"]
    assert {one["name"]: one["source"] for one in pools} == {"small": "nodepool", "unknown": ""}
    assert triggers(stack) == []
    assert karpenter.claims() == []


def test_karpenter_is_away_and_gpuplane_dies(stack: Stack, karpenter: Karpenter, namespace: str) -> None:
    """SCALE-4 a trigger that is deleted by hand comes again; killed and started again, gpuplane goes on."""
    karpenter.pool("h100")
    eventually(lambda: karpenter.accepts("h100"), seconds=30, what="the pool Ready")
    karpenter.stop()
    with inventories(stack), Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as pods:
        halves(stack, namespace, 4)
        eventually(lambda: triggers(stack), seconds=20, what="a trigger")
        (trigger,) = triggers(stack)
        stack.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{trigger['metadata']['name']}", grace_seconds=0)
        eventually(
            lambda: [one["metadata"]["uid"] for one in triggers(stack)] not in ([], [trigger["metadata"]["uid"]]),
            seconds=20,
            what="made again",
        )
        stack.gpuplane.watch.kill()
        stack.gpuplane.watch.start()
        karpenter.start()
        pods.until(count_bound(4), seconds=60, what="served in the end")
    assert len(karpenter.claims()) == 1


def test_needs_that_go_while_a_node_launches(stack: Stack, karpenter: Karpenter, namespace: str) -> None:
    """SCALE-4 the trigger goes; the node comes, is not kept, and goes."""
    karpenter.pool("h100")
    halves(stack, namespace, 2)
    eventually(karpenter.claims, seconds=20, what="a NodeClaim")
    stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
    eventually(lambda: not triggers(stack), seconds=20, what="no trigger left")
    eventually(lambda: not karpenter.claims(), seconds=90, what="the node gone again")
