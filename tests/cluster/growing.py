"""What tests of growth share: the real Karpenter beside the cluster, the agents of its nodes, and pods of shares.

A module that uses it imports the fixtures `karpenter` and `cleared`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest

from tests.cluster.conftest import LOGS
from tests.cluster.controlplane.api import ApiRefused, Json
from tests.cluster.controlplane.chart import NAMESPACE
from tests.cluster.controlplane.karpenter import NODE_CLAIMS, NODE_POOLS, Karpenter
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import claim, inventory, pod
from tests.cluster.controlplane.stack import Stack, eventually, keep_logs

POOL = "karpenter.sh/nodepool"
TRIGGERS = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=gpu.scheduling/component%3Dtrigger"
HALF = {"count": 1, "core": 50, "memoryRatio": 50}


@pytest.fixture(scope="module")
def karpenter(plane: ControlPlane) -> Iterator[Karpenter]:
    """Karpenter, the class of its nodes, and the scheduler of trigger pods."""
    made = Karpenter(plane)
    scheduler = made.default_scheduler()
    scheduler.start()
    made.start()
    eventually(lambda: served_definitions(made), seconds=30, what="Karpenter's definitions served")
    yield made
    made.stop()
    plane.forget_scheduler(scheduler)


def served_definitions(karpenter: Karpenter) -> bool:
    """Whether the API server serves Karpenter's definitions; then the node class is there as well."""
    try:
        karpenter.node_class()
    except ApiRefused:
        return False
    return True


@pytest.fixture(autouse=True)
def cleared(stack: Stack, karpenter: Karpenter) -> Iterator[None]:
    """No pools, NodeClaims and triggers are left to the next test."""
    yield
    if not karpenter.program.alive:
        karpenter.start()
    stack.api.delete(NODE_POOLS)
    for namespace in stack.namespaces():
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods", grace_seconds=0)
    stack.api.delete(NODE_CLAIMS)
    try:
        eventually(lambda: not karpenter.claims(), seconds=60, what="NodeClaims gone")
        eventually(lambda: not triggers(stack), seconds=30, what="trigger pods gone")
    except AssertionError:
        keep_logs(stack.plane, stack, LOGS / "growth-not-cleared")
        raise


def triggers(stack: Stack) -> list[Json]:
    """Trigger pods that are there."""
    return list(stack.api.items(TRIGGERS))


def gpus_of(trigger: Json) -> int:
    """What it asks for."""
    return int(trigger["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"])


@contextmanager
def inventories(stack: Stack, of: Callable[[Json], int] = lambda node: 8) -> Iterator[dict[str, float]]:
    """Tell what each node of Karpenter's has as soon as it is ready; node → when that was told.

    `of`: node → its GPUs; 0: nothing is told of it.
    """
    told: dict[str, float] = {}
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.1):
            for node in stack.api.items("/api/v1/nodes"):
                name = node["metadata"]["name"]
                ready = any(
                    one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions", [])
                )
                gpus = of(node) if POOL in node["metadata"]["labels"] else 0
                if ready and gpus and name not in told:
                    with suppress(httpx.HTTPError, AssertionError):
                        stack.tell_inventory(inventory(name, gpus=gpus))
                        told[name] = time.monotonic()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join()


def halves(stack: Stack, namespace: str, count: int) -> list[str]:
    """Pods of half a GPU each."""
    stack.api.create(
        f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims", claim("half", namespace, devices=HALF)
    )
    names = [f"half-{number}" for number in range(count)]
    stack.add_pods([pod(name, namespace, claimed="half") for name in names])
    return names


def requests(stack: Stack) -> list[Json]:
    """Scaling requests, the newest first."""
    found: list[Json] = stack.gpuplane.rest.get("/api/v1/scaling-requests/").json()["results"]
    return found
