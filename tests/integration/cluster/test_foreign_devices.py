"""Devices that somebody else gave to pods: mapped to ours whatever they are called; what cannot be told closes whatever
it may be.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from access.actors import SYSTEM
from allocations.models import Allocation
from allocations.reconcile import verify_devices
from allocations.reconcile.closing import undecodable_devices
from allocations.scheduling.binder import release_now
from allocations.takeover import takeover_steps
from allocations.watching import Watching
from kube.listing import Unreadable as UnreadableObject
from kube.objects import Pod
from kube.watch import Changed
from nodes.inventory import parse_node
from nodes.models import Device, Node
from nodes.revisions import next_revision
from nodes.services import inventory_put
from nodes.unverified_devices import UNREAD
from storage.clock import database_now
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.integration.cluster.test_kubelet_devices import env, given, runs, uuids

NATIVE = {"nvidia.com/gpu": "1"}
SHARED = {"nvidia.com/gpu.shared": "1"}
HAMI = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
KOORDINATOR = {"koordinator.sh/gpu": "100"}
HAMI_RESULT = "hami.io/vgpu-devices-allocated"
KOORDINATOR_RESULT = "scheduling.koordinator.sh/device-allocated"


def left(world: World, *, most: int = 3) -> int:
    """How many pods for one whole GPU find one."""
    names = [f"next-{number}" for number in range(most)]
    if (NAMESPACE, names[0]) not in world.server.pods:
        world.claim("any", count=1)
        for name in names:
            world.pod(name, claim="any")
    return sum(world.filter(name) is not None for name in names)


def closed(node: str = "n1") -> list[str]:
    """Why each device is closed to newcomers, by minor; empty where it is not."""
    rows = Device.objects.filter(node__name=node).order_by("minor").values_list("closed", "conflict")
    return [why or conflict for why, conflict in rows]


@pytest.mark.parametrize(
    "word",
    [
        pytest.param("{uuid}", id="its UUID"),
        pytest.param("nvidia0", id="the name of its device file"),
        pytest.param("nvidia0/vgpu3", id="one of the parts of it that are given by time"),
        pytest.param("{uuid}-3", id="one of HAMi's parts"),
        pytest.param("{uuid}::2", id="one of the replicas of it"),
        pytest.param("{uuid}__1", id="one of nvshare's parts"),
        pytest.param("MIG-{uuid}/1/0", id="a MIG device by its old name"),
        pytest.param("nvidia0/gi1", id="a MIG device by its number"),
    ],
)
def test_names_under_which_kubelets_give_a_gpu(world: World, word: str) -> None:
    """DEV-8 DEV-9 LEASE-2 whatever a device plugin calls the GPU, the pod has it, and nobody else gets it."""
    world.node("n1", gpus=2)
    given((runs(world, "theirs", limits=NATIVE), [word.format(uuid=uuids()[0])]))
    done = world.reconcile()
    assert (done.adopted, done.differences) == (1, 0)
    assert world.used("n1") == [100, 0]
    assert left(world) == 1


@pytest.mark.parametrize("word", ["MIG-5a3d", "GPU-of-another-driver", "nvidia7", "vgpu-3"])
def test_what_cannot_be_mapped_closes_the_nodes_gpus(world: World, word: str) -> None:
    """DEV-8 LEASE-2 the GPU of that pod may be any: none is given there while it runs; holders keep theirs, and people
    see why.
    """
    world.node("n1", gpus=3)
    world.claim("mine", count=1)
    world.place("holder", claim="mine")
    given((runs(world, "theirs", limits=NATIVE), [word]))

    done = world.reconcile()

    assert left(world) == 0
    assert done.closed == 3
    assert all(f"pod {NAMESPACE}/theirs" in why for why in closed())
    assert world.states("holder") == ["bound"]
    assert world.used("n1")[0] == 100
    assert f"{NAMESPACE}/theirs" in world.told("reconcile.difference")[0]
    assert word in world.told("reconcile.difference")[0]
    assert len(world.told("device.taken")) == 1
    again = world.reconcile()
    assert (again.closed, again.reopened, again.reported) == (0, 0, 0)

    world.finish("theirs")
    assert world.reconcile().reopened == 3
    assert closed() == ["", "", ""]
    assert left(world) == 2


def test_of_other_resources_nothing_is_closed(world: World) -> None:
    """DEV-8 what is none of ours concerns nobody."""
    world.node("n1", gpus=1)
    given((runs(world, "theirs"), ["hca-3"]), resource="rdma/hca")
    assert world.reconcile().closed == 0
    assert left(world) == 1


def test_several_pods_on_one_gpu_by_time(world: World) -> None:
    """DEV-8 LEASE-2 the first has it in the ledger; it stays closed while any of them runs."""
    world.node("n1", gpus=2)
    first, second = (runs(world, name, limits=NATIVE) for name in ("first", "second"))
    given((first, uuids()[:1]), (second, uuids()[:1]))
    done = world.reconcile()
    assert (done.adopted, done.closed) == (1, 0)
    assert [bool(why) for why in closed()] == [True, False]
    held = Allocation.objects.get(state="bound").pod_name
    other = "second" if held == "first" else "first"

    world.finish(held)
    world.reconcile()
    assert world.states(other) == ["bound"]
    assert world.used("n1") == [100, 0]
    assert closed() == ["", ""]
    assert left(world) == 1
    world.finish(other)
    world.reconcile()
    assert world.used("n1") == [0, 100]


def test_a_nic_that_an_agent_calls_otherwise(world: World) -> None:
    """LEASE-2 DEV-4 a NIC in the place of one that is held may be that one, by another name: nobody gets it until its
    holder has ended.
    """

    def told(uuid: str) -> None:
        shape = parse_node({"name": "n1", "devices": [{"type": "rdma", "minor": 0, "uuid": uuid}], "links": []})
        inventory_put(shape=shape, actor=SYSTEM, now=database_now())
        world.reconcile()

    world.server.add_node("n1")
    for name in ("first", "second"):
        world.server.add_pod(name, namespace=NAMESPACE, limits={"koordinator.sh/rdma": "60"})
    told("mlx5_0")
    assert world.filter("first") == "n1"
    assert world.bind("first", "n1") == ""

    told("RDMA-0c42a10300aabbcc")
    assert world.filter("second") is None
    world.finish("first")
    world.reconcile()
    world.reconcile()
    assert world.filter("second") == "n1"


def test_a_gpu_is_not_given_between_the_end_of_one_and_the_next_comparison(world: World) -> None:
    """DEV-8 LEASE-2 the watch releases the one that ended at once: whoever asks then does not get what the other runs
    with.
    """
    world.node("n1", gpus=1)
    first, second = (runs(world, name, limits=NATIVE) for name in ("first", "second"))
    given((first, uuids()), (second, uuids()))
    world.reconcile()
    row = Allocation.objects.get(state="bound")
    world.finish(row.pod_name)
    assert release_now(allocation_id=row.pk, reason="the pod has succeeded", now=database_now(), actor="watch")
    assert world.used("n1") == [0]
    assert left(world) == 0


def test_a_pod_beside_one_of_ours(world: World) -> None:
    """LEASE-2 LEASE-6 the kubelet gave a GPU that gpuplane gave, too: when ours ends nobody gets it while
    theirs runs.
    """
    world.node("n1", gpus=1)
    world.claim("one", count=1)
    world.place("ours", claim="one")
    given((runs(world, "theirs", limits=NATIVE), ["nvidia0"]))
    done = world.reconcile()
    assert (done.adopted, done.closed) == (0, 0)
    assert [bool(why) for why in closed()] == [True]
    assert "which the ledger gave to others" in world.told("reconcile.difference")[0]
    world.finish("ours")
    world.reconcile()
    assert world.states("theirs") == ["bound"]
    assert left(world) == 0


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        pytest.param(HAMI, {HAMI_RESULT: "GPU-n1-0;NVIDIA"}, id="HAMi's"),
        pytest.param(
            HAMI, {HAMI_RESULT: "GPU-elsewhere,NVIDIA,3000,30:;"}, id="HAMi's, of a device that the node does not have"
        ),
        pytest.param(
            HAMI, {HAMI_RESULT: "GPU-n1-0,NVIDIA,3000,30:;", "hami.io/vgpu-node": "n2"}, id="HAMi's, of another node"
        ),
        pytest.param(KOORDINATOR, {KOORDINATOR_RESULT: "{"}, id="Koordinator's"),
        pytest.param(
            KOORDINATOR,
            {KOORDINATOR_RESULT: '{"gpu":[{"minor":9}]}'},
            id="Koordinator's, of a device that the node does not have",
        ),
        pytest.param(NATIVE, {KOORDINATOR_RESULT: '{"gpu":[{"minor":0},{"minor":1}]}'}, id="more than it asks for"),
        pytest.param({}, {"gpu.scheduling/allocated": "garbage"}, id="ours"),
        pytest.param({}, {"gpu.scheduling/allocated": "n1:7"}, id="ours, of a device that the node does not have"),
    ],
)
def test_results_that_cannot_be_read(world: World, limits: dict[str, str], annotations: dict[str, str]) -> None:
    """LEASE-2 LEASE-6 DEV-9 a running pod that becomes unreadable leaves its GPU to nobody."""
    world.node("n1", gpus=2)
    runs(world, "odd", limits=limits, annotations=annotations)
    done = world.reconcile()
    assert left(world) == 0
    assert done.closed == 2
    world.finish("odd")
    assert world.reconcile().reopened == 2
    assert left(world) == 2


def test_who_asks_for_nothing_closes_nothing(world: World) -> None:
    """DEV-11 LEASE-6 while a cluster is taken over nobody guards others' annotations: what a pod that asks for no
    device writes there counts for nothing.
    """
    world.node("n1", gpus=1)
    runs(world, "planted", annotations={HAMI_RESULT: "GPU-n1-0;NVIDIA"})
    runs(world, "planted-too", annotations={KOORDINATOR_RESULT: '{"gpu":[{"minor":0}]}'})
    assert world.reconcile().closed == 0
    assert left(world) == 1


def test_only_the_type_that_was_asked_for_is_closed(world: World) -> None:
    """LEASE-2 a pod that asks for a NIC may have any NIC, and no GPU."""
    node = world.node("n1", gpus=1)
    Device.objects.create(
        node=node, type="rdma", minor=0, uuid="NIC-0", revision=next_revision(), changed_at=database_now()
    )
    runs(world, "odd", limits={"koordinator.sh/rdma": "100"}, annotations={KOORDINATOR_RESULT: "{"})
    assert world.reconcile().closed == 1
    assert Device.objects.get(type="rdma").closed
    assert left(world) == 1


@pytest.mark.parametrize(
    ("value", "used", "shut"),
    [
        pytest.param("nvidia1", [0, 100], 0, id="the name of a device file"),
        pytest.param("1:0", [0, 100], 0, id="a MIG device by its place"),
        pytest.param("MIG-{uuid}/3/0", [0, 100], 0, id="a MIG device by its old name"),
        pytest.param("MIG-unknown", [0, 0], 2, id="a MIG device of which nobody knows"),
        pytest.param("GPU-unknown", [0, 0], 2, id="a GPU of which nobody knows"),
        pytest.param("quite/odd", [0, 0], 2, id="no name at all"),
    ],
)
def test_what_env_named_before_gpuplane_came(world: World, value: str, used: list[int], shut: int) -> None:
    """DEV-9 LEASE-2 mapped like a kubelet's words, or closing what it may be."""
    world.node("n1", gpus=2)
    Node.objects.update(registered_at=database_now())
    runs(world, "theirs", spec=env(value.format(uuid=uuids()[1])))
    assert world.reconcile().closed == shut
    assert world.used("n1") == used


def test_env_written_later_closes_nothing(world: World) -> None:
    """DEV-9 nobody closes a node by writing a name down."""
    world.node("n1", gpus=1)
    Node.objects.update(registered_at=database_now())
    runs(world, "theirs", bound=60.0, spec=env("MIG-unknown"))
    assert world.reconcile().closed == 0


@pytest.mark.parametrize("limits", [NATIVE, SHARED], ids=["whole", "shared by time"])
def test_a_native_pod_of_which_no_record_names_devices(world: World, limits: dict[str, str]) -> None:
    """DEV-8 LEASE-2 without the kubelet's record its GPU may be any; with a record that leaves it out it has none."""
    world.node("n1", gpus=2)
    runs(world, "theirs", limits=limits)
    done = world.reconcile()
    assert left(world) == 0
    assert done.closed == 2
    given(("another", uuids()[:1]))
    assert world.reconcile().reopened == 2


def test_shared_gpus_are_reported_unless_a_record_leaves_them_out(world: World) -> None:
    """DEV-8 the kubelet gave such a pod none, and gpuplane never does; any other pod there is bound past gpuplane."""
    world.node("n1", gpus=2)
    uids = {name: runs(world, name, limits=limits) for name, limits in (("shared", SHARED), ("whole", NATIVE))}

    def reported() -> set[str]:
        lines = world.reconcile().lines
        return {name for name, uid in uids.items() if any(f"({uid}) asks for devices and runs" in one for one in lines)}

    assert reported() == {"shared", "whole"}
    given()
    assert reported() == {"whole"}
    given((uids["shared"], ["MIG-unknown"]), resource="nvidia.com/gpu.shared")
    assert reported() == {"shared", "whole"}


@pytest.mark.parametrize(
    ("spec", "phase", "known", "shut"),
    [
        pytest.param({"nodeName": "n1", "resources": 1}, "Running", False, ["n1"], id="on a node"),
        pytest.param({"nodeName": "n1"}, "Running", True, [], id="its row is known"),
        pytest.param({"nodeName": "n1"}, "Succeeded", False, [], id="it is over"),
        pytest.param({}, "Pending", False, [], id="on no node"),
        pytest.param({"nodeName": 7}, "Running", False, [], id="nobody can read where"),
    ],
)
def test_a_pod_in_no_form_that_is_understood(
    world: World, spec: dict[str, object], phase: str, known: bool, shut: list[str]
) -> None:
    """LEASE-2 LEASE-6 of such a pod only the node is read: what it holds there may be anything, if it names anything of
    ours at all.
    """
    world.node("n1", gpus=1)
    world.node("n2", gpus=1)
    for resource, want in (("nvidia.com/gpu", shut), ("cpu", [])):
        containers = [{"name": 5, "resources": {"limits": {resource: "1"}}}]
        raw = json.dumps({"spec": {**spec, "containers": containers}, "status": {"phase": phase}}).encode()
        odd = UnreadableObject(key=(NAMESPACE, "odd"), raw=raw, why="a name is a number")
        found = undecodable_devices(objects=[odd], known={(NAMESPACE, "odd")} if known else ())
        assert sorted(Device.objects.filter(pk__in=found).values_list("node__name", flat=True)) == want


def test_new_devices_are_opened_only_to_what_is_known(world: World) -> None:
    """DEV-8 LEASE-2 LEASE-6 the reading that opens a new node's devices closes them first where a pod cannot be
    read.
    """
    world.node("n1", gpus=2)
    Device.objects.update(stranger=UNREAD, revision=next_revision())
    given((runs(world, "theirs", limits=NATIVE), ["MIG-unknown"]))
    verify_devices(backends=world.backends, now=database_now())
    assert [bool(why) for why in closed()] == [True, True]
    assert left(world) == 0


def test_a_new_node_waits_for_the_record_of_pods_that_share_gpus_by_time(world: World) -> None:
    """DEV-8 LEASE-2 NVIDIA's device plugin calls their resource `nvidia.com/gpu.shared`: no GPU is given twice."""
    world.node("n1", gpus=1)
    Node.objects.update(registered_at=database_now())
    Device.objects.update(stranger=UNREAD, revision=next_revision())
    runs(world, "theirs", limits=SHARED)
    assert verify_devices(backends=world.backends, now=database_now()) == 0
    assert left(world) == 0

    gone = msgspec.convert(world.server.pods[NAMESPACE, "theirs"], Pod)
    world.server.remove_pod("theirs", namespace=NAMESPACE)
    with ThreadPoolExecutor(1) as threads:
        watching = Watching(threads)
        watching.handle(Changed("DELETED", gone.key, gone))
        watching.settle()
    assert left(world) == 1, "opened by the event of its end"


def test_the_takeover_names_nodes_that_are_closed(world: World) -> None:
    """DEV-11 `takeover --check` says which nodes have devices of which nobody can tell who holds them."""
    world.node("n1", gpus=1)
    given((runs(world, "theirs", limits=NATIVE), ["MIG-unknown"]))
    world.reconcile()
    cluster = world.backends.cluster
    assert cluster is not None
    steps = {step.name: step for step in takeover_steps(cluster)}
    assert any("n1" in line and "closed" in line for line in steps["pods"].missing)


def test_a_waiting_pod_gets_the_reason(world: World) -> None:
    """CLAIM-4 LEASE-2 the refusal says that devices are closed, not that they are sick."""
    world.node("n1", gpus=1)
    given((runs(world, "theirs", limits=NATIVE), ["MIG-unknown"]))
    world.reconcile()
    assert left(world, most=1) == 0
    told = json.dumps(world.told("pod.refused"))
    assert "closed: held outside gpuplane, or it is not known who holds them" in told
