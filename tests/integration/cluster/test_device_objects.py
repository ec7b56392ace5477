"""Device objects of the cluster: what the record says of each node, whoever wrote into them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from access.actors import SYSTEM
from kube.crds import CustomObject
from kube.device_objects import CHECKPOINTS
from kube.errors import TemporaryKubeError
from kube.resources import DEVICES
from nodes.checkpoints import CheckpointGrant, checkpoint_put
from nodes.device_objects import publish, resources_of
from nodes.models import Device, Node
from storage.clock import database_now
from tests.factories import DeviceFactory
from tests.fakes.apikinds import Kind
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import MERGE, World

NAME = "n1"


@pytest.fixture
def there(world: World) -> World:
    """A node of two GPUs and a NIC that the cluster has."""
    world.node(NAME, gpus=2)
    node = Node.objects.get(name=NAME)
    DeviceFactory(node=node, type="rdma", minor=0, uuid="NIC-0", model="", memory_bytes=0, bus_id="0000:3c:00.0")
    Device.objects.filter(type="gpu", minor=0).update(numa=1, pcie="0000:3a", bus_id="0000:3b:00.0")
    Node.objects.update(cluster_uid="uid-of-n1")
    return world


def published(world: World, *, placed: frozenset[str] = frozenset()) -> list[str]:
    assert world.backends.cluster is not None
    return publish(cluster=world.backends.cluster, placed=placed)


def kind(world: World) -> Kind:
    return world.server.store.kind_of("scheduling.koordinator.sh", "v1alpha1", "devices")


def stored(world: World, name: str = NAME) -> dict[str, Any]:
    return world.server.store.get(kind(world), "", name)


def edit(world: World, change: dict[str, Any]) -> None:
    world.server.store.patch(kind(world), "", NAME, change, content_type=MERGE)


def test_a_gpu_in_mig_mode_cannot_be_given(there: World) -> None:
    """DEV-6 DEV-12 its instances can: nobody counts the same hardware twice among what is well."""
    gpu = Device.objects.get(type="gpu", minor=1)
    Device.objects.filter(pk=gpu.pk).update(mig=True)
    DeviceFactory(node=gpu.node, type="gpu", minor=1136, uuid="MIG-x", parent=gpu.uuid, profile="1g.10gb")
    published(there)
    told = {one["minor"]: one["health"] for one in stored(there)["spec"]["devices"] if one["type"] == "gpu"}
    assert told == {0: True, 1: False, 1136: True}


def test_an_object_says_what_the_node_has(there: World) -> None:
    """DEV-6 UUID, minor, type, health, resources and topology of each device; owned by the node, written once."""
    assert published(there) == [NAME]
    found = stored(there)
    assert found["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NAME, "uid": "uid-of-n1"}
    ]
    gpus = list(Device.objects.filter(type="gpu").order_by("minor"))
    assert found["spec"]["devices"][0] == {
        "id": gpus[0].uuid,
        "type": "gpu",
        "minor": 0,
        "health": True,
        "resources": {
            "koordinator.sh/gpu-core": "100",
            "koordinator.sh/gpu-memory": "80Gi",
            "koordinator.sh/gpu-memory-ratio": "100",
        },
        "topology": {"socketID": -1, "nodeID": 1, "pcieID": "0000:3a", "busID": "0000:3b:00.0"},
    }
    assert "topology" not in found["spec"]["devices"][1]
    assert [(one["type"], one["minor"]) for one in found["spec"]["devices"]] == [("gpu", 0), ("gpu", 1), ("rdma", 0)]
    assert found["spec"]["devices"][2] == {
        "id": "0000:3c:00.0",
        "type": "rdma",
        "minor": 0,
        "health": True,
        "resources": {"koordinator.sh/rdma": "100"},
        "topology": {"socketID": -1, "nodeID": -1, "pcieID": "", "busID": "0000:3c:00.0"},
    }
    assert published(there) == []


def labels(world: World) -> dict[str, str]:
    found: dict[str, str] = stored(world)["metadata"]["labels"]
    return found


def test_the_labels_that_koordinators_tools_look_at(there: World) -> None:
    """DEV-6 vendor, and the model where there is one; without GPUs neither, and labels of others stay."""
    Device.objects.filter(type="gpu").update(model="NVIDIA A100-SXM4-80GB PCIe")
    published(there)
    ours = {"app.kubernetes.io/managed-by": "gpuplane"}
    vendor = {"node.koordinator.sh/gpu-vendor": "nvidia"}
    assert labels(there) == {**ours, **vendor, "node.koordinator.sh/gpu-model": "A100-SXM4-80GB-PCIe"}
    edit(there, {"metadata": {"labels": {"example.org/label": "kept", "node.koordinator.sh/gpu-vendor": "huawei"}}})
    assert published(there) == [NAME]
    assert labels(there)["node.koordinator.sh/gpu-vendor"] == "nvidia"
    Device.objects.filter(type="gpu", minor=0).update(model="H100")
    assert published(there) == [NAME]
    assert labels(there) == {**ours, **vendor, "example.org/label": "kept"}
    Device.objects.filter(type="gpu").update(presence="removed")
    assert published(there) == [NAME]
    assert labels(there) == {**ours, "example.org/label": "kept"}
    assert published(there) == []


@pytest.mark.parametrize("model", ["x" * 64, "GPU (rev. 2)", "-", "Δ 9000"])
def test_a_model_that_can_be_no_label(there: World, model: str) -> None:
    """DEV-6 a model whose name no label may have is left out, and the object is written."""
    Device.objects.filter(type="gpu").update(model=model)
    assert published(there) == [NAME]
    assert "node.koordinator.sh/gpu-model" not in labels(there)


def test_what_changes_is_followed(there: World) -> None:
    """DEV-6 health, devices that come and go, and a node that has none any more."""
    published(there)
    Device.objects.filter(type="gpu", minor=1).update(healthy=False)
    assert published(there) == [NAME]
    assert [one["health"] for one in stored(there)["spec"]["devices"]] == [True, False, True]
    Device.objects.filter(type="rdma").update(presence="removed")
    assert published(there) == [NAME]
    assert len(stored(there)["spec"]["devices"]) == 2
    Device.objects.update(presence="removed")
    assert published(there) == [NAME]
    assert there.backends.cluster is not None
    assert there.backends.cluster.list(DEVICES.path(), CustomObject).items == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"spec": {"devices": []}}, id="emptied"),
        pytest.param({"spec": {"devices": [{"id": "GPU-planted", "type": "gpu", "minor": 0}]}}, id="another device"),
        pytest.param({"spec": None}, id="no spec"),
        pytest.param({"metadata": {"annotations": {CHECKPOINTS: "[]"}}}, id="a planted checkpoint"),
    ],
)
def test_what_is_edited_by_hand_is_put_right(there: World, change: dict[str, Any]) -> None:
    """DEV-6 the record is the truth, never the object; what others noted beside it stays."""
    published(there)
    before = stored(there)["spec"]
    edit(there, change)
    edit(there, {"metadata": {"annotations": {"example.org/note": "kept"}, "labels": {"example.org/label": "kept"}}})
    used = list(Device.objects.values_list("uuid", "healthy", "core_used"))
    assert published(there) == [NAME]
    found = stored(there)
    assert found["spec"] == before
    assert found["metadata"]["annotations"] == {"example.org/note": "kept"}
    assert found["metadata"]["labels"]["example.org/label"] == "kept"
    assert list(Device.objects.values_list("uuid", "healthy", "core_used")) == used


def test_what_another_keeps_is_left_alone(there: World) -> None:
    """DEV-6 an object without our label is another reporter's: neither written nor deleted."""
    there.server.store.create(kind(there), "", {"metadata": {"name": NAME}, "spec": {"devices": []}})
    there.server.store.create(kind(there), "", {"metadata": {"name": "n9"}, "spec": {"devices": []}})
    assert published(there) == []
    assert stored(there)["spec"] == {"devices": []}
    assert stored(there, "n9")


def test_what_the_kubelet_gave_to_others(there: World) -> None:
    """DEV-8 (part) the annotation names the pods of the kubelet's record that gpuplane did not place, and goes with the
    last.
    """
    entries = [CheckpointGrant(uid, "main", "nvidia.com/gpu", ("GPU-1",)) for uid in ("ours", "theirs")]
    checkpoint_put(node_name=NAME, entries=entries, actor=SYSTEM, now=database_now())
    assert published(there, placed=frozenset({"ours"})) == [NAME]
    assert json.loads(stored(there)["metadata"]["annotations"][CHECKPOINTS]) == [
        {"podUID": "theirs", "containerName": "main", "resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-1"]}
    ]
    checkpoint_put(node_name=NAME, entries=entries[:1], actor=SYSTEM, now=database_now())
    assert published(there, placed=frozenset({"ours"})) == [NAME]
    assert CHECKPOINTS not in (stored(there)["metadata"].get("annotations") or {})


@pytest.mark.parametrize(
    ("method", "status", "reason"),
    [("POST", 409, "AlreadyExists"), ("POST", 403, "Forbidden"), ("POST", 422, "Invalid"), ("PATCH", 409, "Conflict")],
)
def test_one_refusal_does_not_keep_the_others(there: World, method: str, status: int, reason: str) -> None:
    """DEV-6 what could not be written is written at the next turn, and other nodes now."""
    there.node("n2", gpus=1)
    Node.objects.filter(name="n2").update(cluster_uid="uid-of-n2")
    if method == "PATCH":
        published(there)
        Device.objects.update(healthy=False)
    there.server.faults.append(Fault(method, "/devices", status=status, reason=reason))
    assert published(there) == ["n2"]
    assert published(there) == [NAME]


def test_an_api_server_that_is_away(there: World) -> None:
    """DEV-6 nothing is guessed: the caller hears of it, and the next turn does all."""
    there.server.stop()
    with pytest.raises(TemporaryKubeError):
        published(there)
    there.server.start()
    assert published(there) == [NAME]


@pytest.mark.parametrize(
    ("type_", "want"),
    [
        ("fpga", {"koordinator.sh/fpga": "100"}),
        ("npu", {"koordinator.sh/npu": "100"}),
    ],
    ids=["FPGA", "NPU"],
)
def test_types_without_parts(type_: str, want: dict[str, str]) -> None:
    """DEV-4 a type that nobody knows counts 100 of its own name."""
    assert resources_of(type_, 0) == want


def test_the_model_of_a_node_with_mig_instances(there: World) -> None:
    """DEV-6 DEV-12 the model is that of its GPUs: an instance's is none of its own."""
    gpu = Device.objects.filter(type="gpu", minor=0).get()
    Device.objects.filter(type="gpu").update(model="NVIDIA H100 80GB HBM3")
    Device.objects.filter(pk=gpu.pk).update(mig=True)
    instance = {"parent": gpu.uuid, "profile": "1g.10gb", "memory_bytes": 10 * 2**30}
    DeviceFactory(
        node=gpu.node, type="gpu", minor=1009, uuid="MIG-0", model="NVIDIA H100 80GB HBM3 MIG 1g.10gb", **instance
    )
    published(there)
    assert labels(there)["node.koordinator.sh/gpu-model"] == "H100-80GB-HBM3"
