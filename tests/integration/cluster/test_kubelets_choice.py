"""Nodes in mode device-plugin: gpuplane says which node, the kubelet says which GPUs, and the ledger follows its
record.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from access.actors import SYSTEM
from allocations.errors import MovedOn
from allocations.models import Allocation
from audit.models import Event
from kube.karpenter import DO_NOT_DISRUPT
from kube.keys import ALLOCATED, ATTEMPT, CHOSEN_BY
from nodes.checkpoints import CheckpointGrant, checkpoint_put
from nodes.inventory import parse_node
from nodes.models import Device, Node
from nodes.services import inventory_put
from storage.clock import database_now
from tests.fakes.apikinds import NODES
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World

GPU = "nvidia.com/gpu"


@pytest.fixture
def plugin(world: World) -> World:
    """n1 has four GPUs that its kubelet hands out."""
    world.node("n1", gpus=4, labels={"gpu.scheduling/mode": "device-plugin"})
    world.reconcile()
    assert Node.objects.get(name="n1").mode == "device-plugin"
    return world


def native(world: World, name: str, *, gpus: int = 1, **options: Any) -> str:
    """A pod by nvidia.com/gpu that gpuplane placed; its UID."""
    made = world.server.add_pod(name, namespace=NAMESPACE, limits={GPU: str(gpus)}, **options)
    node = world.filter(name)
    assert node == "n1"
    assert world.bind(name, node) == ""
    return str(made["metadata"]["uid"])


def by_others(world: World, name: str, *, gpus: int = 1) -> str:
    """A running pod that another scheduler placed; its UID."""
    made = world.server.add_pod(name, namespace=NAMESPACE, limits={GPU: str(gpus)}, node="n1", phase="Running")
    return str(made["metadata"]["uid"])


def chose(**minors: list[int]) -> None:
    """What the kubelet of n1 gave: pod UID → minors."""
    uuids = list(Device.objects.filter(node__name="n1").order_by("minor").values_list("uuid", flat=True))
    said = [
        CheckpointGrant(uid, "main", GPU, tuple(uuids[minor] for minor in listed)) for uid, listed in minors.items()
    ]
    checkpoint_put(node_name="n1", entries=said, actor=SYSTEM, now=database_now())


def holds(name: str) -> list[int]:
    (row,) = Allocation.objects.filter(pod_name=name, state="bound")
    return [grant.minor for grant in row.devices.all() if grant.live]


def report_devices(devices: Sequence[Device]) -> None:
    """An inventory of the node with these devices alone."""
    listed = [{"minor": one.minor, "uuid": one.uuid, "model": one.model, "memory": one.memory_bytes} for one in devices]
    shape = parse_node({"name": "n1", "mode": "device-plugin", "devices": listed})
    inventory_put(shape=shape, actor=SYSTEM, now=database_now())


def test_the_binding_names_no_device(plugin: World) -> None:
    """DEV-8 what the ledger guesses is told to nobody as fact; the kubelet's plugin confines the pod."""
    native(plugin, "one")
    annotations = plugin.server.pods[NAMESPACE, "one"]["metadata"]["annotations"]
    assert annotations.pop(ATTEMPT)
    assert annotations == {CHOSEN_BY: "kubelet", DO_NOT_DISRUPT: "true"}
    assert ALLOCATED not in annotations
    assert Allocation.objects.get(pod_name="one").confined
    done = plugin.reconcile()
    assert (done.differences, done.released, done.corrected) == (0, 0, 0)


def test_the_ledger_follows_the_kubelet(plugin: World) -> None:
    """DEV-8 the very devices of the record, their leases, and no capacity lost or won."""
    one, two = native(plugin, "one"), native(plugin, "two", gpus=2)
    assert (holds("one"), holds("two")) == ([0], [1, 2])
    chose(**{one: [3], two: [0, 2]})
    done = plugin.reconcile()
    assert (done.corrected, done.differences) == (2, 0)
    assert (holds("one"), holds("two")) == ([3], [0, 2])
    assert plugin.used("n1") == [100, 0, 100, 100]
    assert plugin.told("allocation.corrected") == [
        f"{NAMESPACE}/one has gpu 3 of n1: the kubelet chose",
        f"{NAMESPACE}/two has gpu 0,2 of n1: the kubelet chose",
    ]
    again = plugin.reconcile()
    assert (again.corrected, again.differences) == (0, 0)
    assert sorted(plugin.leases()) == ["gpu-n1-0", "gpu-n1-2", "gpu-n1-3"]
    plugin.finish("two")
    plugin.reconcile()
    assert plugin.used("n1") == [0, 0, 0, 100]


def test_two_that_guessed_each_others(plugin: World) -> None:
    """DEV-8 LEASE-2 devices change hands in one transaction; no moment has one of them twice."""
    one, two = native(plugin, "one"), native(plugin, "two")
    chose(**{one: [1], two: [0]})
    assert plugin.reconcile().corrected == 2
    assert (holds("one"), holds("two")) == ([1], [0])
    assert plugin.used("n1") == [100, 100, 0, 0]


def test_a_guess_makes_room(plugin: World) -> None:
    """DEV-8 a pod of which the record does not speak yet keeps as many devices, others."""
    one = native(plugin, "one")
    native(plugin, "young", gpus=2)
    assert holds("young") == [1, 2]
    chose(**{one: [1]})
    assert plugin.reconcile().corrected == 2
    assert (holds("one"), holds("young")) == ([1], [0, 2])


def test_a_pod_of_another_scheduler_has_what_the_kubelet_gave_it(plugin: World) -> None:
    """DEV-8 DEV-9 the guess gives way to a pod that the ledger did not know, which is adopted in the same turn."""
    native(plugin, "ours")
    assert holds("ours") == [0]
    theirs = by_others(plugin, "theirs")
    chose(**{theirs: [0]})
    done = plugin.reconcile()
    assert (done.corrected, done.adopted, done.differences) == (1, 1, 0)
    assert (holds("ours"), holds("theirs")) == ([1], [0])
    assert Allocation.objects.get(pod_name="theirs").confined


def test_a_hold_gives_way(plugin: World) -> None:
    """DEV-8 what is only held, for a pod not bound yet, is planned again."""
    one = native(plugin, "one")
    plugin.server.add_pod("next", namespace=NAMESPACE, limits={GPU: "1"})
    assert plugin.filter("next") == "n1"
    chose(**{one: [1]})
    assert plugin.reconcile().corrected == 1
    assert holds("one") == [1]
    assert plugin.states("next") == ["failed"]
    assert plugin.filter("next") == "n1"


@pytest.mark.parametrize(
    ("told", "problems", "disputed", "closed"),
    [
        ({"one": ["GPU-elsewhere"]}, ["gave GPU-elsewhere to research/one, and n1 has no such GPU"], {}, [0, 1, 2, 3]),
        (
            {"one": ["GPU-n1-3"], "two": ["nvidia3"]},
            [f"gave GPU-n1-3 to research/{name} and to another pod" for name in ("one", "two")],
            {3: "research/one, research/two"},
            [],
        ),
    ],
    ids=["a GPU of another node", "one GPU for two pods"],
)
def test_a_record_that_cannot_be_is_reported(
    plugin: World, told: dict[str, list[str]], problems: list[str], disputed: dict[int, str], closed: list[int]
) -> None:
    """DEV-8 LEASE-2 a GPU shared by time, or of another node: said, once, nobody's devices are changed, and what they
    have is given to nobody.
    """
    uids = {name: native(plugin, name) for name in ("one", "two")}
    said = [CheckpointGrant(uids[name], "main", GPU, tuple(listed)) for name, listed in told.items()]
    checkpoint_put(node_name="n1", entries=said, actor=SYSTEM, now=database_now())
    done = plugin.reconcile()
    assert (done.corrected, done.differences, done.reported) == (0, len(problems), len(problems))
    assert plugin.told("reconcile.difference") == [f"the kubelet of n1 {problem}" for problem in problems]
    assert (holds("one"), holds("two")) == ([0], [1])
    assert dict(Device.objects.exclude(conflict="").values_list("minor", "conflict")) == disputed
    assert list(Device.objects.exclude(closed="").order_by("minor").values_list("minor", flat=True)) == closed
    again = plugin.reconcile()
    assert (again.reported, again.closed, again.reopened) == (0, 0, 0)
    chose(**{uid: [minor] for minor, uid in enumerate(uids.values())})
    assert plugin.reconcile().reopened == len(closed)
    assert not Device.objects.exclude(conflict="", closed="").exists()


def test_a_pod_that_sees_what_we_name_keeps_it(world: World) -> None:
    """DEV-8 the node became a device-plugin node later: a pod with our env has the devices that its annotation names,
    whatever the kubelet thinks.
    """
    world.node("n1", gpus=4)
    reference = {"fieldRef": {"fieldPath": "metadata.annotations['gpu.scheduling/visible-devices']"}}
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": reference}]
    container = {"name": "main", "image": "x", "env": env, "resources": {"limits": {GPU: "1"}}}
    uid = native(world, "ours", spec={"containers": [container]})
    assert ALLOCATED in world.server.pods[NAMESPACE, "ours"]["metadata"]["annotations"]
    Node.objects.filter(name="n1").update(mode="device-plugin")
    world.server.store.patch(
        world.server.store.kind_of("", "v1", "nodes"),
        "",
        "n1",
        {"metadata": {"labels": {"gpu.scheduling/mode": "device-plugin"}}},
        content_type="application/merge-patch+json",
    )
    chose(**{uid: [3]})
    assert world.reconcile().corrected == 0
    assert holds("ours") == [0]
    world.server.add_pod("next", namespace=NAMESPACE, spec={"containers": [container]})
    assert world.filter("next") is None
    assert "which the pod does not select" in world.told("pod.refused")[0]


def test_the_record_is_followed_whatever_becomes_of_the_node(plugin: World) -> None:
    """DEV-8 LEASE-2 the node goes over to gpuplane while a pod runs there by the kubelet's choice: its GPU is given to
    nobody else.
    """
    one = native(plugin, "one")
    patch = {"metadata": {"labels": {"gpu.scheduling/mode": None}}}
    plugin.server.store.patch(NODES, "", "n1", patch, content_type=MERGE)
    chose(**{one: [3]})
    plugin.reconcile()
    assert Node.objects.get(name="n1").mode == "exclusive"
    assert holds("one") == [3]
    plugin.claim("three", count=3)
    plugin.place("mine", claim="three")
    assert holds("mine") == [0, 1, 2]


def test_our_own_binding_is_known_whatever_became_of_the_node(plugin: World) -> None:
    """LEASE-3 a bind whose end was lost, on a node that changed its mode since: the pod is ours, and keeps its
    devices.
    """
    native(plugin, "one")
    Node.objects.filter(name="n1").update(mode="exclusive")
    row = Allocation.objects.get(pod_name="one")
    Allocation.objects.filter(pk=row.pk).update(state="reserved", reserved_at=row.created_at)
    plugin.collect_garbage(later=60)
    assert plugin.states("one") == ["bound"]
    assert plugin.used("n1") == [100, 0, 0, 0]


def test_a_guess_that_vanished(plugin: World) -> None:
    """DEV-8 a device that the inventory lists no more stops no comparison: of the guess what is there is moved."""
    one = native(plugin, "one")
    native(plugin, "young", gpus=2)
    Device.objects.filter(node__name="n1", minor=2).update(presence="vanished")
    chose(**{one: [1]})
    done = plugin.reconcile()
    assert (done.corrected, done.problem) == (2, "")
    assert (holds("one"), holds("young")) == ([1], [0, 2])


def test_a_external_holders_device_is_no_guess(plugin: World) -> None:
    """DEV-8 what somebody outside the ledger holds is not guessed again."""
    one = native(plugin, "one")
    native(plugin, "young")
    Device.objects.filter(node__name="n1", minor=0).update(stranger="somebody/else")
    chose(**{one: [1]})
    plugin.reconcile()
    assert (holds("one"), holds("young")) == ([1], [2])


def test_what_changed_meanwhile_waits_for_the_next_comparison(plugin: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """DEV-8 nothing is said to have been corrected, and no lease is let go of, that was not."""

    def moved(*_: object, **__: object) -> None:
        raise MovedOn("changed meanwhile")

    one = native(plugin, "one")
    plugin.reconcile()
    before = plugin.server.leases
    chose(**{one: [3]})
    with monkeypatch.context() as patched:
        patched.setattr("allocations.ledger.reassign_devices", moved)
        done = plugin.reconcile()
    assert (done.corrected, done.leases_taken, done.leases_deleted) == (0, 0, 0)
    assert plugin.server.leases == before
    assert plugin.reconcile().corrected == 1


def test_an_impossible_record_of_one_pod_holds_up_no_other(plugin: World) -> None:
    """DEV-8 others on the node are corrected all the same."""
    odd, plain = native(plugin, "odd"), native(plugin, "plain")
    said = [CheckpointGrant(odd, "main", GPU, ("MIG-7",)), CheckpointGrant(plain, "main", GPU, ("GPU-n1-3",))]
    checkpoint_put(node_name="n1", entries=said, actor=SYSTEM, now=database_now())
    done = plugin.reconcile()
    assert (done.corrected, done.differences) == (1, 1)
    assert (holds("odd"), holds("plain")) == ([0], [3])


def test_what_cannot_be_followed_is_reported_of_each_pod_by_itself(plugin: World) -> None:
    """DEV-8 VIEW-3 an event that names a pod stands in its namespace: nobody else reads it, and the pod's own page has
    it.
    """
    one, _ = native(plugin, "one"), native(plugin, "two")
    fixed = Allocation.objects.get(pod_name="two")
    Allocation.objects.filter(pk=fixed.pk).update(request={**fixed.request, "by_kubelet": False})
    chose(**{one: [1]})
    plugin.reconcile()
    told = Event.objects.filter(kind="reconcile.difference").values_list("namespace", "name", "message")
    assert list(told) == [
        (NAMESPACE, "one", f"the kubelet of n1 gave devices to {NAMESPACE}/one that the ledger gave to others")
    ]
    assert dict(Device.objects.exclude(conflict="").values_list("minor", "conflict")) == {1: f"{NAMESPACE}/one"}


def test_a_closed_device_is_reported_on_the_pods_page(plugin: World) -> None:
    """DEV-8 VIEW-3 the event carries the pod's very name."""
    uid = native(plugin, "one")
    said = [CheckpointGrant(uid, "main", GPU, ("GPU-elsewhere",))]
    checkpoint_put(node_name="n1", entries=said, actor=SYSTEM, now=database_now())
    plugin.reconcile()
    taken = Event.objects.filter(kind="device.taken").values_list("namespace", "name")
    assert list(taken) == [(NAMESPACE, "one")]


def test_a_gpu_that_vanishes_before_the_kubelets_record_comes(plugin: World) -> None:
    """DEV-8 LEASE-6 The pod keeps it by the kubelet's record; its row goes after the pod, and not before."""
    two = native(plugin, "two", gpus=2)
    assert holds("two") == [0, 1]
    chose(**{two: [0, 2]})
    first, *others = Device.objects.filter(node__name="n1").order_by("minor")
    report_devices(others)
    assert plugin.reconcile().corrected == 1
    first.refresh_from_db()
    assert (holds("two"), first.presence, first.core_used) == ([0, 2], "vanished", 100)
    Device.objects.filter(pk=first.pk).update(changed_at=database_now() - timedelta(minutes=11))
    plugin.collect_garbage()
    assert Device.objects.filter(pk=first.pk).exists()
    plugin.remove("two")
    plugin.reconcile(later=60)
    first.refresh_from_db()
    assert (first.presence, first.core_used) == ("removed", 0)


def test_a_gpu_that_vanished_and_that_the_kubelet_gave_to_nobody(plugin: World) -> None:
    """DEV-8 It was a guess: nobody holds it any more, and its row is removed."""
    two = native(plugin, "two", gpus=2)
    chose(**{two: [1, 2]})
    first, *others = Device.objects.filter(node__name="n1").order_by("minor")
    report_devices(others)
    assert plugin.reconcile().corrected == 1
    first.refresh_from_db()
    assert (holds("two"), first.presence, first.core_used) == ([1, 2], "removed", 0)


def test_a_lease_whose_drop_was_cut_off(plugin: World) -> None:
    """DEV-8 LEASE-6 The GPU that the pod left is everybody's once its Lease is old, though the pod runs on."""
    one = native(plugin, "one")
    plugin.server.set_pod_phase("one", "Running", namespace=NAMESPACE)
    chose(**{one: [3]})
    plugin.server.faults.append(Fault("DELETE", r"/leases/", status=500, times=10_000))
    plugin.reconcile()
    plugin.server.faults.clear()
    assert (holds("one"), sorted(plugin.leases())) == ([3], ["gpu-n1-0"])
    plugin.reconcile()
    assert sorted(plugin.leases()) == ["gpu-n1-0", "gpu-n1-3"], "it might be one that is being taken"
    for lease in plugin.server.leases.values():
        lease["spec"]["acquireTime"] = "2026-01-01T00:00:00.000000Z"
    plugin.reconcile()
    assert sorted(plugin.leases()) == ["gpu-n1-3"]
    for name in ("a", "b", "c"):
        native(plugin, name)
    assert sorted(minor for name in ("a", "b", "c") for minor in holds(name)) == [0, 1, 2]
