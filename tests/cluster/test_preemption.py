"""kube-scheduler's preemption and our preempt verb: who is evicted for whom, and that nobody is where it would not
help.

kube-scheduler looks for victims by resource names alone, then asks the verb whether the devices of those would do.
Where names do not tell it anything (claims, `koordinator.sh/`, shares of one device) a node is reserved: the tests from
`test_a_claim_takes_the_lowest` on.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cluster.controlplane.api import Json, Observer
from tests.cluster.controlplane.objects import claim, inventory, pod, priority_class, two_islands
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import ALLOCATED, settled
from tests.cluster.waiting import bound, is_bound, pods_of, said, unschedulable

pytestmark = pytest.mark.parametrize("module_stack", ["sqlite", "postgresql"], indirect=True)
CLASSES = {"preempt-low": 10, "preempt-middle": 100, "preempt-high": 1000}
RANKS = "/apis/scheduling.k8s.io/v1/priorityclasses"
NATIVE = {"nvidia.com/gpu": 1}


@pytest.fixture(autouse=True)
def classes(stack: Stack) -> Iterator[None]:
    """PriorityClasses low, middle and high."""
    for name, value in CLASSES.items():
        stack.api.create(RANKS, priority_class(name, value))
    stack.api.create(RANKS, {**priority_class("preempt-never", 2000), "preemptionPolicy": "Never"})
    yield
    for name in (*CLASSES, "preempt-never"):
        stack.api.delete(f"{RANKS}/{name}")


def ranked(name: str, namespace: str, rank: str, **more: Any) -> Json:
    """A pod of a priority."""
    return pod(name, namespace, priorityClassName=f"preempt-{rank}", **more)


@contextmanager
def watching(stack: Stack, namespace: str) -> Iterator[Observer]:
    """The namespace's pods."""
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        yield seen


def evicted(seen: Observer) -> set[str]:
    """Names of pods that ever were told to go."""
    return {
        versions[-1]["metadata"]["name"]
        for versions in seen.history.values()
        if any(one["metadata"].get("deletionTimestamp") for one in versions)
    }


def waits(seen: Observer, name: str, *, saying: str = "") -> None:
    """The scheduler has looked for somebody to evict, and found nobody: the message of the refusal says that it has."""

    def told(now: Observer) -> bool:
        text = said(pods_of(now)[name]) if name in pods_of(now) else ""
        return "preemption:" in text and saying in text

    seen.until(told, seconds=20, what=f"{name} refused with a reason, {saying}, preemption tried")
    found = pods_of(seen)[name]
    assert not is_bound(found)
    assert not found["status"].get("nominatedNodeName")
    assert evicted(seen) == set()


def the_lowest_goes(stack: Stack, namespace: str, node: str, *, holder: dict[str, Any], urgent: dict[str, Any]) -> None:
    """Of four holders on two nodes exactly the least important one is evicted, and its very GPU goes to the
    preemptor.
    """
    stack.add_nodes([f"{node}-1", f"{node}-2"], gpus=2)
    with watching(stack, namespace) as seen:
        for name, rank in {"a": "middle", "b": "middle", "c": "low", "d": "middle"}.items():
            stack.add_pods([ranked(name, namespace, rank, **holder)])
            seen.until(bound(name), seconds=20, what=f"{name} bound")
        its = pods_of(seen)["c"]["metadata"]["annotations"][ALLOCATED]
        stack.add_pods([ranked("urgent", namespace, "high", **urgent)])
        seen.until(bound("urgent"), seconds=30, what="the urgent pod bound")
        assert evicted(seen) == {"c"}
        assert pods_of(seen)["urgent"]["metadata"]["annotations"][ALLOCATED] == its
        of_preemption = ("get", "events", "-n", namespace, "--field-selector", "reason=Preempted")
        eventually(
            lambda: "pod/c" in stack.api.kubectl(*of_preemption), seconds=10, what="the event, which is sent late"
        )
        settled(stack)


def test_the_lowest_goes_for_the_highest(stack: Stack, namespace: str) -> None:
    """By `nvidia.com/gpu`, which kube-scheduler counts itself."""
    the_lowest_goes(stack, namespace, "lowest", holder={"resources": NATIVE}, urgent={"resources": NATIVE})


def test_several_go_for_one_and_from_one_node_only(stack: Stack, namespace: str) -> None:
    """Three GPUs are wanted: the three cheapest holders of one node go, the other node is left alone."""
    stack.add_nodes(["several-1", "several-2"], gpus=4)
    with watching(stack, namespace) as seen:
        names = [f"old-{number}" for number in range(8)]
        stack.add_pods([ranked(name, namespace, "low", resources=NATIVE) for name in names])
        seen.until(bound(*names), seconds=20, what="eight holders bound")
        where = {name: found["spec"]["nodeName"] for name, found in pods_of(seen).items()}
        stack.add_pods([ranked("wide", namespace, "high", resources={"nvidia.com/gpu": 3})])
        seen.until(bound("wide"), seconds=30, what="the wide pod bound")
        went = evicted(seen)
        assert len(went) == 3
        assert {where[name] for name in went} == {pods_of(seen)["wide"]["spec"]["nodeName"]}
        settled(stack)


def test_shares_give_way(stack: Stack, namespace: str) -> None:
    """Of two sharers of one GPU the less important goes; the other keeps its share, and nothing is given beyond its
    size.
    """
    stack.add_nodes(["sharers"], gpus=1)

    def share(core: int, memory: str) -> dict[str, str | int]:
        return {"kubernetes.io/gpu-core": core, "kubernetes.io/gpu-memory": memory}

    with watching(stack, namespace) as seen:
        stack.add_pods(
            [
                ranked("keeps", namespace, "middle", resources=share(40, "30Gi")),
                ranked("goes", namespace, "low", resources=share(60, "50Gi")),
            ]
        )
        seen.until(bound("keeps", "goes"), seconds=20, what="both sharers bound")
        stack.add_pods([ranked("urgent", namespace, "high", resources=share(50, "40Gi"))])
        seen.until(bound("urgent"), seconds=30, what="the urgent share bound")
        assert evicted(seen) == {"goes"}
        settled(stack)


def test_equal_priority_waits(stack: Stack, namespace: str) -> None:
    """Nobody goes for a pod of the same priority, nor for one that says that it never preempts."""
    stack.add_nodes(["equal"], gpus=1)
    with watching(stack, namespace) as seen:
        stack.add_pods([ranked("first", namespace, "middle", resources=NATIVE)])
        seen.until(bound("first"), seconds=20, what="the first bound")
        stack.add_pods([ranked("second", namespace, "middle", resources=NATIVE)])
        waits(seen, "second", saying="nvidia.com/gpu")
        stack.add_pods([ranked("polite", namespace, "never", resources=NATIVE)])
        seen.until(unschedulable("polite", saying="nvidia.com/gpu"), seconds=20, what="the polite one waits")
        assert evicted(seen) == set()


def test_nobody_goes_while_another_device_is_sick(stack: Stack, namespace: str) -> None:
    """By numbers two GPUs would be free without the holder, but one of them is sick; once it is well, the
    holder goes.
    """
    stack.add_nodes(["half-sick"], gpus=2, sick=[1])
    with watching(stack, namespace) as seen:
        stack.add_pods([ranked("holder", namespace, "low", resources={"kubernetes.io/gpu": 100})])
        seen.until(bound("holder"), seconds=20, what="the holder bound to the GPU that is well")
        stack.add_pods([ranked("two", namespace, "high", resources={"kubernetes.io/gpu": 200})])
        waits(seen, "two")
        stack.tell_inventory(inventory("half-sick", gpus=2))
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/two", grace_seconds=0)
        stack.add_pods([ranked("two-again", namespace, "high", resources={"kubernetes.io/gpu": 200})])
        seen.until(bound("two-again"), seconds=30, what="both GPUs given once both are well")
        assert "holder" in evicted(seen)


def test_nobody_goes_for_what_no_device_holds(stack: Stack, namespace: str) -> None:
    """By numbers 60 GiB would be free without both holders, but no device has more than 40."""
    stack.add_nodes(["small-ones"], gpus=2, memory="40Gi")
    with watching(stack, namespace) as seen:
        full = {"kubernetes.io/gpu-core": 100, "kubernetes.io/gpu-memory": "40Gi"}
        stack.add_pods([ranked(name, namespace, "low", resources=full) for name in ("one", "other")])
        seen.until(bound("one", "other"), seconds=20, what="both holders bound")
        big = {"kubernetes.io/gpu-core": 10, "kubernetes.io/gpu-memory": "60Gi"}
        stack.add_pods([ranked("big", namespace, "high", resources=big)])
        waits(seen, "big")


@pytest.mark.parametrize(
    ("spec", "saying"),
    [
        pytest.param(None, "does not exist", id="missing claim"),
        pytest.param({"count": 1, "model": ["B200"]}, "model", id="another model"),
        pytest.param({"count": 3}, "", id="more than a node has"),
        pytest.param({"count": 2, "policy": "contiguous", "policyStrict": True}, "", id="islands too small"),
    ],
)
def test_nobody_goes_for_a_claim_that_cannot_be_served(
    stack: Stack, namespace: str, spec: dict[str, Any] | None, saying: str
) -> None:
    """CLAIM-3 what no eviction can mend evicts nobody."""
    stack.add_nodes(["cannot-be-served"], gpus=2, links=two_islands(2))
    stack.api.apply(claim("one", namespace))
    with watching(stack, namespace) as seen:
        stack.add_pods([ranked(f"holder-{number}", namespace, "low", claimed="one") for number in range(2)])
        seen.until(bound("holder-0", "holder-1"), seconds=20, what="both holders bound")
        if spec is not None:
            stack.api.apply(claim("wants", namespace, devices=spec))
        stack.add_pods([ranked("urgent", namespace, "high", claimed="wants")])
        waits(seen, "urgent", saying=saying)


def test_a_disruption_budget_is_respected(stack: Stack, namespace: str) -> None:
    """Of two that could go, the one goes whose budget allows it, although it is the more important one."""
    stack.add_nodes(["budget"], gpus=2)
    with watching(stack, namespace) as seen:
        kept = ranked("kept", namespace, "low", resources=NATIVE)
        kept["metadata"]["labels"]["app"] = "kept"
        stack.add_pods([kept, ranked("other", namespace, "middle", resources=NATIVE)])
        seen.until(bound("kept", "other"), seconds=20, what="both bound")
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "kept", "namespace": namespace},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
        }
        budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
        stack.api.create(budgets, budget)
        eventually(
            lambda: stack.api.get(f"{budgets}/kept").get("status", {}).get("expectedPods") == 1,
            seconds=20,
            what="the budget counted by its controller",
        )
        stack.add_pods([ranked("urgent", namespace, "high", resources=NATIVE)])
        seen.until(bound("urgent"), seconds=30, what="the urgent pod bound")
        assert evicted(seen) == {"other"}
        stack.api.delete(f"{budgets}/kept")


def test_a_third_pod_does_not_take_what_was_made_free(stack: Stack, namespace: str) -> None:
    """While the victim takes its time, and when it goes, the GPU is the preemptor's: pods of less priority come and
    wait.
    """
    stack.add_nodes(["nominated", "elsewhere"], gpus=1)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with watching(stack, namespace) as seen:
        stack.add_pods([ranked(name, namespace, "low", resources=NATIVE) for name in ("first", "second")])
        seen.until(bound("first", "second"), seconds=20, what="the holders bound")
        with stack.kubelets_asleep():
            stack.add_pods([ranked("urgent", namespace, "high", resources=NATIVE)])
            seen.until(
                lambda now: pods_of(now).get("urgent", {}).get("status", {}).get("nominatedNodeName"),
                seconds=30,
                what="a nomination",
            )
            thirds = [f"third-{number}" for number in range(4)]
            stack.add_pods([ranked(name, namespace, "low", resources=NATIVE) for name in thirds])
            seen.until(unschedulable(*thirds), seconds=20, what="the third pods wait")
            assert not is_bound(pods_of(seen)["urgent"])
            (victim,) = evicted(seen)
        seen.until(bound("urgent"), seconds=30, what="the urgent pod bound")
        assert not any(is_bound(pods_of(seen)[name]) for name in thirds)
        assert evicted(seen) == {victim}
        assert seen.named("urgent")[-1]["spec"]["nodeName"] == seen.named(victim)[-1]["spec"]["nodeName"]
        # and once it has ended, one of the others has it
        stack.api.delete(f"{pods}/urgent", grace_seconds=0)
        seen.until(lambda now: any(is_bound(pods_of(now).get(one)) for one in thirds), seconds=30, what="a third bound")
        assert evicted(seen) <= {victim, "urgent"}


def test_a_burst_of_preemptors(stack: Stack, namespace: str) -> None:
    """LEASE-2 sixteen urgent pods take all GPUs from sixteen others at once: as many evictions as needed, no
    livelock.
    """
    stack.add_nodes(["burst-1", "burst-2"], gpus=8)
    with watching(stack, namespace) as seen:
        old, new = [f"old-{number}" for number in range(16)], [f"new-{number}" for number in range(16)]
        stack.add_pods([ranked(name, namespace, "low", resources=NATIVE) for name in old])
        seen.until(bound(*old), seconds=30, what="all GPUs taken")
        stack.add_pods([ranked(name, namespace, "high", resources=NATIVE) for name in new])
        seen.until(bound(*new), seconds=90, what="the urgent pods bound")
        assert evicted(seen) == set(old)
        settled(stack)
