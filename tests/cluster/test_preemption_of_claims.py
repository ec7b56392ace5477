"""Preemption where kube-scheduler's own counting does not show it whom to evict: by claims, by names that it is told to
ignore, by shares.

A node is reserved (`allocations.scheduling.preemption`): it advertises no more `gpu.scheduling/pods` than pods have,
kube-scheduler refuses it and offers the least important pod, and the preempt verb names those whose devices are needed.
Shares its helpers with `test_preemption`.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import claim, two_islands
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import ALLOCATED, settled
from tests.cluster.test_preemption import NATIVE, classes, evicted, ranked, the_lowest_goes, waits, watching
from tests.cluster.waiting import bound, is_bound, pods_of, said, unschedulable

__all__ = ["classes"]
pytestmark = pytest.mark.parametrize("module_stack", ["sqlite", "postgresql"], indirect=True)

COUNTED = "gpu.scheduling/pods"
PLENTY = "100k"
"""As the API server writes a hundred thousand."""
KOORDINATOR = {"koordinator.sh/gpu": 100}


@pytest.fixture(scope="module")
def module_stack(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[Stack]:
    """gpuplane told to count pods that ask by `nvidia.com/gpu` among the others."""
    made = Stack(plane, plane.folder)
    try:
        made.install()
        made.start_gpuplane(vendor=request.param, settings={"GPUPLANE_COUNT_NATIVE": "1"})
        made.start_scheduler()
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def plenty_again(stack: Stack) -> Iterator[None]:
    """After each test no node is reserved any more, without waiting for time to pass."""
    yield
    eventually(
        lambda: {amounts_of(one) for one in stack.api.items("/api/v1/nodes")} <= {(PLENTY, PLENTY)},
        seconds=15,
        what="every node advertises plenty again",
    )


def amounts_of(node: Json) -> tuple[str, str]:
    """What a node advertises of the resource by which pods are counted."""
    status = node["status"]
    return status.get("capacity", {}).get(COUNTED, ""), status.get("allocatable", {}).get(COUNTED, "")


def placed(stack: Stack, seen: Any, namespace: str, pods: dict[str, str], **asked: Any) -> None:
    """Pods of these priorities, bound in this order."""
    for name, rank in pods.items():
        stack.add_pods([ranked(name, namespace, rank, **asked)])
        seen.until(bound(name), seconds=20, what=f"{name} bound")


ONE = {"claimed": "one"}


@pytest.mark.parametrize(
    ("node", "holder", "urgent"),
    [
        pytest.param("ways-a", ONE, ONE, id="a claim for a claim"),
        pytest.param("ways-b", {"resources": NATIVE}, ONE, id="nvidia.com gpu for a claim"),
        pytest.param("ways-c", ONE, {"resources": NATIVE}, id="a claim for nvidia.com gpu"),
        pytest.param(
            "ways-d", {"resources": KOORDINATOR}, {"resources": KOORDINATOR}, id="koordinator.sh for koordinator.sh"
        ),
        pytest.param("ways-e", {"resources": KOORDINATOR}, ONE, id="koordinator.sh for a claim"),
        pytest.param(
            "ways-f",
            {"resources": {"kubernetes.io/gpu": 100}},
            {"resources": NATIVE},
            id="another name for nvidia.com gpu",
        ),
    ],
)
def test_every_way_to_request_devices(
    stack: Stack, namespace: str, node: str, holder: dict[str, Any], urgent: dict[str, Any]
) -> None:
    """Of four holders on two nodes exactly the least important one goes, and its very GPU is the preemptor's."""
    stack.api.apply(claim("one", namespace))
    the_lowest_goes(stack, namespace, node, holder=holder, urgent=urgent)


def test_eight_contiguous_where_the_fewest_go(stack: Stack, namespace: str) -> None:
    """CLAIM-5 eight GPUs are wanted: of two full nodes that one gives way on which two pods hold them all, and no third
    node is touched.
    """
    stack.add_nodes(["eight-1"], gpus=8)
    stack.api.apply(claim("one", namespace), claim("four", namespace, devices={"count": 4, "policy": "contiguous"}))
    stack.api.apply(claim("eight", namespace, devices={"count": 8, "policy": "contiguous"}))
    with watching(stack, namespace) as seen:
        ones = {f"one-{number}": "low" for number in range(8)}
        placed(stack, seen, namespace, ones, claimed="one")
        stack.add_nodes(["eight-2"], gpus=8)
        placed(stack, seen, namespace, {"four-1": "low", "four-2": "low"}, claimed="four")
        stack.add_pods([ranked("wide", namespace, "high", claimed="eight")])
        seen.until(bound("wide"), seconds=40, what="the wide pod bound")
        assert evicted(seen) == {"four-1", "four-2"}
        assert pods_of(seen)["wide"]["spec"]["nodeName"] == "eight-2"
        settled(stack)


def test_exactly_those_of_the_island_that_is_needed(stack: Stack, namespace: str) -> None:
    """CLAIM-5 four GPUs of one island are wanted, one pod of middle importance sits on the other island: its neighbours
    stay with it.
    """
    stack.add_nodes(["islands"], gpus=8, links=two_islands())
    stack.api.apply(
        claim("one", namespace),
        claim("island", namespace, devices={"count": 4, "policy": "contiguous", "policyStrict": True}),
    )
    with watching(stack, namespace) as seen:
        placed(stack, seen, namespace, {f"old-{number}": "low" for number in range(7)}, claimed="one")
        placed(stack, seen, namespace, {"more": "middle"}, claimed="one")
        minor = {
            name: int(one["metadata"]["annotations"][ALLOCATED].split(":")[1]) for name, one in pods_of(seen).items()
        }
        needed = {name for name, one in minor.items() if one // 4 != minor["more"] // 4}
        stack.add_pods([ranked("wide", namespace, "high", claimed="island")])
        seen.until(bound("wide"), seconds=40, what="the wide pod bound")
        assert evicted(seen) == needed
        settled(stack)


def test_shares_on_different_devices(stack: Stack, namespace: str) -> None:
    """By the node's sum 80 core were free, on no device more than 40: one sharer goes, its neighbour stays."""
    stack.add_nodes(["shared"], gpus=2)

    def share(core: int, memory: str) -> dict[str, Any]:
        return {"resources": {"kubernetes.io/gpu-core": core, "kubernetes.io/gpu-memory": memory}}

    with watching(stack, namespace) as seen:
        placed(stack, seen, namespace, {"big": "middle"}, **share(60, "40Gi"))
        placed(stack, seen, namespace, {"other": "low"}, **share(60, "50Gi"))
        stack.add_pods([ranked("urgent", namespace, "high", **share(80, "60Gi"))])
        seen.until(bound("urgent"), seconds=30, what="the urgent share bound")
        assert evicted(seen) == {"other"}
        settled(stack)


@pytest.mark.parametrize("rank", ["middle", "never"])
def test_nobody_goes_for_an_equal_or_a_polite_one(stack: Stack, namespace: str, rank: str) -> None:
    """Equal priority evicts nobody, nor does preemptionPolicy Never; the pod waits with the reason that we gave."""
    stack.add_nodes([f"equals-{rank}"], gpus=1)
    stack.api.apply(claim("one", namespace))
    with watching(stack, namespace) as seen:
        placed(stack, seen, namespace, {"holder": "middle"}, claimed="one")
        stack.add_pods([ranked("second", namespace, rank, claimed="one")])
        waits(seen, "second", saying="no whole gpu device free")
        (machine,) = stack.api.items("/api/v1/nodes")
        assert amounts_of(machine) == (PLENTY, PLENTY)
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/holder", grace_seconds=0)
        seen.until(bound("second"), seconds=20, what="bound when the holder has ended")


@pytest.mark.parametrize(
    ("node", "devices"),
    [
        pytest.param("unfit-a", {"count": 1, "model": ["B200"]}, id="another model"),
        pytest.param("unfit-b", {"count": 3}, id="more than a node has"),
        pytest.param("unfit-c", {"count": 2, "policy": "contiguous", "policyStrict": True}, id="islands too small"),
    ],
)
def test_nobody_goes_where_the_devices_would_not_do(
    stack: Stack, namespace: str, node: str, devices: dict[str, Any]
) -> None:
    """CLAIM-3 what no eviction can mend evicts nobody, and no node is reserved."""
    stack.add_nodes([node], gpus=2, links=two_islands(2))
    stack.api.apply(claim("one", namespace), claim("wants", namespace, devices=devices))
    with watching(stack, namespace) as seen:
        placed(stack, seen, namespace, {"a": "low", "b": "low"}, claimed="one")
        stack.add_pods([ranked("urgent", namespace, "high", claimed="wants")])
        waits(seen, "urgent")
        (machine,) = stack.api.items("/api/v1/nodes")
        assert amounts_of(machine) == (PLENTY, PLENTY)


def test_nobody_goes_while_another_device_is_sick(stack: Stack, namespace: str) -> None:
    """Two GPUs are wanted, one of the two is sick: the holder of the other one stays."""
    stack.add_nodes(["sick"], gpus=2, sick=[1])
    stack.api.apply(claim("one", namespace), claim("two", namespace, devices={"count": 2}))
    with watching(stack, namespace) as seen:
        placed(stack, seen, namespace, {"holder": "low"}, claimed="one")
        stack.add_pods([ranked("urgent", namespace, "high", claimed="two")])
        waits(seen, "urgent")


def test_a_claim_edited_smaller_while_its_pod_waits(stack: Stack, namespace: str) -> None:
    """Nine GPUs no node has; edited to one, of which one is free, the pod is bound and nobody goes."""
    stack.add_nodes(["edited"], gpus=2)
    stack.api.apply(claim("one", namespace), claim("wants", namespace, devices={"count": 9}))
    with watching(stack, namespace) as seen:
        placed(stack, seen, namespace, {"holder": "low"}, claimed="one")
        stack.add_pods([ranked("urgent", namespace, "high", claimed="wants")])
        seen.until(unschedulable("urgent", saying="fewer than 9"), seconds=20, what="the urgent pod waits")
        stack.api.apply(claim("wants", namespace, devices={"count": 1}))
        seen.until(bound("urgent"), seconds=20, what="the urgent pod bound")
        assert evicted(seen) == set()


def test_two_that_wait_evict_no_more_than_they_need(stack: Stack, namespace: str) -> None:
    """Two urgent pods at once, of six holders on two nodes two go: the two least important ones."""
    stack.add_nodes(["both-1", "both-2"], gpus=3)
    stack.api.apply(claim("one", namespace))
    with watching(stack, namespace) as seen:
        ranks = {"a": "middle", "b": "middle", "c": "low", "d": "middle", "e": "low", "f": "middle"}
        placed(stack, seen, namespace, ranks, claimed="one")
        stack.add_pods([ranked(name, namespace, "high", claimed="one") for name in ("urgent-1", "urgent-2")])
        seen.until(bound("urgent-1", "urgent-2"), seconds=60, what="the urgent pods bound")
        assert evicted(seen) == {"c", "e"}
        settled(stack)


def test_a_burst_by_claims(stack: Stack, namespace: str) -> None:
    """LEASE-2 eight urgent pods take all GPUs from eight others at once: as many evictions as needed, no livelock."""
    stack.add_nodes(["crowd-1", "crowd-2"], gpus=4)
    stack.api.apply(claim("one", namespace))
    with watching(stack, namespace) as seen:
        old, new = [f"old-{number}" for number in range(8)], [f"new-{number}" for number in range(8)]
        stack.add_pods([ranked(name, namespace, "low", claimed="one") for name in old])
        seen.until(bound(*old), seconds=30, what="all GPUs taken")
        stack.add_pods([ranked(name, namespace, "high", claimed="one") for name in new])
        seen.until(bound(*new), seconds=120, what="the urgent pods bound")
        assert evicted(seen) == set(old)
        settled(stack)


def test_what_goes_one_by_one_is_not_taken_by_others(stack: Stack, namespace: str) -> None:
    """Four holders go for one pod while eight less important ones wait for their GPUs: none of these gets one."""
    stack.add_nodes(["slowly"], gpus=4)
    stack.api.apply(claim("one", namespace), claim("four", namespace, devices={"count": 4}))
    with watching(stack, namespace) as seen:
        old = [f"old-{number}" for number in range(4)]
        stack.add_pods([ranked(name, namespace, "low", claimed="one") for name in old])
        seen.until(bound(*old), seconds=30, what="all GPUs taken")
        thirds = [f"third-{number}" for number in range(8)]
        stack.add_pods([ranked(name, namespace, "low", claimed="one") for name in thirds])
        seen.until(unschedulable(*thirds), seconds=20, what="the third pods wait")
        stack.add_pods([ranked("wide", namespace, "high", claimed="four")])
        seen.until(bound("wide"), seconds=60, what="the wide pod bound")
        assert evicted(seen) == set(old)
        assert not any(is_bound(pods_of(seen)[name]) for name in thirds)
        settled(stack)


def test_a_disruption_budget_counts_where_any_device_would_do(stack: Stack, namespace: str) -> None:
    """Of two that could go, the one goes whose budget allows it, although it is the more important one."""
    stack.add_nodes(["budgeted"], gpus=2)
    stack.api.apply(claim("one", namespace))
    with watching(stack, namespace) as seen:
        kept = ranked("kept", namespace, "low", claimed="one")
        kept["metadata"]["labels"]["app"] = "kept"
        stack.add_pods([kept, ranked("other", namespace, "middle", claimed="one")])
        seen.until(bound("kept", "other"), seconds=20, what="both bound")
        budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        stack.api.create(
            budgets,
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "kept", "namespace": namespace},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
            },
        )
        eventually(
            lambda: stack.api.get(f"{budgets}/kept").get("status", {}).get("expectedPods") == 1,
            seconds=20,
            what="the budget counted by its controller",
        )
        stack.add_pods([ranked("urgent", namespace, "high", claimed="one")])
        seen.until(bound("urgent"), seconds=30, what="the urgent pod bound")
        assert evicted(seen) == {"other"}
        stack.api.delete(f"{budgets}/kept")


def test_a_waiting_pod_gets_the_reason(stack: Stack, namespace: str) -> None:
    """While its node is reserved and its victim ends, kube-scheduler and gpuplane give the pod readable reasons."""
    stack.add_nodes(["told"], gpus=1)
    stack.api.apply(claim("one", namespace))
    with watching(stack, namespace) as seen:
        placed(stack, seen, namespace, {"holder": "low"}, claimed="one")
        with stack.kubelets_asleep():
            stack.add_pods([ranked("urgent", namespace, "high", claimed="one")])
            seen.until(
                lambda now: pods_of(now).get("urgent", {}).get("status", {}).get("nominatedNodeName") == "told",
                seconds=20,
                what="a nomination",
            )
            assert f"Insufficient {COUNTED}" in said(pods_of(seen)["urgent"])
            (node,) = stack.api.items("/api/v1/nodes")
            assert amounts_of(node) == ("1", "1")
            told = stack.gpuplane.rest.get(f"/api/v1/pods/{namespace}/urgent/explain/").json()
            assert "no whole gpu device free" in str(told)
        seen.until(bound("urgent"), seconds=30, what="the urgent pod bound")


def test_the_reservation_of_a_pod_that_is_gone(stack: Stack, namespace: str) -> None:
    """The preemptor is deleted while its victim takes its time: the next one of its rank has the GPU as soon as it is
    free.
    """
    stack.add_nodes(["promised"], gpus=1)
    stack.api.apply(claim("one", namespace))
    with watching(stack, namespace) as seen:
        placed(stack, seen, namespace, {"old": "low"}, claimed="one")
        with stack.kubelets_asleep():
            stack.add_pods([ranked("urgent", namespace, "high", claimed="one")])
            seen.until(lambda now: evicted(now) == {"old"}, seconds=30, what="the holder told to go")
            stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/urgent", grace_seconds=0)
            stack.add_pods([ranked("next", namespace, "high", claimed="one")])
            seen.until(unschedulable("next"), seconds=20, what="the next one waits")
        seen.until(bound("next"), seconds=15, what="the next one bound, long before the reservation would have ended")
        settled(stack)
