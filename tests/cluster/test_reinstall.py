"""gpuplane installed anew on a cluster that runs: the ledger is empty, the pods are not; nothing is lost and nothing
given twice.
"""

from collections.abc import Sequence

import pytest

from tests.cluster.controlplane.api import Json, Observer
from tests.cluster.controlplane.objects import claim, inventory, pod
from tests.cluster.controlplane.stack import LEASES, Stack
from tests.cluster.invariants import settled
from tests.cluster.truth import Truth, read
from tests.cluster.waiting import bound, count_bound, pods_of, unschedulable

pytestmark = pytest.mark.parametrize("module_stack", ["sqlite", "postgresql"], indirect=True)
ADOPTED_SECONDS = 40.0

Held = dict[str, tuple[str, list[tuple[str, int, int, bool]]]]


def held(truth: Truth, names: Sequence[str]) -> Held:
    """Pod → (holder, its devices by UUID with core, bytes and wholeness)."""
    return {
        row.pod_name: (
            row.holder,
            sorted((grant.uuid, grant.core_percent, grant.memory_bytes, grant.whole) for grant in row.grants),
        )
        for row in truth.allocations
        if row.pod_name in names
    }


def every_dialect(namespace: str) -> dict[str, Json]:
    """Pods that hold devices in each way that there is."""
    odd: dict[str, str | int] = {"kubernetes.io/gpu-core": 30, "kubernetes.io/gpu-memory": "1234567890"}
    ratio: dict[str, str | int] = {"koordinator.sh/gpu-core": 20, "koordinator.sh/gpu-memory-ratio": 33}
    listed = [
        pod("claim-whole", namespace, claimed="two"),
        pod("claim-share", namespace, claimed="share"),
        pod("native", namespace, resources={"nvidia.com/gpu": 1}),
        pod("units", namespace, resources={"kubernetes.io/gpu": 50}),
        pod("odd", namespace, resources=odd),
        pod("ratio", namespace, resources=ratio),
        pod("mixed", namespace, resources={"koordinator.sh/gpu": 100, "koordinator.sh/rdma": 40}),
    ]
    return {one["metadata"]["name"]: one for one in listed}


def test_running_pods_keep_exactly_what_they_hold(stack: Stack, namespace: str) -> None:
    """LEASE-6 the ledger is emptied under pods of every dialect: each is adopted with its devices and exact amounts,
    new pods get the rest.
    """
    stack.add_nodes(["reinstall"], gpus=8, nics=2)
    stack.api.apply(
        claim("two", namespace, devices={"count": 2, "policy": "contiguous"}),
        claim("share", namespace, devices={"count": 1, "core": 25, "memory": "7Gi"}),
    )
    old = every_dialect(namespace)
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        stack.add_pods(list(old.values()))
        seen.until(bound(*old), seconds=30, what="pods of every dialect bound")
        before = held(settled(stack), list(old))
        free = sum(device.core_used == 0 for device in read(stack).devices.values() if device.type == "gpu")
        assert free > 0

        stack.gpuplane.reinstall()
        stack.add_pods([pod(f"new-{number}", namespace, resources={"nvidia.com/gpu": 1}) for number in range(free + 2)])
        stack.tell_inventory(inventory("reinstall", gpus=8, nics=2))
        seen.until(count_bound(len(old) + free), seconds=ADOPTED_SECONDS, what="the free GPUs given to new pods")
        truth = settled(stack)

        assert held(truth, list(old)) == before
        new = [row for row in truth.allocations if row.pod_name not in old]
        assert len(new) == free
        there = pods_of(seen)
        waiting = [name for name in there if name not in {row.pod_name for row in truth.allocations}]
        assert len(waiting) == 2
        seen.until(unschedulable(*waiting), seconds=20, what="the others wait with a reason")
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/native", grace_seconds=0)
        seen.until(count_bound(len(old) + free), seconds=30, what="what an adopted pod gives back is given anew")


def test_pods_that_come_before_the_inventory(stack: Stack, namespace: str) -> None:
    """LEASE-2 LEASE-6 shares are the hard case: their Lease is open to sharers.

    Nobody is placed before those who run are known.
    """
    stack.add_nodes(["unknown-yet"], gpus=2)
    share: dict[str, str | int] = {"kubernetes.io/gpu-core": 60, "kubernetes.io/gpu-memory": "50Gi"}
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        stack.add_pods([pod(f"old-{number}", namespace, resources=share) for number in range(2)])
        seen.until(bound("old-0", "old-1"), seconds=20, what="two shares bound, each on a GPU of its own")
        before = held(settled(stack), ["old-0", "old-1"])

        stack.gpuplane.reinstall()
        new = [f"new-{number}" for number in range(6)]
        small: dict[str, str | int] = {"kubernetes.io/gpu-core": 40, "kubernetes.io/gpu-memory": "30Gi"}
        stack.add_pods([pod(name, namespace, resources=share if int(name[-1]) % 2 else small) for name in new])
        seen.until(
            unschedulable(*new, saying="no devices of the node are registered with gpuplane"),
            seconds=30,
            what="they wait for what nobody has told",
        )
        stack.tell_inventory(inventory("unknown-yet", gpus=2))
        seen.until(count_bound(4), seconds=ADOPTED_SECONDS, what="what is left of both GPUs given")
        truth = settled(stack)

    assert held(truth, ["old-0", "old-1"]) == before
    got = {row.pod_name for row in truth.allocations} - {"old-0", "old-1"}
    assert got < {"new-0", "new-2", "new-4"}
    assert len(got) == 2


def test_pods_that_end_while_nothing_is_known(stack: Stack, namespace: str) -> None:
    """LEASE-4 LEASE-6 a pod deleted between install and adoption leaves nothing behind, its Lease neither."""
    stack.add_nodes(["ends-meanwhile"], gpus=2)
    with Observer(stack.api, f"/api/v1/namespaces/{namespace}/pods").watching() as seen:
        stack.add_pods([pod(name, namespace, resources={"nvidia.com/gpu": 1}) for name in ("stays", "goes")])
        seen.until(bound("stays", "goes"), seconds=20, what="both bound")
        settled(stack)
        stack.gpuplane.stop()
        stack.api.delete(f"/api/v1/namespaces/{namespace}/pods/goes", grace_seconds=0)
        for name in stack.leases():
            # for a minute a Lease may belong to a bind that is being undone; these are taken for older than that
            stack.api.patch(f"{LEASES}/{name}", {"spec": {"acquireTime": "2026-01-01T00:00:00.000000Z"}})
        stack.gpuplane.reinstall()
        stack.add_pods([pod("next", namespace, resources={"nvidia.com/gpu": 1})])
        stack.tell_inventory(inventory("ends-meanwhile", gpus=2))
        seen.until(bound("next"), seconds=ADOPTED_SECONDS, what="the GPU of the one that is gone given to the next")
        truth = settled(stack)
    assert {row.pod_name for row in truth.allocations} == {"stays", "next"}
