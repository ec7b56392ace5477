"""GpuNodeStatus objects of the cluster: what the record says of each node's GPUs and their holders, whoever wrote into
them.
"""

from __future__ import annotations

from typing import Any

import pytest

from access.actors import SYSTEM
from allocations.publish.node_statuses import links_of, publish
from kube.errors import TemporaryKubeError
from nodes.models import Device, Node
from nodes.services import devices_health
from storage.clock import database_now
from tests.fakes.apikinds import Kind
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World
from tests.integration.cluster.test_mig import asks, gpu, instance, tell

NAME = "n1"


@pytest.fixture
def there(world: World) -> World:
    """A node of three GPUs, two of them joined, that the cluster has."""
    world.node(NAME, gpus=3)
    Node.objects.update(cluster_uid="uid-of-n1", links=[[0, 1, 12]])
    Device.objects.filter(minor=2).update(island=1)
    return world


def published(world: World) -> list[str]:
    assert world.backends.cluster is not None
    return publish(cluster=world.backends.cluster)


def kind(world: World) -> Kind:
    return world.server.store.kind_of("gpu.scheduling", "v1", "gpunodestatuses")


def stored(world: World) -> dict[str, Any]:
    return world.server.store.get(kind(world), "", NAME)


def test_a_status_says_who_holds_what(there: World) -> None:
    """NODE-3 id, island, bandwidth, health and holders; owned by the node; written only where it differs."""
    there.claim("one", count=1)
    uid = there.place("train", claim="one")
    sick = Device.objects.get(minor=2).uuid
    devices_health(node_name=NAME, health={sick: "Xid 79"}, actor=SYSTEM, now=database_now())
    assert published(there) == [NAME]
    found = stored(there)
    assert found["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NAME, "uid": "uid-of-n1"}
    ]
    status = found["status"]
    assert {key: status[key] for key in ("state", "mode", "reason", "gpus", "free", "unhealthy")} == {
        "state": "ready", "mode": "exclusive", "reason": "", "gpus": 3, "free": 2, "unhealthy": 1,
    }  # fmt: skip
    first, second, third = status["devices"]
    by_id = {device["id"]: device for device in (first, second, third)}
    assert [by_id[minor]["bandwidthGBps"] for minor in range(3)] == [600, 600, 0]
    assert by_id[0]["island"] == by_id[1]["island"] != ""
    assert (by_id[2]["island"], by_id[2]["health"], by_id[2]["reason"]) == ("", "Unhealthy", "Xid 79")
    held = [device["holders"] for device in status["devices"] if device["holders"]]
    assert [[(one["namespace"], one["pod"], one["uid"], one["core"]) for one in some] for some in held] == [
        [(NAMESPACE, "train", uid, 100)]
    ]
    assert published(there) == []
    there.remove("train")
    there.reconcile(later=0.0)
    Node.objects.update(cluster_uid="uid-of-n1")
    assert published(there) == [NAME]
    assert not any(device["holders"] for device in stored(there)["status"]["devices"])


@pytest.mark.parametrize(
    ("held", "sick", "want"),
    [
        pytest.param("", "", {"gpus": 2, "free": 2, "unhealthy": 0}, id="nothing is held"),
        pytest.param("mig_1g__10gb", "", {"gpus": 2, "free": 1, "unhealthy": 0}, id="one instance is held"),
        pytest.param("gpu", "", {"gpus": 2, "free": 1, "unhealthy": 0}, id="the plain GPU is held"),
        pytest.param("", "GPU-1", {"gpus": 2, "free": 1, "unhealthy": 1}, id="the GPU in MIG mode is unhealthy"),
    ],
)
def test_instances_are_not_counted_beside_their_gpu(world: World, held: str, sick: str, want: dict[str, int]) -> None:
    """NODE-3 all three numbers count GPUs; one in MIG mode is free while none of its instances is held."""
    tell(world, gpu(0), gpu(1, mig=True), *(instance(1, number) for number in (7, 8, 9)))
    Node.objects.update(cluster_uid="uid-of-n1")
    if held:
        assert asks(world, "holder", **{held: "1"}) == NAME
    if sick:
        devices_health(node_name=NAME, health={sick: "Xid 79"}, actor=SYSTEM, now=database_now())
    published(world)
    status = stored(world)["status"]
    assert {key: status[key] for key in want} == want
    assert len(status["devices"]) == 5


def test_an_edit_by_hand_is_undone(there: World) -> None:
    """NODE-3 the record is the truth."""
    published(there)
    before = stored(there)["status"]
    there.server.store.patch(kind(there), "", NAME, {"status": {"free": 99}}, content_type=MERGE, subresource="status")
    assert stored(there)["status"]["free"] == 99
    assert published(there) == [NAME]
    assert stored(there)["status"] == before


def test_a_node_that_goes_takes_its_object_along(there: World) -> None:
    """NODE-3 gone from the ledger, or without GPUs: no object."""
    published(there)
    Node.objects.update(state="gone")
    assert published(there) == [NAME]
    assert (("", NAME) in there.server.store.objects[kind(there)]) is False
    assert published(there) == []


def test_an_api_server_that_is_away_is_asked_again(there: World) -> None:
    """NODE-3 what was not written this turn is written the next."""
    fault = Fault(status=503, method="POST", path="/gpunodestatuses", times=100)
    there.server.faults.append(fault)
    with pytest.raises(TemporaryKubeError):
        published(there)
    there.server.faults.clear()
    assert published(there) == [NAME]


@pytest.mark.parametrize(
    ("matrix", "want"),
    [
        pytest.param([], {}, id="none"),
        pytest.param([[0, 1, 12]], {0: 12, 1: 12}, id="a pair"),
        pytest.param(
            [[a, b, 4] for b in range(4) for a in range(b)], dict.fromkeys(range(4), 12), id="four, all joined"
        ),
        pytest.param(
            [[a, b, 18] for b in range(8) for a in range(b)], dict.fromkeys(range(8), 18), id="behind switches"
        ),
        pytest.param([[0, 1, 1], [0, 2, 2]], {0: 3, 1: 1, 2: 2}, id="a mesh"),
    ],
)
def test_how_many_links_a_gpu_has(matrix: list[list[int]], want: dict[int, int]) -> None:
    """NODE-3 NODE-4 out of the pairs."""
    assert links_of(matrix) == want
