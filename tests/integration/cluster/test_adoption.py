"""Pods that run with devices the ledger did not give them: adopted with what they have, or reported where that is
another's or unreadable.
"""

from __future__ import annotations

import pytest

from allocations.backends import current_backends
from allocations.models import Allocation
from audit.models import Event
from claims.models import GpuClaim
from kube.keys import CLAIM
from nodes.models import Device
from tests.fakes.apikinds import PODS
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World


def test_reinstall(world: World) -> None:
    """LEASE-6 with an empty ledger running pods are adopted with their exact amounts, and nothing is given twice."""
    world.node("n1", gpus=2)
    world.claim("share", count=1, core=50, memory="10Gi")
    world.claim("one", count=1)
    world.place("half", claim="share")
    world.place("whole", claim="one")
    before = sorted(Device.objects.values_list("uuid", "core_used", "memory_used"))
    _lose_the_ledger()

    done = world.reconcile(later=3600)

    assert done.adopted == 2
    assert sorted(Device.objects.values_list("uuid", "core_used", "memory_used")) == before
    assert len(world.leases()) == 2
    assert not done.leases_deleted
    world.pod("next", claim="one")
    assert world.filter("next") is None


@pytest.mark.parametrize("edited", [True, False], ids=["the claim is edited", "the pod names another claim"])
def test_a_whole_device_whose_claim_says_otherwise_by_now(world: World, edited: bool) -> None:
    """LEASE-6 a pod that was given a whole GPU holds all of it, whatever its claim asks for when the ledger is lost."""
    world.node("n1", gpus=1)
    world.claim("one", count=1)
    world.claim("third", count=1, core=30, memoryRatio=30)
    world.place("whole", claim="one")
    if edited:
        body = {"spec": {"devices": {"core": 30, "memoryRatio": 30}}}
        kind = world.server.store.kind_of("gpu.scheduling", "v1", "gpuclaims")
        world.server.store.patch(kind, NAMESPACE, "one", body, content_type=MERGE)
    else:
        world.annotate("whole", **{CLAIM: "third"})
    _lose_the_ledger()

    done = world.reconcile(later=3600)

    assert done.adopted == 1
    assert world.used("n1") == [100]
    world.pod("next", claim="third")
    assert world.filter("next") is None


def test_reinstall_without_inventory(world: World) -> None:
    """LEASE-6 leases of pods that run on a node without inventory stay, so that nobody gets their devices before
    adoption.
    """
    world.node("n1", gpus=1)
    world.claim("one", count=1)
    world.place("train", claim="one")
    _lose_the_ledger()
    Device.objects.all().delete()

    done = world.reconcile(later=3600)

    assert done.adopted == 0
    assert sorted(world.leases()) == ["gpu-n1-0"]
    assert done.reported == 1
    assert "no inventory" in world.told("reconcile.difference")[0]
    assert world.reconcile(later=3700).reported == 0  # told once


def test_adoption_conflict(world: World) -> None:
    """LEASE-6 a running pod whose devices the ledger gave to another is reported, never overwritten."""
    world.node("n1", gpus=1)
    world.claim("one", count=1)
    uid = world.place("rightful", claim="one")
    world.server.add_pod(
        "intruder", namespace=NAMESPACE, node="n1", phase="Running", annotations={"gpu.scheduling/allocated": "n1:0"}
    )

    done = world.reconcile()

    assert done.adopted == 0
    assert done.reported == 1
    assert "gave to others" in world.told("reconcile.difference")[0]
    assert Allocation.objects.get(state="bound").pod_uid == uid


def test_pods_that_run_past_us(world: World) -> None:
    """DEV-11 LEASE-6 a pod that asks for devices and was bound without any is reported, once; it holds nothing in the
    ledger.
    """
    world.node("n1")
    world.server.add_node("elsewhere")
    world.claim()
    world.place("ours")
    world.pod("waits")
    world.pod("past", node="n1")
    world.pod("over", node="n1")
    world.finish("over")
    world.pod("not-our-node", node="elsewhere")
    world.server.add_pod("plain", namespace=NAMESPACE, node="n1")
    uid = world.server.pods[NAMESPACE, "past"]["metadata"]["uid"]
    said = f"pod {NAMESPACE}/past ({uid}) asks for devices and runs on n1, where gpuplane gave it none"

    assert said in world.reconcile().lines
    assert world.reconcile().reported == 0

    assert world.told("reconcile.difference") == [said]
    assert world.states("past") == []
    assert sum(world.used("n1")) == 200


def test_adoption_before_a_hold(world: World) -> None:
    """LEASE-6 a pod that runs has its devices: the hold of one that waits gives way."""
    world.node("n1", gpus=1)
    world.claim("one", count=1)
    world.pod("waits", claim="one")
    assert world.filter("waits") == "n1"
    world.server.add_pod(
        "runs", namespace=NAMESPACE, node="n1", phase="Running", annotations={"gpu.scheduling/allocated": "n1:0"}
    )

    done = world.reconcile()

    assert done.adopted == 1
    assert world.states("waits") == ["failed"]
    assert world.states("runs") == ["bound"]
    assert Allocation.objects.get(pod_name="runs").confined is False
    assert world.leases()["gpu-n1-0"].startswith(f"{NAMESPACE}/runs/")


@pytest.mark.parametrize("value", ["n1:", "n2:0", "n1:7", "garbage", "n1:0,0"])
def test_unreadable_annotations(world: World, value: str) -> None:
    """LEASE-6 an annotation that cannot be read is reported once, and stops nobody else."""
    world.node("n1", gpus=2)
    world.claim("one", count=1)
    annotations = {"gpu.scheduling/allocated": value}
    world.server.add_pod("odd", namespace=NAMESPACE, node="n1", phase="Running", annotations=annotations)
    world.server.add_pod(
        "fine", namespace=NAMESPACE, node="n1", phase="Running", annotations={"gpu.scheduling/allocated": "n1:1"}
    )

    assert (world.reconcile().reported, world.reconcile().reported) == (1, 0)
    assert world.states("fine") == ["bound"]
    assert world.states("odd") == []


def test_another_annotation_than_the_ledger(world: World) -> None:
    """LEASE-6 a pod whose annotation was changed behind our back is reported; its devices stay its own."""
    world.node("n1")
    world.claim()
    world.place("train")
    world.annotate("train", **{"gpu.scheduling/allocated": "n1:2,3"})

    done = world.reconcile()

    assert done.reported == 1
    assert "other devices" in world.told("reconcile.difference")[0]
    assert world.used("n1") == [100, 100, 0, 0]


def _lose_the_ledger() -> None:
    """As after an install on a cluster that runs: no allocations, no claims, devices free."""
    Allocation.objects.all().delete()
    GpuClaim.objects.all().delete()
    Event.objects.all().delete()
    Device.objects.update(core_used=0, memory_used=0)
    assert current_backends().cluster is not None


def _hami_pod(world: World, name: str, init: dict[str, str], app: dict[str, str], *, slots: str = "") -> None:
    """A pod with an init container, one that HAMi placed on n1 where `slots` is its annotation (`{0}`: the UUID of GPU
    0, and so on).
    """
    spec = {
        "initContainers": [{"name": "warm-up", "image": "x", "resources": {"limits": init}}],
        "containers": [{"name": "serve", "image": "x", "resources": {"limits": app}}],
    }
    if not slots:
        world.server.add_pod(name, namespace=NAMESPACE, spec=spec)
        return
    uuids = Device.objects.filter(node__name="n1").order_by("minor").values_list("uuid", flat=True)
    annotations = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": slots.format(*uuids)}
    world.server.add_pod(name, namespace=NAMESPACE, node="n1", phase="Running", spec=spec, annotations=annotations)


def test_hamis_init_containers(world: World) -> None:
    """LEASE-6 an init container and a container that HAMi put on one GPU hold the larger of their amounts, and
    nobody gets that again.
    """
    world.node("n1", gpus=1)
    amounts = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "60"}
    _hami_pod(world, "theirs", amounts, amounts, slots="{0},NVIDIA,3000,60:;{0},NVIDIA,3000,60:;")

    done = world.reconcile()

    assert (done.adopted, done.reported) == (1, 0)
    assert list(Device.objects.values_list("core_used", "memory_used")) == [(60, 3000 * 1024**2)]
    silent: dict[str, str] = {}
    _hami_pod(world, "too-much", silent, {"nvidia.com/gpumem": "10", "nvidia.com/gpucores": "50"})
    assert world.filter("too-much") is None
    _hami_pod(world, "the-rest", silent, {"nvidia.com/gpumem": "10", "nvidia.com/gpucores": "40"})
    assert world.filter("the-rest") == "n1"


def test_whole_gpus_of_hamis_init_containers(world: World) -> None:
    """LEASE-6 a pod by `nvidia.com/gpu` alone, whose init container HAMi gave another GPU than the container,
    holds both.
    """
    world.node("n1", gpus=3)
    one = {"nvidia.com/gpu": "1"}
    _hami_pod(world, "theirs", one, one, slots="{2},NVIDIA,81920,0:;{0},NVIDIA,81920,0:;")

    done = world.reconcile()

    assert (done.adopted, done.reported) == (1, 0)
    assert [memory > 0 for memory in Device.objects.order_by("minor").values_list("memory_used", flat=True)] == [
        True,
        False,
        True,
    ]
    assert world.reconcile().reported == 0


def test_init_containers_in_hamis_words(world: World) -> None:
    """DEV-2 LEASE-6 an init container and a container that each fit alone share a GPU; written in HAMi's words,
    and read again without a row.
    """
    world.node("n1", gpus=1)
    init = {"nvidia.com/gpumem": "9000", "nvidia.com/gpucores": "30"}
    app = {"nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "80"}
    _hami_pod(world, "ours", init, app)
    assert world.filter("ours") == "n1"
    assert world.bind("ours", "n1") == ""

    used = list(Device.objects.values_list("core_used", "memory_used"))
    assert used == [(80, 9000 * 1024**2)]
    uuid = Device.objects.get().uuid
    told = world.server.store.get(PODS, NAMESPACE, "ours")["metadata"]["annotations"]
    assert told["hami.io/vgpu-devices-allocated"] == f"{uuid},NVIDIA,9000,30:;{uuid},NVIDIA,4000,80:;"
    assert told["gpu.scheduling/visible-devices.warm-up"] == told["gpu.scheduling/visible-devices.serve"] == uuid

    _lose_the_ledger()
    assert world.reconcile(later=3600).adopted == 1
    assert list(Device.objects.values_list("core_used", "memory_used")) == used
