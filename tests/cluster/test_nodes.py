"""Nodes go, fall silent and come back: nothing new is placed on them, holders keep what they have, nothing is booked
twice.
"""

from typing import Any

import pytest

from tests.cluster.controlplane.api import Observer
from tests.cluster.controlplane.heartbeat import Heartbeat
from tests.cluster.controlplane.kubernetes import NODE_GRACE_SECONDS
from tests.cluster.controlplane.objects import claim, inventory, node, pod
from tests.cluster.controlplane.stack import Stack, eventually
from tests.cluster.invariants import settled
from tests.cluster.waiting import bound, count_bound, gone, pods_of, unschedulable

pytestmark = pytest.mark.parametrize("module_stack", ["sqlite", "postgresql"], indirect=True)
GPU = {"nvidia.com/gpu": 1}


def watching(stack: Stack, namespace: str) -> Observer:
    """An observer of the namespace's pods."""
    return Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods")


def state_of(stack: Stack, name: str) -> str:
    """A node's state as REST shows it."""
    return str(stack.gpuplane.rest.get(f"/api/v1/nodes/{name}/").json()["state"])


def test_a_node_is_deleted_and_comes_back(stack: Stack, namespace: str) -> None:
    """LEASE-5 the Node object goes: what it held is collected; made again, it serves again and books nothing twice."""
    stack.add_nodes(["leaves", "stays"], gpus=2)
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod(f"pod-{number}", namespace, resources=GPU) for number in range(4)])
        seen.until(count_bound(4), seconds=20, what="4 pods bound")
        theirs = [name for name, one in pods_of(seen).items() if one["spec"]["nodeName"] == "leaves"]
        stack.api.delete("/api/v1/nodes/leaves")
        # Kubernetes deletes pods of a node that is gone 40 s after it noticed, looking every 20 s; the rest is ours
        seen.until(gone(theirs), seconds=100, what="Kubernetes' own collection of the pods of the node that went")
        eventually(
            lambda: {name.rpartition("-")[0] for name in stack.leases()} == {"gpu-stays"},
            seconds=5,
            what="the leases of the node that went collected",
        )
        truth = settled(stack)
        assert {row.node for row in truth.allocations} == {"stays"}
        stack.add_pods([pod("waits", namespace, resources=GPU)])
        seen.until(unschedulable("waits"), seconds=10, what="nothing free on the node that stays")
        stack.api.create("/api/v1/nodes", node("leaves"))
        stack.tell_inventory(inventory("leaves", gpus=2))
        seen.until(bound("waits"), seconds=60, what="the pod bound to the node that came back")
        assert pods_of(seen)["waits"]["spec"]["nodeName"] == "leaves"
    settled(stack)


def test_an_agent_falls_silent_and_speaks_again(stack: Stack, namespace: str) -> None:
    """LEASE-5 a silent agent's node gets nothing new and its holders keep their devices; when it speaks again it serves
    again.
    """
    body = inventory("silent", gpus=2)
    stack.add_nodes(["silent"], gpus=2)
    stack.api.apply(claim("one", namespace))
    with watching(stack, namespace).watching() as seen:
        with Heartbeat(stack, body).beating():
            stack.add_pods([pod("before", namespace, claimed="one")])
            seen.until(bound("before"), seconds=20, what="a pod bound while the agent speaks")
        eventually(lambda: state_of(stack, "silent") == "suspect", seconds=40, what="the silent node suspect")
        stack.add_pods([pod("during", namespace, claimed="one")])
        seen.until(unschedulable("during", saying="silent"), seconds=10, what="a reason that speaks of the silence")
        truth = settled(stack)
        assert [row.pod_name for row in truth.allocations] == ["before"]
        with Heartbeat(stack, body).beating():
            eventually(lambda: state_of(stack, "silent") == "ready", seconds=20, what="the node ready again")
            seen.until(bound("during"), seconds=60, what="the pod that waited bound")
            settled(stack)


def test_a_kubelet_falls_silent_and_comes_back(stack: Stack, namespace: str) -> None:
    """LEASE-5 a NotReady node gets nothing new, its holders are kept and marked; Ready again, it serves again."""
    stack.add_nodes(["notready"], gpus=2)
    stack.api.apply(claim("one", namespace))
    # so that only gpuplane's own knowledge keeps pods away, and nobody is evicted
    stays: dict[str, Any] = {"tolerations": [{"operator": "Exists"}]}
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod("before", namespace, claimed="one", **stays)])
        seen.until(bound("before"), seconds=20, what="a pod bound")
        stack.plane.kwok.pause()
        try:
            eventually(
                lambda: state_of(stack, "notready") == "not-ready",
                seconds=60 + NODE_GRACE_SECONDS,
                what="the node not ready",
            )
            stack.add_pods([pod("during", namespace, claimed="one", **stays)])
            seen.until(
                unschedulable("during", saying="not ready"), seconds=10, what="a reason that names the node's state"
            )
            truth = settled(stack)
            assert [row.pod_name for row in truth.allocations] == ["before"]
        finally:
            stack.plane.kwok.resume()
        eventually(lambda: state_of(stack, "notready") == "ready", seconds=60, what="the node ready again")
        seen.until(bound("during"), seconds=60, what="the pod that waited bound")
    settled(stack)


def test_a_sick_gpu_is_left_alone_until_it_is_well(stack: Stack, namespace: str) -> None:
    """LEASE-5 CLAIM-4 health changes withdraw a GPU and give it back; its holder keeps it, and those who wait are
    woken.
    """
    stack.add_nodes(["health"], gpus=2)
    stack.api.apply(claim("one", namespace))
    with watching(stack, namespace).watching() as seen:
        stack.add_pods([pod("holds", namespace, claimed="one")])
        seen.until(bound("holds"), seconds=20, what="a pod bound")
        stack.tell_inventory(inventory("health", gpus=2, sick=(0, 1)))
        stack.add_pods([pod("waits", namespace, claimed="one")])
        seen.until(unschedulable("waits", saying="healthy"), seconds=10, what="a reason that speaks of health")
        truth = settled(stack)
        assert [row.pod_name for row in truth.allocations] == ["holds"]
        stack.tell_inventory(inventory("health", gpus=2))
        seen.until(bound("waits"), seconds=30, what="the pod bound once the GPU is well")
    settled(stack)
