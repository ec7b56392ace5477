"""Pods in Koordinator's words on the way through filter, bind and adoption: what stands on them, and what the ledger
counts.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from access.actors import SYSTEM
from allocations.models import Allocation, AllocationDevice
from kube.keys import JOINT_ALLOCATE, KOORDINATOR_ALLOCATED
from nodes.device_objects import publish
from nodes.inventory import parse_node
from nodes.models import Device, Node
from nodes.services import inventory_put
from storage.clock import database_now
from tests.integration.cluster.conftest import NAMESPACE, World

NAME = "n1"
TOTAL = 80 << 30


@pytest.fixture
def there(world: World) -> World:
    """A node of four GPUs under two switches with a NIC each, that the cluster has."""
    world.server.add_node(NAME)
    gpus: list[dict[str, Any]] = [
        {"minor": n, "uuid": f"GPU-{n}", "model": "H100", "memory": TOTAL, "numa": 0, "pcie": f"s{n // 2}"}
        for n in range(4)
    ]
    nics: list[dict[str, Any]] = [
        {"minor": n, "type": "rdma", "uuid": f"NIC-{n}", "pcie": f"s{n}", "busid": f"0000:3{n}:00.0"} for n in range(2)
    ]
    inventory_put(shape=parse_node({"name": NAME, "devices": [*gpus, *nics]}), actor=SYSTEM, now=database_now())
    Node.objects.update(cluster_uid="uid-of-n1")
    world.reconcile()  # a new node is closed until its pods were read
    return world


def place(world: World, name: str, limits: dict[str, str], **annotations: str) -> dict[str, list[dict[str, Any]]]:
    """Filter and bind such a pod; what its annotation says."""
    full = {f"koordinator.sh/{key}": amount for key, amount in limits.items()}
    world.server.add_pod(name, namespace=NAMESPACE, limits=full, annotations=annotations)
    assert world.filter(name) == NAME
    assert world.bind(name, NAME) == ""
    told: dict[str, list[dict[str, Any]]] = json.loads(
        world.server.pods[NAMESPACE, name]["metadata"]["annotations"][KOORDINATOR_ALLOCATED]
    )
    return told


def held() -> list[tuple[str, int, int]]:
    """(UUID, core percent, bytes) in use."""
    rows = Device.objects.exclude(core_used=0, memory_used=0).order_by("uuid")
    return list(rows.values_list("uuid", "core_used", "memory_used"))


def test_a_ratio_stays_what_it_was(there: World) -> None:
    """DEV-7 LEASE-6 the ratio stands on the pod as asked, and a ledger made anew from it counts the same bytes."""
    told = place(there, "third", {"gpu-core": "10", "gpu-memory-ratio": "33"})
    resources = {"gpu-core": "10", "gpu-memory": str(TOTAL * 33 // 100), "gpu-memory-ratio": "33"}
    assert told == {
        "gpu": [{"minor": 0, "id": "GPU-0", "resources": {f"koordinator.sh/{k}": v for k, v in resources.items()}}]
    }
    before = held()
    assert before == [("GPU-0", 10, TOTAL * 33 // 100)]
    AllocationDevice.objects.all().delete()
    Allocation.objects.all().delete()
    Device.objects.update(core_used=0, memory_used=0)
    there.server.set_pod_phase("third", "Running", namespace=NAMESPACE)
    assert there.reconcile().adopted == 1
    assert held() == before


def test_the_ids_are_those_of_the_device_object(there: World) -> None:
    """DEV-6 DEV-7 each device has one id, on the pod and in the node's object: a NIC's is its PCI address."""
    joined = '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'
    told = place(there, "pair", {"gpu": "400", "rdma": "200"}, **{JOINT_ALLOCATE: joined})
    ids = {(kind, one["minor"]): one["id"] for kind, listed in told.items() for one in listed}
    assert ids["rdma", 1] == "0000:31:00.0"
    assert there.backends.cluster is not None
    publish(cluster=there.backends.cluster, placed=frozenset())
    kind = there.server.store.kind_of("scheduling.koordinator.sh", "v1alpha1", "devices")
    devices = there.server.store.get(kind, "", NAME)["spec"]["devices"]
    assert {(one["type"], one["minor"]): one["id"] for one in devices} == ids


def test_a_nic_for_each_switch(there: World) -> None:
    """DEV-9 Koordinator gives a joint pod a NIC for each switch of its GPUs, more than it asks for: it is adopted with
    all of them.
    """
    devices = {
        "gpu": [{"minor": n} for n in range(4)],
        "rdma": [{"minor": n, "id": f"0000:3{n}:00.0"} for n in range(2)],
    }
    for name, joined in (("alone", {}), ("joint", {JOINT_ALLOCATE: '{"deviceTypes": ["gpu", "rdma"]}'})):
        there.server.add_pod(
            name,
            namespace=NAMESPACE,
            node=NAME,
            phase="Running",
            limits={"koordinator.sh/gpu": "400", "koordinator.sh/rdma": "100"},
            annotations={KOORDINATOR_ALLOCATED: json.dumps(devices), **joined},
        )
        done = there.reconcile()
        assert done.adopted == (1 if joined else 0)
    assert [core for _, core, _ in held()] == [100] * 6
    assert "names devices that the pod does not ask for" in there.told("reconcile.difference")[0]
