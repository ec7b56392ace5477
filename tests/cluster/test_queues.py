"""Queues and gangs on a real cluster: gates, kube-scheduler, the Eviction API, budgets, kills (CLAIM-8, QUEUE-1 to
QUEUE-5).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.objects import pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import settled
from tests.cluster.test_preemption import evicted, watching
from tests.cluster.waiting import bound, count_bound, gone, is_bound, pods_of, unschedulable

pytestmark = pytest.mark.parametrize("module_stack", ["sqlite", "postgresql"], indirect=True)

KINDS = "/apis/gpu.scheduling/v1"
NATIVE = {"nvidia.com/gpu": 1}
GATE = {"name": "gpu.scheduling/queue"}


@pytest.fixture(autouse=True)
def no_queues(stack: Stack) -> Iterator[None]:
    """No queue of a test outlives it."""
    yield
    for one in stack.api.items(f"{KINDS}/gpuqueues"):
        stack.api.delete(f"{KINDS}/gpuqueues/{one['metadata']['name']}")
    eventually(lambda: not rest(stack, "queues/")["results"], seconds=20, what="the queues gone")


def rest(stack: Stack, path: str) -> Any:
    return stack.gpuplane.rest.get(f"/api/v1/{path}").json()


def queue(stack: Stack, name: str, **spec: Any) -> None:
    """A queue, as gpuplane knows it."""
    manifest = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuQueue", "metadata": {"name": name}, "spec": spec}
    stack.api.create(f"{KINDS}/gpuqueues", manifest)
    eventually(lambda: stack.gpuplane.rest.get(f"/api/v1/queues/{name}/").status_code == 200, seconds=15, what=name)
    where = spec.get("namespaces", ["default"])[0]
    probe = member("probe", where, queue=name)
    path = f"/api/v1/namespaces/{where}/pods?dryRun=All"
    eventually(lambda: GATE in gates(stack.api.create(path, probe)), seconds=15, what="admission knows the queue")


def gang(stack: Stack, namespace: str, name: str, members: int, **spec: Any) -> None:
    """A gang."""
    manifest = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuGang",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"minMember": members, **spec},
    }
    stack.api.create(f"{KINDS}/namespaces/{namespace}/gpugangs", manifest)


def member(name: str, namespace: str, *, gpus: int = 1, **labels: str) -> Json:
    """A pod with these labels of ours."""
    made = pod(name, namespace, resources={"nvidia.com/gpu": gpus})
    made["metadata"]["labels"] |= {f"gpu.scheduling/{key}": value for key, value in labels.items()}
    return made


def why(stack: Stack, namespace: str, name: str) -> str:
    """What explain says of a waiting pod."""
    answer = stack.gpuplane.rest.get(f"/api/v1/pods/{namespace}/{name}/explain/")
    return str(answer.json().get("summary", "")) if answer.status_code == 200 else ""


def gates(made: Json) -> list[Json]:
    """The pod's scheduling gates."""
    found: list[Json] = made["spec"].get("schedulingGates") or []
    return found


def test_a_gang_of_8_across_2_nodes(stack: Stack, namespace: str) -> None:
    """CLAIM-8 QUEUE-4 seven of eight wait behind their gate; with the eighth all are bound, in one rack."""
    stack.add_nodes(["ring-a1", "ring-a2"], gpus=4, labels={"rack": "a"})
    stack.add_nodes(["ring-b1"], gpus=4, labels={"rack": "b"})
    gang(stack, namespace, "ring", 8, topology={"required": "rack"})
    names = [f"ring-{number}" for number in range(8)]
    with watching(stack, namespace) as seen:
        made = stack.add_pods([member(name, namespace, gang="ring") for name in names[:7]])
        assert all(GATE in gates(one) for one in made)
        eventually(lambda: "7 of 8 pods" in why(stack, namespace, "ring-0"), seconds=10, what="the gang's reason")
        stack.add_pods([member(names[7], namespace, gang="ring")])
        seen.until(bound(*names), seconds=30, what="all eight bound")
        assert {one["spec"]["nodeName"] for one in pods_of(seen).values()} == {"ring-a1", "ring-a2"}
    eventually(
        lambda: rest(stack, f"gangs/{namespace}/ring/")["status"]["phase"] == "Placed", seconds=15, what="Placed"
    )
    settled(stack)


def test_two_gangs_that_each_need_all(stack: Stack, namespace: str) -> None:
    """CLAIM-8 one is bound whole, the other holds nothing; it goes when the first has gone."""
    stack.add_nodes(["both-1"], gpus=4)
    for name in ("one", "two"):
        gang(stack, namespace, name, 4)
    pods = [member(f"{name}-{number}", namespace, gang=name) for number in range(4) for name in ("one", "two")]
    with watching(stack, namespace) as seen:
        stack.add_pods(pods)
        seen.until(count_bound(4), seconds=30, what="one gang bound")
        first = {one["metadata"]["name"][:3] for one in pods_of(seen).values() if is_bound(one)}
        assert len(first) == 1
        for number in range(4):
            stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/{min(first)}-{number}", grace_seconds=0)
        other = ({"one", "two"} - first).pop()
        seen.until(bound(*(f"{other}-{number}" for number in range(4))), seconds=30, what="the other bound")
    settled(stack)


@contextmanager
def budget(stack: Stack, namespace: str, name: str, labels: dict[str, str], *, least: int) -> Iterator[None]:
    """A PodDisruptionBudget that leaves at least so many of these pods, once the cluster goes by it."""
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": least, "selector": {"matchLabels": labels}}
    made = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
    stack.api.create(path, made)

    def counted() -> bool:
        status = stack.api.get(f"{path}/{name}").get("status") or {}
        return bool(status.get("currentHealthy") == least and status.get("disruptionsAllowed") == 0)

    eventually(counted, seconds=20, what="the budget counts its pods")
    try:
        yield
    finally:
        stack.api.delete(f"{path}/{name}")


def test_reclaim_between_two_queues(stack: Stack, namespace: str) -> None:
    """QUEUE-3 what was borrowed is taken back by eviction; the taker gets the devices, and nobody else went."""
    stack.add_nodes(["fair-1"], gpus=4)
    for name in ("fair-research", "fair-product"):
        queue(stack, name, quotas=[{"deserved": 2}])
    with watching(stack, namespace) as seen:
        borrowers = [f"r{number}" for number in range(4)]
        stack.add_pods([member(name, namespace, queue="fair-research") for name in borrowers])
        seen.until(bound(*borrowers), seconds=30, what="the borrowers bound")
        stack.add_pods([member(name, namespace, queue="fair-product") for name in ("p0", "p1")])
        eventually(lambda: len(evicted(seen)) == 2, seconds=20, what="two borrowers told to go")
        for name in evicted(seen):
            stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace_seconds=0)
        seen.until(bound("p0", "p1"), seconds=30, what="the takers bound")
        assert len(evicted(seen)) == 2
    settled(stack)


def test_a_budget_is_respected(stack: Stack, namespace: str) -> None:
    """QUEUE-3 three of four borrowers are under a budget: the fourth goes, and nobody else while it holds."""
    stack.add_nodes(["budget-1"], gpus=4)
    for name in ("kept-research", "kept-product"):
        queue(stack, name, quotas=[{"deserved": 2}])
    with watching(stack, namespace) as seen:
        borrowers = [member(f"r{number}", namespace, queue="kept-research") for number in range(4)]
        for one in borrowers[1:]:
            one["metadata"]["labels"]["app"] = "kept"
        stack.add_pods(borrowers)
        seen.until(bound("r0", "r1", "r2", "r3"), seconds=30, what="the borrowers bound")
        with budget(stack, namespace, "kept", {"app": "kept"}, least=3):
            stack.add_pods([member("p0", namespace, queue="kept-product")])
            eventually(lambda: evicted(seen) == {"r0"}, seconds=30, what="the one without a budget told to go")
            stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/r0", grace_seconds=0)
            seen.until(bound("p0"), seconds=30, what="the taker bound")
            stack.add_pods([member("p1", namespace, queue="kept-product")])
            eventually(lambda: why(stack, namespace, "p1"), seconds=10, what="the second taker decided about")
            assert evicted(seen) == {"r0"}
        eventually(lambda: len(evicted(seen)) == 2, seconds=30, what="one more told to go once there is no budget")
        (second,) = evicted(seen) - {"r0"}
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/{second}", grace_seconds=0)
        seen.until(bound("p1"), seconds=30, what="the second taker bound")
    settled(stack)


@pytest.mark.parametrize("policy", ["none", "evictAll"])
def test_a_members_node_is_lost(stack: Stack, namespace: str, policy: str) -> None:
    """CLAIM-8 QUEUE-4 the node of half a gang goes away: the others stay, or go too, as the gang says."""
    there = [f"lost-{policy.lower()}-{number}" for number in range(2)]
    stack.add_nodes(there, gpus=2)
    gang(stack, namespace, "torn", 4, onMemberFailure=policy)
    names = [f"torn-{number}" for number in range(4)]
    with watching(stack, namespace) as seen:
        stack.add_pods([member(name, namespace, gang="torn") for name in names])
        seen.until(bound(*names), seconds=30, what="the gang bound")
        phase = f"gangs/{namespace}/torn/"
        eventually(lambda: rest(stack, phase)["status"]["phase"] == "Placed", seconds=15, what="Placed")
        lost = {name for name, one in pods_of(seen).items() if one["spec"]["nodeName"] == there[0]}
        stack.api.delete(f"/api/v1/nodes/{there[0]}")
        for name in lost:  # as the garbage collector of pods does after a while
            stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace_seconds=0)
        seen.until(gone(lost), seconds=30, what="the members on it gone")
        others = set(names) - lost
        assert len(others) == 2
        if policy == "evictAll":
            eventually(lambda: others <= evicted(seen), seconds=30, what="the others told to go")
        else:
            stack.add_pods([member("after", namespace)])
            eventually(lambda: why(stack, namespace, "after"), seconds=30, what="the fleet decided about again")
            assert not others & evicted(seen)
    settled(stack)


def test_pods_that_came_without_their_gate(stack: Stack, namespace: str) -> None:
    """CLAIM-8 QUEUE-5 admission did not see them: filter refuses them with the gang's reason until it is whole."""
    stack.add_nodes(["ungated-1"], gpus=4)
    gang(stack, namespace, "bare", 4)
    names = [f"bare-{number}" for number in range(4)]
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    with watching(stack, namespace) as seen:
        for one in stack.api.items(hooks):
            stack.api.delete(f"{hooks}/{one['metadata']['name']}")
        try:
            path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
            probe = member("probe", namespace, gang="bare")
            eventually(lambda: not gates(stack.api.create(path, probe)), seconds=15, what="admission away")
            stack.add_pods([member(name, namespace, gang="bare") for name in names[:3]])
        finally:
            stack.install()
        eventually(lambda: GATE in gates(stack.api.create(path, probe)), seconds=15, what="admission back")
        seen.until(unschedulable(*names[:3], saying="3 of 4 pods are there"), seconds=30, what="three refused")
        stack.add_pods([member(names[3], namespace, gang="bare")])
        seen.until(bound(*names), seconds=60, what="all four bound")
    settled(stack)


def test_a_limit_holds_whatever_is_free(stack: Stack, namespace: str) -> None:
    """QUEUE-1 QUEUE-5 the third pod of a queue of two waits, behind its gate, and says why; so does its status."""
    stack.add_nodes(["limit-1"], gpus=4)
    queue(stack, "narrow", namespaces=[namespace], quotas=[{"limit": 2}])
    with watching(stack, namespace) as seen:
        stack.add_pods([member(f"n{number}", namespace) for number in range(3)])
        seen.until(lambda now: len(now.now) == 3 and count_bound(2)(now), seconds=30, what="two of three bound")
        (left,) = [name for name, one in pods_of(seen).items() if not is_bound(one)]
        assert GATE in gates(pods_of(seen)[left])
        text = "queue narrow holds 2 of its limit of 2 GPUs"
        eventually(lambda: why(stack, namespace, left) == text, seconds=10, what="the reason")
    status = stack.api.get(f"{KINDS}/gpuqueues/narrow")
    eventually(
        lambda: (stack.api.get(f"{KINDS}/gpuqueues/narrow").get("status") or {}).get("waiting") == 1,
        seconds=15,
        what=f"the status of the object: {status.get('status')}",
    )


def test_a_node_comes_while_a_gang_waits(stack: Stack, namespace: str) -> None:
    """CLAIM-8 as Karpenter brings one: the gang goes as soon as it is whole."""
    stack.add_nodes(["late-1"], gpus=4)
    gang(stack, namespace, "wide", 8)
    names = [f"wide-{number}" for number in range(8)]
    with watching(stack, namespace) as seen:
        stack.add_pods([member(name, namespace, gang="wide") for name in names])
        eventually(lambda: "room for 4 of 8" in why(stack, namespace, "wide-0"), seconds=10, what="the reason")
        stack.add_nodes(["late-2"], gpus=4)
        seen.until(bound(*names), seconds=30, what="all eight bound")
    settled(stack)


def test_processes_are_killed_while_gangs_are_admitted(stack: Stack, namespace: str) -> None:
    """CLAIM-8 the worker that decides, and the web process, are killed again and again: in the end every gang is
    whole, and no device is given twice.
    """
    stack.add_nodes([f"kill-{number}" for number in range(4)], gpus=8)
    with watching(stack, namespace) as seen:
        for number in range(4):
            gang(stack, namespace, f"g{number}", 8)
        names = [f"g{number}-{one}" for number in range(4) for one in range(8)]
        stack.add_pods([member(name, namespace, gang=name.partition("-")[0]) for name in names])
        for program in (stack.gpuplane.watch, stack.gpuplane.web, stack.gpuplane.watch):
            program.kill()
            program.start()
        seen.until(bound(*names), seconds=90, what="every gang bound")
    settled(stack)


def test_the_rules_between_queues(stack: Stack) -> None:
    """QUEUE-1 a cycle, an unknown parent, a namespace in two queues: refused by kubectl with the rule."""
    queue(stack, "top", namespaces=["default"])
    for name, spec, text in (
        ("a", {"parent": "nowhere"}, "the parent nowhere of queue a does not exist"),
        ("b", {"namespaces": ["default"]}, "namespace default is in queue top and in queue b"),
        ("c", {"parent": "top", "quotas": [{"deserved": 4}]}, "more than its parent top"),
    ):
        manifest = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuQueue", "metadata": {"name": name}, "spec": spec}
        assert text in stack.api.kubectl("apply", "-f", "-", given=yaml.safe_dump(manifest), refused=True)
