"""Nodes of the cluster: what we follow, and what we put into their status."""

from __future__ import annotations

from datetime import timedelta

import pytest

from access.actors import SYSTEM
from kube import nodes as kube_nodes
from kube.keys import ADVERTISED, CAPACITY_CHANGED, MODEL_LABEL, NATIVE_GPU, PODS_RESOURCE
from nodes.advertise import PLENTY, advertise, amounts_of
from nodes.cluster import follow_one
from nodes.inventory import model_label, parse_node
from nodes.models import Device, Node
from nodes.services import devices_health, inventory_put, node_remove
from storage.clock import database_now
from tests.factories import H100_BYTES, NodeFactory
from tests.fakes.apikinds import NODES
from tests.integration.cluster.conftest import MERGE, World


def bring(world: World) -> list[str]:
    cluster = world.backends.cluster
    assert cluster is not None
    return advertise(cluster=cluster, machines=kube_nodes.list_all(cluster).items, now=database_now())


def test_four_gpus(world: World) -> None:
    """DEV-5 400 for four GPUs, under every name, in capacity and allocatable; memory in bytes; a model label; once."""
    world.node("n1")
    world.server.add_node("unknown")

    assert bring(world) == ["n1"]
    status = world.server.nodes["n1"]["status"]
    for part in ("capacity", "allocatable"):
        for prefix in ("kubernetes.io", "koordinator.sh"):
            for name in ("gpu", "gpu.shared", "gpu-core", "gpu-memory-ratio"):
                assert status[part][f"{prefix}/{name}"] == "400"
            assert status[part][f"{prefix}/gpu-memory"] == str(4 * H100_BYTES)
        assert status[part]["nvidia.com/gpu"] == "4"
        assert status[part][PODS_RESOURCE] == str(PLENTY)
        assert status[part]["cpu"] == "8"
    assert world.server.nodes["n1"]["metadata"]["labels"][MODEL_LABEL] == "H100"
    assert bring(world) == []
    assert "kubernetes.io/gpu" not in world.server.nodes["unknown"]["status"]["capacity"]


def test_rdma_and_fpga(world: World) -> None:
    """DEV-4 DEV-5 other types are advertised by the same table; what goes is taken away again."""
    node = world.node("n1", gpus=0)
    nic = Device.objects.create(
        node=node, minor=0, type="rdma", uuid="RDMA-0", memory_bytes=0, model="", changed_at=database_now()
    )
    bring(world)
    assert world.server.nodes["n1"]["status"]["capacity"]["koordinator.sh/rdma"] == "100"
    assert "kubernetes.io/gpu" not in world.server.nodes["n1"]["status"]["capacity"]
    nic.presence = "removed"
    nic.save()
    bring(world)
    assert "koordinator.sh/rdma" not in world.server.nodes["n1"]["status"]["capacity"]
    assert ADVERTISED not in world.server.nodes["n1"]["metadata"].get("annotations", {})


def test_sick_devices(world: World) -> None:
    """DEV-5 a sick device is withdrawn when nobody holds it, so no running pod ever has more than its node advertises;
    well again, it counts.
    """
    world.node("n1", gpus=2)
    world.claim("one", count=1)
    world.place("train", claim="one")
    health = dict.fromkeys(Device.objects.values_list("uuid", flat=True), "Xid 79")
    devices_health(node_name="n1", health=health, actor=SYSTEM, now=database_now())
    bring(world)
    capacity = world.server.nodes["n1"]["status"]["capacity"]
    assert (capacity["nvidia.com/gpu"], capacity["kubernetes.io/gpu"]) == ("1", "100")
    assert world.server.nodes["n1"]["metadata"]["labels"][MODEL_LABEL] == "H100"
    assert world.states("train") == ["bound"]

    world.finish("train")
    assert world.reconcile().released == 1
    bring(world)
    assert "nvidia.com/gpu" not in world.server.nodes["n1"]["status"]["capacity"]
    devices_health(node_name="n1", health=dict.fromkeys(health, ""), actor=SYSTEM, now=database_now())
    bring(world)
    assert world.server.nodes["n1"]["status"]["capacity"]["nvidia.com/gpu"] == "2"


def test_a_device_plugin_runs_there(world: World) -> None:
    """DEV-5 `nvidia.com/gpu` is left to a device plugin that says it already."""
    world.node("n1", in_cluster=False)
    world.server.add_node("n1", capacity={"cpu": "8", "nvidia.com/gpu": "3"})
    bring(world)
    assert world.server.nodes["n1"]["status"]["capacity"]["nvidia.com/gpu"] == "3"
    assert world.server.nodes["n1"]["status"]["capacity"]["kubernetes.io/gpu"] == "400"


def test_mode_device_plugin(world: World) -> None:
    """DEV-5 a node that leaves mode exclusive leaves nvidia.com/gpu to the device plugin, and keeps what is
    not ours.
    """
    world.node("n1")
    bring(world)
    patch = {"metadata": {"labels": {"gpu.scheduling/mode": "device-plugin"}}}
    world.server.store.patch(NODES, "", "n1", patch, content_type=MERGE)
    world.reconcile()
    assert Node.objects.get(name="n1").mode == "device-plugin"
    capacity = world.server.nodes["n1"]["status"]["capacity"]
    assert (capacity["cpu"], capacity[PODS_RESOURCE], capacity["koordinator.sh/gpu-core"]) == ("8", str(PLENTY), "400")
    assert NATIVE_GPU not in capacity, "the device plugin's"


def test_inventory_of_a_node_in_the_cluster(world: World) -> None:
    """LEASE-5 labels and mode of a node in the cluster are the Node object's: an inventory does not set them back."""
    world.node("n1", gpus=0, labels={"gpu.scheduling/mode": "device-plugin"})
    world.reconcile()
    device = {"minor": 0, "uuid": "GPU-0", "model": "H100", "memory": "80Gi"}
    shape = parse_node({"name": "n1", "devices": [device]})
    inventory_put(shape=shape, actor=SYSTEM, now=database_now())
    assert Node.objects.get(name="n1").mode == "device-plugin"


@pytest.mark.parametrize(
    ("silent", "ready", "want"),
    [
        pytest.param(None, True, "ready", id="no agent, ready"),
        pytest.param(None, False, "not-ready", id="no agent, not ready"),
        pytest.param(1, True, "ready", id="agent speaks, ready"),
        pytest.param(20, True, "suspect", id="agent silent for a moment, ready"),
        pytest.param(300, True, "not-ready", id="agent silent for long, ready"),
        pytest.param(1, False, "not-ready", id="agent speaks, not ready"),
    ],
)
def test_the_stricter_of_both(world: World, silent: int | None, ready: bool, want: str) -> None:
    """LEASE-5 a node is ready when both the cluster and its agent, if it ever had one, say so."""
    node = world.node("n1", in_cluster=False)
    now = database_now()
    seen = None if silent is None else now - timedelta(seconds=silent)
    Node.objects.filter(pk=node.pk).update(agent_seen_at=seen, state="not-ready", problem="node is not ready")
    world.server.add_node("n1", ready=ready)
    cluster = world.backends.cluster
    assert cluster is not None

    machine = kube_nodes.find(cluster, name="n1")
    assert machine is not None
    follow_one(machine=machine, now=now)

    assert Node.objects.get(name="n1").state == want


def test_a_device_well_again_is_announced(world: World) -> None:
    """Capacity that no cluster event shows is told on the node."""
    world.node("n1")
    uuid = "GPU-n1-0"
    now = database_now()
    devices_health(node_name="n1", health={uuid: "Xid 79"}, actor=SYSTEM, now=now)
    assert world.settled()
    assert CAPACITY_CHANGED not in (world.server.nodes["n1"]["metadata"].get("annotations") or {})
    devices_health(node_name="n1", health={uuid: ""}, actor=SYSTEM, now=now)
    assert world.settled()
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED]


def test_names_of_models() -> None:
    assert model_label({"NVIDIA A100-SXM4-80GB"}) == "NVIDIA-A100-SXM4-80GB"
    assert model_label({"B", "A"}) == "A_B"
    assert model_label({"?"}) is None
    assert len(model_label({"x" * 100}) or "") == 63
    assert amounts_of_nothing() == {}


def amounts_of_nothing() -> dict[str, int]:
    from nodes.advertise import Content

    return amounts_of(Content())


def test_a_node_that_the_ledger_lost_keeps_what_it_advertises(world: World) -> None:
    """DEV-5 LEASE-6 after a reinstall the pods that run there still count; a node taken out by hand advertises
    no more.
    """
    world.node("n1")
    assert bring(world) == ["n1"]
    Device.objects.all().delete()
    Node.objects.all().delete()

    assert bring(world) == []
    assert world.server.nodes["n1"]["status"]["capacity"]["kubernetes.io/gpu"] == "400"

    node_remove(node=NodeFactory(name="n1", gpus=4), actor=SYSTEM, now=database_now())
    assert bring(world) == ["n1"]
    assert "kubernetes.io/gpu" not in world.server.nodes["n1"]["status"]["capacity"]


def test_a_node_made_anew_is_advertised_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """DEV-5 LEASE-5 a Node object that is another one than before, or changes its mode, is advertised without waiting
    for reconciling.
    """
    sent: list[str] = []
    monkeypatch.setattr("storage.enqueue.current_app.send_task", lambda _task, args, **_: sent.append(args[0]))
    world.node("n1")
    cluster = world.backends.cluster
    assert cluster is not None

    def follow() -> None:
        machine = kube_nodes.find(cluster, name="n1")
        assert machine is not None
        follow_one(machine=machine, now=database_now())

    follow()
    sent.clear()
    follow()
    assert sent == []
    world.server.remove_node("n1")
    world.server.add_node("n1")
    follow()
    assert sent == ["n1"]
