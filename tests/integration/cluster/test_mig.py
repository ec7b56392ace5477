"""MIG instances as devices of their own, and their GPUs, which nobody gets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from access.actors import SYSTEM
from allocations.models import Allocation
from claims.dialects.device_names import mig_minor
from nodes.inventory import parse_node
from nodes.live.samples import DETAILS_KEY, DetailsView
from nodes.mig import GPU_HELD, INSTANCES_HELD, mig_closings
from nodes.models import Device
from nodes.services import devices_health, inventory_put
from storage.clock import database_now
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.integration.cluster.test_kubelet_devices import given, runs

MODEL = "NVIDIA H100 80GB HBM3"


def gpu(minor: int, **more: Any) -> dict[str, Any]:
    return {"minor": minor, "uuid": f"GPU-{minor}", "model": MODEL, "memory": "80Gi", "numa": 0, **more}


def instance(parent: int, number: int, profile: str = "1g.10gb") -> dict[str, Any]:
    return {
        "minor": mig_minor(parent, number, 0),
        "uuid": f"MIG-{parent}-{number}",
        "model": f"{MODEL} MIG {profile}",
        "memory": "9856Mi",
        "numa": 0,
        "parent": f"GPU-{parent}",
        "profile": profile,
    }


def tell(world: World, *devices: dict[str, Any], **more: Any) -> None:
    """The inventory of n1; its new devices are opened at once."""
    if "n1" not in world.server.nodes:
        world.server.add_node("n1")
    shape = parse_node({"name": "n1", "devices": list(devices), "links": [], **more})
    inventory_put(shape=shape, actor=SYSTEM, now=database_now())
    world.reconcile()


@pytest.fixture
def mixed(world: World) -> World:
    """n1 has two plain GPUs and one in MIG mode with three instances of two profiles."""
    small = instance(2, 7), instance(2, 8)
    tell(world, gpu(0), gpu(1), gpu(2, mig=True), *small, instance(2, 1, "3g.40gb+me"))
    return world


def asks(world: World, name: str, **limits: str) -> str | None:
    """A pod by resources of `nvidia.com/`; the node that filter names."""
    names = {f"nvidia.com/{key.replace('__', '.').replace('_', '-')}": amount for key, amount in limits.items()}
    world.server.add_pod(name, namespace=NAMESPACE, limits=names)
    return world.filter(name)


def held(name: str) -> list[str]:
    row = Allocation.objects.get(pod_name=name, state__in=["held", "bound"])
    return sorted(row.devices.values_list("uuid", flat=True))


def refused(world: World) -> str:
    return world.told("pod.refused")[-1]


def test_plain_requests_never_get_instances_nor_their_gpu(mixed: World) -> None:
    """DEV-12 two plain GPUs for pods by nvidia.com/gpu and claims; shares go to them alone."""
    mixed.claim("half", count=1, core=50, memory="40Gi")
    mixed.claim("three", count=3)
    mixed.pod("wide", claim="three")
    assert mixed.filter("wide") is None
    assert "in MIG mode: only their instances are given" in refused(mixed)
    for number in range(4):
        mixed.place(f"share-{number}", claim="half")
    assert {uuid for number in range(4) for uuid in held(f"share-{number}")} == {"GPU-0", "GPU-1"}
    mixed.pod("more", claim="half")
    assert mixed.filter("more") is None
    assert asks(mixed, "native", gpu="1") is None


def test_instances_by_the_device_plugins_names(mixed: World) -> None:
    """DEV-12 each profile by its name, given whole, seen by its UUID, leased as a GPU, and no more than there are."""
    assert asks(mixed, "two", mig_1g__10gb="2") == "n1"
    assert mixed.bind("two", "n1") == ""
    assert held("two") == ["MIG-2-7", "MIG-2-8"]
    annotations = mixed.server.pods[NAMESPACE, "two"]["metadata"]["annotations"]
    assert annotations["gpu.scheduling/visible-devices"] == "MIG-2-7,MIG-2-8"
    assert sorted(mixed.leases()) == ["gpu-n1-1312", "gpu-n1-1320"]
    assert Device.objects.get(uuid="MIG-2-7").core_used == 100
    assert asks(mixed, "another", mig_1g__10gb="1") is None
    assert "no whole mig-1g.10gb device free" in refused(mixed)
    assert asks(mixed, "large", mig_3g__40gb__me="1") == "n1"
    assert held("large") == ["MIG-2-1"]
    assert asks(mixed, "unknown", mig_7g__80gb="1") is None
    assert "no mig-7g.80gb devices" in refused(mixed)
    done = mixed.reconcile()
    assert (done.differences, done.released) == (0, 0)
    mixed.finish("two")
    mixed.reconcile()
    assert mixed.filter("another") == "n1"


def test_instances_and_gpus_in_one_pod(mixed: World) -> None:
    """DEV-12 several profiles, and whole GPUs beside them, are several types."""
    assert asks(mixed, "all", gpu="1", mig_1g__10gb="1", mig_3g__40gb__me="1") == "n1"
    assert mixed.bind("all", "n1") == ""
    assert held("all") == ["GPU-0", "MIG-2-1", "MIG-2-7"]
    assert mixed.reconcile().differences == 0


def test_instances_by_a_claim(mixed: World) -> None:
    """DEV-12 a GpuClaim names the model; after a loss of the ledger the pod is adopted with its instance."""
    mixed.claim("small", count=1, model=[f"{MODEL} MIG 1g.10gb"])
    mixed.place("one", claim="small")
    assert held("one") == ["MIG-2-7"]
    annotations = mixed.server.pods[NAMESPACE, "one"]["metadata"]["annotations"]
    assert annotations["gpu.scheduling/allocated"] == "n1:1312"
    assert annotations["gpu.scheduling/visible-devices"] == "MIG-2-7"
    Allocation.objects.all().delete()
    Device.objects.update(core_used=0, memory_used=0)
    assert mixed.reconcile().adopted == 1
    assert held("one") == ["MIG-2-7"]


def test_what_kubelets_gave_of_them(mixed: World) -> None:
    """DEV-8 DEV-12 an instance by its UUID is that instance; one that the inventory lacks is its GPU, and its instances
    are closed.
    """
    given(
        (runs(mixed, "theirs", limits={"nvidia.com/mig-1g.10gb": "1"}), ["MIG-2-8"]), resource="nvidia.com/mig-1g.10gb"
    )
    assert mixed.reconcile().adopted == 1
    assert held("theirs") == ["MIG-2-8"]
    assert asks(mixed, "ours", mig_1g__10gb="1") == "n1"
    assert held("ours") == ["MIG-2-7"]


def test_an_instance_of_which_only_the_agent_knows(world: World, settings: Any) -> None:
    """DEV-8 DEV-12 LEASE-2 by the agent's details: the pod has a part of that GPU, so nobody gets the GPU, nor another
    instance of it.
    """
    import redis

    tell(world, gpu(0), gpu(1))
    details = [[[], None, None, None, [["MIG-x", "1g.10gb", 1], ["MIG-y", "1g.10gb", 1]]], [[], None, None, None, []]]
    said = msgspec.convert(["n1", 1.0, ["GPU-1", "GPU-0"], details], DetailsView)
    client = redis.Redis.from_url(settings.GPUPLANE_REDIS_URL)
    client.hset(DETAILS_KEY, "n1", msgspec.msgpack.encode(said))
    first, second = runs(world, "first"), runs(world, "second")
    given((first, ["MIG-x"]), (second, ["MIG-y"]), resource="nvidia.com/mig-1g.10gb")
    done = world.reconcile()
    assert (done.adopted, done.closed) == (1, 0)
    parent = Device.objects.get(uuid="GPU-1")
    assert (parent.core_used, bool(parent.conflict)) == (100, True)
    tell(world, gpu(0), gpu(1, mig=True), instance(1, 7))
    assert asks(world, "ours", mig_1g__10gb="1") is None
    client.hdel(DETAILS_KEY, "n1")
    client.close()
    for name in ("first", "second"):
        world.finish(name)
        world.reconcile()
    world.reconcile()
    assert world.filter("ours") == "n1"


def test_a_gpu_and_an_instance_of_it_held_by_two(world: World) -> None:
    """LEASE-6 DEV-12 the kubelet gave a whole GPU of which gpuplane gave an instance: both are in conflict until one
    has ended.
    """
    tell(world, gpu(0, mig=True), instance(0, 7))
    assert asks(world, "ours", mig_1g__10gb="1") == "n1"
    assert world.bind("ours", "n1") == ""
    given((runs(world, "theirs"), ["nvidia0"]))

    world.reconcile()

    pods = dict(Device.objects.exclude(conflict="").values_list("uuid", "conflict"))
    assert pods == {"GPU-0": "research/ours", "MIG-0-7": "research/theirs"}
    world.finish("theirs")
    world.reconcile()
    world.reconcile()
    assert not Device.objects.exclude(conflict="").exists()


def test_mig_mode_of_a_gpu_that_is_held(world: World) -> None:
    """DEV-12 LEASE-2 its holder keeps it; neither it nor its instances are given until that one ends, then only
    these.
    """
    tell(world, gpu(0))
    world.claim("one", count=1)
    world.place("holder", claim="one")
    tell(world, gpu(0, mig=True), instance(0, 7))
    assert world.states("holder") == ["bound"]
    assert asks(world, "small", mig_1g__10gb="1") is None
    assert "closed" in refused(world)
    world.finish("holder")
    world.reconcile()
    world.reconcile()
    assert world.filter("small") == "n1"
    world.pod("plain", claim="one")
    assert world.filter("plain") is None


def test_mig_mode_that_ends_while_an_instance_is_held(world: World) -> None:
    """DEV-12 LEASE-2 an inventory that is wrong, or early: the GPU is not given over the head of the instance's
    holder.
    """
    tell(world, gpu(0, mig=True), instance(0, 7))
    world.claim("one", count=1)
    assert asks(world, "small", mig_1g__10gb="1") == "n1"
    assert world.bind("small", "n1") == ""
    tell(world, gpu(0))
    world.pod("plain", claim="one")
    assert world.filter("plain") is None
    world.finish("small")
    world.reconcile()
    world.reconcile()
    assert world.filter("plain") == "n1"


def test_a_sick_gpu_makes_its_instances_sick(mixed: World) -> None:
    """DEV-12 by inventory and by health, and well again with it; the holder keeps its instance."""
    assert asks(mixed, "holder", mig_1g__10gb="1") == "n1"
    assert mixed.bind("holder", "n1") == ""
    devices_health(node_name="n1", health={"GPU-2": "XID 79"}, actor=SYSTEM, now=database_now())
    assert Device.objects.get(uuid="MIG-2-8").health_reason == "its GPU is unhealthy: XID 79"
    assert asks(mixed, "next", mig_1g__10gb="1") is None
    assert mixed.states("holder") == ["bound"]
    devices_health(node_name="n1", health={"GPU-2": ""}, actor=SYSTEM, now=database_now())
    assert mixed.filter("next") == "n1"
    mixed.remove("next")
    mixed.reconcile()
    tell(mixed, gpu(0), gpu(1), gpu(2, healthy=False), instance(2, 7), instance(2, 8))
    assert not Device.objects.get(uuid="MIG-2-8").healthy


def test_what_the_node_advertises(mixed: World) -> None:
    """DEV-5 DEV-12 instances by their profiles' names, the plain GPUs by the others; a name goes with the last
    instance.
    """
    mixed.reconcile()
    said = mixed.server.nodes["n1"]["status"]["allocatable"]
    assert (said["nvidia.com/gpu"], said["kubernetes.io/gpu"]) == ("2", "200")
    assert (said["nvidia.com/mig-1g.10gb"], said["nvidia.com/mig-3g.40gb.me"]) == ("2", "1")
    assert mixed.server.nodes["n1"]["metadata"]["labels"]["gpu.scheduling/model"] == MODEL.replace(" ", "-")
    tell(mixed, gpu(0), gpu(1), gpu(2, mig=True), instance(2, 7))
    said = mixed.server.nodes["n1"]["status"]["allocatable"]
    assert said["nvidia.com/mig-1g.10gb"] == "1"
    assert "nvidia.com/mig-3g.40gb.me" not in said


@pytest.mark.parametrize("mark", ["stranger", "conflict"])
def test_instances_of_a_gpu_that_others_have(world: World, mark: str) -> None:
    """DEV-12 LEASE-2 who has the GPU past the ledger has its instances: they are given when that has ended."""
    tell(world, gpu(0, mig=True), instance(0, 7))
    Device.objects.filter(uuid="GPU-0").update(**{mark: "other/pod"})
    assert mig_closings() == {Device.objects.get(uuid="MIG-0-7").pk: GPU_HELD}
    Device.objects.filter(uuid="GPU-0").update(**{mark: ""})
    assert mig_closings() == {}


@pytest.mark.parametrize("mark", ["stranger", "conflict"])
def test_a_gpu_whose_instance_others_have(world: World, mark: str) -> None:
    """DEV-12 LEASE-2 the GPU is not given over their heads when an inventory says that MIG mode has ended."""
    tell(world, gpu(0, mig=True), instance(0, 7))
    Device.objects.filter(uuid="GPU-0").update(mig=False)
    Device.objects.filter(uuid="MIG-0-7").update(**{mark: "other/pod"})
    assert mig_closings() == {Device.objects.get(uuid="GPU-0").pk: INSTANCES_HELD}


def test_an_intruder_on_a_gpu_in_mig_mode(world: World) -> None:
    """DEV-12 LEASE-2 it runs with a GPU in MIG mode, and with one of somebody else: no instance of the first is
    given.
    """
    tell(world, gpu(0), gpu(1, mig=True), instance(1, 7))
    world.claim("one", count=1)
    world.place("rightful", claim="one")
    told = {"gpu.scheduling/allocated": "n1:0,1"}
    world.server.add_pod("intruder", namespace=NAMESPACE, node="n1", phase="Running", annotations=told)
    world.reconcile()
    assert Device.objects.get(uuid="GPU-1").conflict
    assert asks(world, "small", mig_1g__10gb="1") is None
    world.finish("intruder")
    world.reconcile()
    world.reconcile()
    assert world.filter("small") == "n1"
