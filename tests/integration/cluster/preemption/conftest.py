"""A world in which every GPU is held, and what kube-scheduler asks there for a pod to which a node is reserved."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from allocations.extender import views
from allocations.scheduling.preemption.nominate import PACE
from kube.keys import PODS_RESOURCE
from nodes.advertise import PLENTY
from nodes.models import PreemptionReservation
from tests.integration.cluster.conftest import NAMESPACE, World

LOW, MIDDLE, HIGH = 10, 100, 1000


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """N1 and n2 with two GPUs each, held whole: a and b (low, middle) on n1, c and d (middle) on n2; all advertise
    plenty.
    """
    monkeypatch.setattr("storage.enqueue.current_app.send_task", lambda *_, **__: None)  # there is no worker
    monkeypatch.setattr(PACE, "_left", 1000.0)
    monkeypatch.setattr("allocations.scheduling.preemption.nominate.AT_ONCE_SECONDS", 1000.0)
    for count in (1, 2, 3):
        world.claim(f"claim-{count}", count=count)
    for node in ("n1", "n2"):
        world.node(node, gpus=2)
    for name, priority, node in (("a", LOW, "n1"), ("b", MIDDLE, "n1"), ("c", MIDDLE, "n2"), ("d", MIDDLE, "n2")):
        add(world, name, priority)
        assert ask(world, name, [node]) == [node]
        assert world.bind(name, node) == ""
    world.reconcile()
    assert (pods_of(world, "n1"), pods_of(world, "n2")) == (PLENTY, PLENTY)
    return world


def add(world: World, name: str, priority: int, *, count: int = 1, counted: bool = True, **spec: Any) -> str:
    """A pending pod as the mutating webhook leaves it; its UID."""
    amounts = {PODS_RESOURCE: "1"} if counted else {}
    containers = [{"name": "main", "image": "x", "resources": {"limits": amounts, "requests": amounts}}]
    return world.pod(name, claim=f"claim-{count}", spec={"priority": priority, "containers": containers, **spec})


def ask(world: World, name: str, nodes: list[str]) -> list[str]:
    """Nodes that filter passes of those that kube-scheduler's own filters let through."""
    body = {"Pod": world.server.pods[NAMESPACE, name], "NodeNames": nodes}
    passed: list[str] = msgspec.json.decode(views.filter(msgspec.json.encode(body)))["NodeNames"]
    return passed


def uid(world: World, name: str) -> str:
    return str(world.server.pods[NAMESPACE, name]["metadata"]["uid"])


def preempt(world: World, name: str, offered: dict[str, list[str]], *, violations: int = 0) -> dict[str, list[str]]:
    """Node → names of those who are to go, as the verb answers."""
    body = {
        "Pod": world.server.pods[NAMESPACE, name],
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid(world, one)} for one in names], "NumPDBViolations": violations}
            for node, names in offered.items()
        },
    }
    told = msgspec.json.decode(views.preempt(msgspec.json.encode(body)))["NodeNameToMetaVictims"]
    assert all(one["NumPDBViolations"] == violations for one in told.values())
    by_uid = {one["metadata"]["uid"]: one["metadata"]["name"] for one in world.server.pods.values()}
    return {node: [by_uid[pod["UID"]] for pod in one["Pods"]] for node, one in told.items()}


def pods_of(world: World, node: str) -> int:
    status = world.server.nodes[node]["status"]
    assert status["capacity"][PODS_RESOURCE] == status["allocatable"][PODS_RESOURCE]
    return int(status["allocatable"][PODS_RESOURCE])


def reserved() -> dict[str, tuple[str, bool]]:
    """Pod → (node, whether kube-scheduler knows the victims)."""
    return {
        row.pod_name: (row.node.name, row.victims_sent) for row in PreemptionReservation.objects.select_related("node")
    }
