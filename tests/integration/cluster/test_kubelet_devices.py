"""Pods that gpuplane did not place: seen by what the kubelet gave them, or by their env, and never given a
neighbour.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from access.actors import SYSTEM
from allocations.models import Allocation
from allocations.reconcile import verify_devices
from nodes.checkpoints import CheckpointGrant, checkpoint_put
from nodes.models import Device, Node
from nodes.revisions import next_revision
from nodes.unverified_devices import UNREAD
from storage.clock import database_now
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World

STATIC: dict[str, str] = {"kubernetes.io/config.hash": "of-a-file", "kubernetes.io/config.mirror": "of-a-file"}


def uuids(node: str = "n1") -> list[str]:
    return list(Device.objects.filter(node__name=node).order_by("minor").values_list("uuid", flat=True))


def given(*entries: tuple[str, list[str]], resource: str = "nvidia.com/gpu", node: str = "n1") -> None:
    """The kubelet's record: (pod UID, device ids)."""
    said = [CheckpointGrant(uid, "main", resource, tuple(devices)) for uid, devices in entries]
    checkpoint_put(node_name=node, entries=said, actor=SYSTEM, now=database_now())


def runs(world: World, name: str, *, bound: float = -60.0, **options: Any) -> str:
    """A running pod without any annotation of ours, bound so many seconds from now; its UID."""
    made = world.server.add_pod(name, namespace=NAMESPACE, node="n1", phase="Running", **options)
    turned = (database_now() + timedelta(seconds=bound)).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": turned}]
    kind = world.server.store.kind_of("", "v1", "pods")
    body = {"status": {"conditions": conditions}}
    world.server.store.patch(kind, NAMESPACE, name, body, content_type=MERGE, subresource="status")
    return str(made["metadata"]["uid"])


def env(value: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "image": "x", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]}]}


def test_what_the_kubelet_gave_counts_as_taken(world: World) -> None:
    """DEV-8 (part) DEV-9 pods of the checkpoint are adopted with their very devices, told once, and their end gives the
    devices back.
    """
    world.node("n1", gpus=3)
    world.claim("one", count=1)
    first, second, third = uuids()
    given((runs(world, "theirs", limits={"nvidia.com/gpu": "2"}), [third, first]))

    done = world.reconcile()

    assert (done.adopted, done.differences) == (1, 0)
    assert world.used("n1") == [100, 0, 100]
    assert sorted(world.leases()) == ["gpu-n1-0", "gpu-n1-2"]
    again = world.reconcile()
    assert (again.adopted, again.released, again.differences) == (0, 0, 0)
    world.pod("ours", claim="one")
    assert world.filter("ours") == "n1"
    assert world.used("n1") == [100, 100, 100]
    assert second not in {grant.uuid for grant in Allocation.objects.get(pod_name="theirs").devices.all()}

    world.finish("theirs")
    assert world.reconcile().released == 1
    assert world.used("n1") == [0, 100, 0]
    assert world.reconcile().adopted == 0  # the kubelet's record still names it


def test_what_stands_in_the_record_and_is_gone(world: World) -> None:
    """DEV-8 (part) the kubelet tidies up late: an entry of a pod that does not exist, or has finished, takes
    nothing.
    """
    world.node("n1", gpus=2)
    first, second = uuids()
    over = runs(world, "over")
    world.finish("over")
    given(("long-gone", [first]), (over, [second]))
    done = world.reconcile()
    assert (done.adopted, done.differences) == (0, 0)
    assert world.used("n1") == [0, 0]


def test_pods_that_gpuplane_placed_are_left_out(world: World) -> None:
    """DEV-8 (part) a pod that has its row keeps it, whatever the kubelet's record says."""
    world.node("n1", gpus=2)
    world.claim("one", count=1)
    uid = world.place("ours", claim="one")
    before = world.used("n1")
    given((uid, uuids()))
    done = world.reconcile()
    assert (done.adopted, done.differences) == (0, 0)
    assert world.used("n1") == before


def test_a_pod_from_a_file(world: World) -> None:
    """DEV-8 (part) the kubelet knows a static pod by another UID than its image in the API has."""
    world.node("n1", gpus=1)
    runs(world, "static", annotations=STATIC)
    given(("of-a-file", uuids()))
    assert world.reconcile().adopted == 1
    assert world.used("n1") == [100]


@pytest.mark.parametrize(
    ("devices", "resource", "problem"),
    [
        pytest.param(
            ["MIG-1"], "nvidia.com/mig-1g.10gb", "runs with MIG-1, which n1 does not have", id="a part of a GPU"
        ),
        pytest.param(["hca-3"], "rdma/hca", "", id="what is not ours"),
    ],
)
def test_devices_that_the_inventory_does_not_have(
    world: World, devices: list[str], resource: str, problem: str
) -> None:
    """DEV-8 (part) GPUs that cannot be found are reported; other things are not our concern."""
    world.node("n1", gpus=1)
    given((runs(world, "theirs"), devices), resource=resource)
    done = world.reconcile()
    assert done.adopted == 0
    told = world.told("reconcile.difference")
    assert [problem in one for one in told] == ([True] if problem else [])


def test_a_device_that_was_given_to_another(world: World) -> None:
    """DEV-8 (part) what the ledger gave away and the kubelet too is reported, never overwritten."""
    world.node("n1", gpus=1)
    world.claim("one", count=1)
    world.place("ours", claim="one")
    given((runs(world, "theirs"), uuids()))
    done = world.reconcile()
    assert done.adopted == 0
    assert any("which the ledger gave to others" in line for line in done.lines)
    assert world.states("ours") == ["bound"]


@pytest.mark.parametrize("mirror", [False, True])
def test_nobody_takes_what_the_kubelet_gave_to_another(world: World, mirror: bool) -> None:
    """DEV-8 (part) a pod that names another's UID in the annotations of pods from files gets nothing of it."""
    world.node("n1", gpus=2)
    world.node("n2", gpus=1)
    victim = runs(world, "victim", limits={"nvidia.com/gpu": "2"})
    given((victim, uuids()))
    planted = {"kubernetes.io/config.hash": victim, "kubernetes.io/config.mirror": "another" if mirror else ""}
    runs(world, "thief", annotations=planted)
    world.server.add_pod("elsewhere", namespace=NAMESPACE, node="n2", phase="Running", annotations={**STATIC})
    assert world.reconcile().adopted == 1
    assert Allocation.objects.get().pod_uid == victim


@pytest.mark.parametrize("spelling", ["0,00", "0,{uuid}"])
def test_a_device_that_env_names_twice(world: World, spelling: str) -> None:
    """DEV-9 it is one device; and no pod keeps others from being adopted."""
    world.node("n1", gpus=2)
    Node.objects.update(registered_at=database_now())
    runs(world, "twice", spec=env(spelling.format(uuid=uuids()[0])))
    runs(world, "plain", spec=env("1"))
    assert world.reconcile().adopted == 2
    assert world.used("n1") == [100, 100]


def test_a_new_node_waits_for_its_checkpoint(world: World) -> None:
    """DEV-8 (part) where a pod runs with devices of which nobody has told, a new node stays closed until the record
    comes, a minute at most.
    """
    world.node("n1", gpus=2)
    world.claim("one", count=1)
    Node.objects.update(registered_at=database_now())
    Device.objects.update(stranger=UNREAD, revision=next_revision())
    uid = runs(world, "theirs", limits={"nvidia.com/gpu": "1"})
    assert world.reconcile().opened == 0
    assert verify_devices(backends=world.backends, now=database_now()) == 0
    given((uid, uuids()[:1]))
    assert verify_devices(backends=world.backends, now=database_now()) == 2
    assert world.used("n1") == [100, 0]

    world.node("n2", gpus=1)
    Node.objects.filter(name="n2").update(registered_at=database_now())
    Device.objects.filter(node__name="n2").update(stranger=UNREAD, revision=next_revision())
    world.server.add_pod("silent", namespace=NAMESPACE, node="n2", phase="Running", limits={"nvidia.com/gpu": "1"})
    assert world.reconcile().opened == 0
    assert world.reconcile(later=61).opened == 1


@pytest.mark.parametrize(
    ("value", "bound", "want"),
    [
        pytest.param("1", -60.0, [0, 100], id="an index"),
        pytest.param("all", -60.0, [0, 0], id="monitoring"),
        pytest.param("1", 60.0, [0, 0], id="written after gpuplane came"),
    ],
)
def test_what_env_names(world: World, value: str, bound: float, want: list[int]) -> None:
    """DEV-9 env of pods that were there before gpuplane; later nobody takes a device by writing its number down."""
    world.node("n1", gpus=2)
    Node.objects.update(registered_at=database_now())
    runs(world, "theirs", bound=bound, spec=env(value))
    done = world.reconcile()
    assert done.adopted == int(want != [0, 0])
    assert world.used("n1") == want
    late = "names GPUs of n1 in its env, which gpuplane did not give it"
    assert [late in told for told in world.told("reconcile.difference")] == ([True] if bound > 0 else [])
    assert world.reconcile().reported == 0


def test_a_new_node_is_read_before_it_is_opened(world: World) -> None:
    """DEV-8 (part) the devices of a new node are given to nobody before those of its kubelet's record are adopted."""
    world.node("n1", gpus=2)
    world.claim("one", count=1)
    Device.objects.update(stranger=UNREAD, revision=next_revision())
    given((runs(world, "theirs"), uuids()[:1]))
    world.pod("waits", claim="one")
    assert world.filter("waits") is None
    assert world.reconcile().opened == 2
    assert world.filter("waits") == "n1"
    assert Allocation.objects.get(pod_name="waits").devices.get().uuid == uuids()[1]
