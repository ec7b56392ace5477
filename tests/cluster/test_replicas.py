"""Two gpuplane behind one address: connections go to either, and no device is given twice."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cluster.controlplane.api import Observer
from tests.cluster.controlplane.kubernetes import ControlPlane
from tests.cluster.controlplane.objects import claim, pod
from tests.cluster.controlplane.stack import Stack
from tests.cluster.invariants import settled
from tests.cluster.waiting import count_bound


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def module_stack(request: pytest.FixtureRequest, plane: ControlPlane) -> Iterator[Stack]:
    """Two web processes, and a scheduler that knows one address."""
    made = Stack(plane, plane.folder)
    try:
        made.install()
        made.start_gpuplane(vendor=request.param, replicas=2)
        made.start_scheduler()
        yield made
    finally:
        made.close()


def answered(stack: Stack) -> list[int]:
    """Binds that each replica has answered, by its own metrics."""
    counts = []
    for number in range(2):
        text = stack.gpuplane.of_replica(number, "/metrics").text
        named = 'gpuplane_cluster_requests_total{path="/extender/bind"'
        lines = [line for line in text.splitlines() if line.startswith(named)]
        counts.append(sum(int(float(line.rpartition(" ")[2])) for line in lines))
    return counts


def test_a_burst_over_two_replicas(stack: Stack, namespace: str) -> None:
    """LEASE-2 400 pods, whole GPUs and halves mixed, over two replicas: each device once, each share within its
    device.
    """
    stack.add_nodes([f"replica-{number}" for number in range(40)])
    before = answered(stack)
    whole = [pod(f"whole-{number}", namespace, resources={"nvidia.com/gpu": 1}) for number in range(200)]
    halves = [pod(f"half-{number}", namespace, resources={"koordinator.sh/gpu": 50}) for number in range(160)]
    pairs = [pod(f"pair-{number}", namespace, claimed="two") for number in range(20)]
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        stack.api.apply(claim("two", namespace, devices={"count": 2, "policy": "contiguous"}))
        mixed = [one for group in zip(whole[:160], halves, strict=True) for one in group] + whole[160:] + pairs
        stack.add_pods(mixed)
        seen.until(count_bound(380), seconds=120, what="380 pods bound: 200 GPUs, 160 halves, 20 pairs on 320 GPUs")
    truth = settled(stack)
    held = Counter(grant.device for row in truth.allocations for grant in row.grants)
    assert max(held.values()) == 2
    assert len(held) == 320
    took = [now - then for now, then in zip(answered(stack), before, strict=True)]
    assert min(took) > 0, f"one replica answered nothing: {took}"


def test_one_replica_dies_in_the_middle(stack: Stack, namespace: str) -> None:
    """LEASE-2 LEASE-3 a replica is killed during a burst: the other goes on, and nothing is lost or given twice."""
    stack.add_nodes([f"dies-{number}" for number in range(20)])
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        stack.add_pods([pod(f"one-{number}", namespace, resources={"nvidia.com/gpu": 1}) for number in range(160)])
        seen.until(count_bound(40), seconds=60, what="the burst has begun")
        stack.gpuplane.webs[1].kill()
        seen.until(count_bound(160), seconds=120, what="all 160 pods bound")
        stack.gpuplane.webs[1].start()
    settled(stack)
