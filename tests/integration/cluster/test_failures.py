"""Binding where leases and Bindings are those of an API server that fails on demand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from access.actors import SYSTEM
from access.errors import Conflict
from allocations.ledger.external_holders import external_holder_set
from allocations.models import Allocation
from allocations.services import allocation_release
from audit.choices import EventKind
from audit.models import Event
from kube import pods
from kube.client import Cluster
from kube.keys import CAPACITY_CHANGED
from nodes.models import Device
from nodes.revisions import next_revision
from storage.clock import database_now
from tests.fakes.apikinds import LEASES
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World


def test_pod_deleted_between_filter_and_bind(world: World) -> None:
    """LEASE-3 bind of a pod that is gone takes nothing along."""
    world.node("n1")
    world.claim()
    uid = world.pod("train")
    assert world.filter("train") == "n1"
    world.remove("train")

    assert "gone" in world.bind("train", "n1", uid=uid)

    assert world.live() == 0
    assert world.leases() == {}
    assert world.used("n1") == [0, 0, 0, 0]


def test_pod_created_again_between_filter_and_bind(world: World) -> None:
    """LEASE-3 another pod of the same name is never bound by the first one's attempt."""
    world.node("n1")
    world.claim()
    uid = world.pod("train")
    assert world.filter("train") == "n1"
    world.remove("train")
    world.pod("train")

    assert world.bind("train", "n1", uid=uid) != ""

    assert world.live() == 0
    assert world.leases() == {}
    assert "nodeName" not in world.server.pods[NAMESPACE, "train"]["spec"]


def test_a_pod_without_devices_that_is_deleted_during_its_bind(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-3 bind of a pod that asks for no devices answers an error as well, and raises none."""
    world.node("n1")
    world.server.add_pod("plain", namespace=NAMESPACE)
    send = pods.bind

    async def deleted_before(cluster: Cluster, binding: pods.Binding) -> None:
        world.remove("plain")
        await send(cluster, binding)

    monkeypatch.setattr(pods, "bind", deleted_before)
    assert world.bind("plain", "n1") == "the pod is gone"


def test_answer_lost_after_the_binding_was_applied(world: World) -> None:
    """LEASE-3 a Binding whose answer was lost is sent again and then read: the pod keeps its devices."""
    world.node("n1")
    world.claim()
    world.server.faults.append(Fault("POST", r"/binding$", drop="after"))
    world.place("train")
    assert world.states("train") == ["bound"]
    assert world.server.pods[NAMESPACE, "train"]["metadata"]["annotations"]["gpu.scheduling/allocated"] == "n1:0,1"
    assert world.reconcile().released == 0


def test_binding_refused(world: World) -> None:
    """LEASE-3 a Binding that the API server refuses for good gives everything back."""
    world.node("n1")
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    world.server.faults.append(Fault("POST", r"/binding$", status=403, reason="Forbidden", times=5))
    assert "refused" in world.bind("train", "n1")
    assert world.live() == 0
    assert world.leases() == {}


@pytest.mark.parametrize(("holder", "marked"), [("somebody-else", "somebody-else"), ("", "somebody")])
def test_an_external_holder_has_the_lease(world: World, holder: str, marked: str) -> None:
    """LEASE-1 a lease in a stranger's hands: other devices of the same node are taken, and the stranger's is left
    alone, and out of use also where it names no holder.
    """
    world.node("n1")
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    world.server.add_lease("gpu-n1-1", holder)

    assert world.bind("train", "n1") == ""

    assert world.leases()["gpu-n1-1"] == holder
    assert world.used("n1")[1] == 0
    assert sum(world.used("n1")) == 200
    assert Device.objects.get(node__name="n1", minor=1).stranger == marked
    assert world.server.pods[NAMESPACE, "train"]["metadata"]["annotations"]["gpu.scheduling/allocated"] != "n1:0,1"


def test_a_lease_that_cannot_be_read_keeps_its_device_out_of_use(world: World) -> None:
    """LEASE-1 a comparison does not take what it cannot read for absent, and the rest of the fleet goes on."""
    world.node("n1")
    world.server.add_namespace("gpuplane-system")
    spec = {"acquireTime": "0000-01-01T00:00:00.000000Z"}  # Go has a year 0
    world.server.store.create(LEASES, "gpuplane-system", {"metadata": {"name": "gpu-n1-1"}, "spec": spec})
    for _ in range(2):
        done = world.reconcile()
        assert (done.problem, Device.objects.get(node__name="n1", minor=1).stranger) == ("", "somebody")
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    assert world.bind("train", "n1") == ""
    assert world.used("n1")[1] == 0
    world.server.store.delete(LEASES, "gpuplane-system", "gpu-n1-1", {})
    world.reconcile()
    assert Device.objects.get(node__name="n1", minor=1).stranger == ""


def test_an_external_holder_that_another_has_noted_meanwhile_stays(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-1 who read the device before the other wrote it does not open it."""
    world.node("n1")
    device = Device.objects.get(node__name="n1", minor=1)
    Device.objects.filter(pk=device.pk).update(stranger="one")

    def noted_by_another() -> int:
        Device.objects.filter(pk=device.pk).update(stranger="other")
        return next_revision()

    monkeypatch.setattr("allocations.ledger.external_holders.next_revision", noted_by_another)
    before = Event.objects.count()
    assert not external_holder_set(device.uuid, "", now=database_now(), actor="reconcile")
    device.refresh_from_db()
    assert (device.stranger, Event.objects.count()) == ("other", before)


def test_not_enough_without_externally_held_devices(world: World) -> None:
    """LEASE-1 where it does not suffice every lease of the attempt is deleted again."""
    world.node("n1", gpus=2)
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    world.server.add_lease("gpu-n1-1", "somebody-else")

    assert world.bind("train", "n1") != ""

    assert world.leases() == {"gpu-n1-1": "somebody-else"}
    assert world.live() == 0


def lose_the_answer(world: World, monkeypatch: pytest.MonkeyPatch, *, applied: bool) -> None:
    """The API server goes away with the answer to the Binding, before or after applying it, and stays away: pod `train`
    on `n1` stays reserved.
    """
    monkeypatch.setattr("allocations.scheduling.limits.BIND_DEADLINE", timedelta(seconds=0.5))
    world.server.add_namespace("gpuplane-system")
    world.node("n1")
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    world.server.faults += [
        Fault("POST", r"/binding$", drop="after" if applied else "before"),
        Fault("POST", r"/binding$", drop="before", times=500),
        Fault("GET", r"/pods/train$", drop="before", times=500),
    ]
    assert world.bind("train", "n1") != ""
    assert world.states("train") == ["reserved"]


@pytest.mark.parametrize("applied", [True, False])
def test_api_server_goes_away_during_bind(world: World, applied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-3 an outcome that nobody knows waits; when the API server is back, collection finishes what the
    bind began.
    """
    lose_the_answer(world, monkeypatch, applied=applied)
    world.collect_garbage(later=60)
    assert world.states("train") == ["reserved"]

    world.server.faults.clear()
    world.collect_garbage(later=66)  # a row that could not be moved waits 5 s for its next turn

    assert world.states("train") == ["bound"]
    assert world.server.pods[NAMESPACE, "train"]["spec"]["nodeName"] == "n1"
    assert len(world.leases()) == 2


def test_unbound_is_not_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-3 every answer lost and the pod unbound so far: nothing is undone on a guess, and the next bind goes on."""
    monkeypatch.setattr("allocations.scheduling.limits.BIND_DEADLINE", timedelta(seconds=0.5))
    world.node("n1")
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    world.server.faults.append(Fault("POST", r"/binding$", drop="before", times=500))

    assert "lost" in world.bind("train", "n1")

    assert world.states("train") == ["reserved"]
    assert len(world.leases()) == 2
    world.server.faults.clear()
    assert world.filter("train") == "n1"
    assert world.bind("train", "n1") == ""
    assert world.states("train") == ["bound"]


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("refusal", ["denied", "a stranger's lease"])
def test_a_lease_refused_after_the_binding_was_sent(
    world: World, applied: bool, refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-1 LEASE-3 the Binding's answer is lost, and the next bind is refused the lease: the pod is read before
    anything is given back.

    An API server that starts up answers 403 for a moment, until it knows its roles.
    """
    lose_the_answer(world, monkeypatch, applied=applied)
    world.server.faults.clear()
    if refusal == "denied":
        world.server.faults.append(Fault("POST", r"/leases$", status=403, reason="Forbidden"))
    else:
        world.server.store.delete(LEASES, "gpuplane-system", "gpu-n1-1", {})
        world.server.add_lease("gpu-n1-1", "somebody-else")

    told = world.bind("train", "n1")

    if applied:
        assert told == ""
        assert world.states("train") == ["bound"]
        assert world.used("n1") == [100, 100, 0, 0]
    elif refusal == "denied":
        assert "refused" in told
        assert world.states("train") == ["failed"]
        assert world.leases() == {}
    else:
        assert told == ""  # planned again, on others of the node
        assert world.states("train") == ["released", "bound"]
        assert world.used("n1")[1] == 0


def test_the_pod_unread_after_a_lease_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-3 refused the lease and the pod not read, nobody knows: the reservation stays, and collection
    finishes it.
    """
    lose_the_answer(world, monkeypatch, applied=True)
    world.server.faults.append(Fault("POST", r"/leases$", status=403, reason="Forbidden"))
    assert "does not say" in world.bind("train", "n1")
    assert world.states("train") == ["reserved"]
    world.server.faults.clear()
    world.collect_garbage(later=60)
    assert world.states("train") == ["bound"]


def test_end_of_time(world: World) -> None:
    """CLAIM-9 when ttlSeconds is over the pod gets an event and is evicted; the devices return when it is gone."""
    world.node("n1")
    world.claim("brief", ttl=60)
    uid = world.place("train", claim="brief")
    assert world.collect_garbage(later=30).ended == 0

    assert world.collect_garbage(later=90).ended == 1
    events = [event for event in world.server.events.values() if event["involvedObject"]["uid"] == uid]
    assert [event["reason"] for event in events] == ["GpuClaimExpired"]
    assert "deletionTimestamp" in world.server.pods[NAMESPACE, "train"]["metadata"]
    assert world.states("train") == ["bound"]
    world.reconcile()
    assert world.states("train") == ["bound"]

    world.collect_garbage(later=100)
    assert len(world.server.events) == 1  # told once
    assert Event.objects.filter(kind=EventKind.ALLOCATION_EXPIRED).count() == 1
    world.remove("train")
    world.reconcile()
    assert world.states("train") == ["released"]
    assert world.leases() == {}


def test_who_had_a_pod_evicted_is_on_record(world: World) -> None:
    """VIEW-6 releasing a living pod's devices needs its eviction, and the trail says who asked for that."""
    world.node("n1")
    world.claim()
    world.place("train")
    allocation = Allocation.objects.get()
    with pytest.raises(Conflict):
        allocation_release(allocation=allocation, actor=SYSTEM, evict=False, now=database_now())
    assert not Event.objects.filter(kind=EventKind.ALLOCATION_EVICTED).exists()
    allocation_release(allocation=allocation, actor=SYSTEM, evict=True, now=database_now())
    assert "deletionTimestamp" in world.server.pods[NAMESPACE, "train"]["metadata"]
    assert world.states("train") == ["bound"]
    assert Event.objects.get(kind=EventKind.ALLOCATION_EVICTED).actor == SYSTEM.name


def test_a_budget_forbids_the_eviction(world: World) -> None:
    """CLAIM-9 a disruption budget is waited for; the pod keeps its devices as long as it runs."""
    world.node("n1")
    world.claim("brief", ttl=60)
    world.place("train", claim="brief")
    world.server.store.blocked_evictions.add((NAMESPACE, "train"))
    assert world.collect_garbage(later=90).ended == 0
    assert world.states("train") == ["bound"]
    world.server.store.blocked_evictions.clear()
    assert world.collect_garbage(later=95).ended == 1


def test_release_is_announced(world: World) -> None:
    """Capacity that comes back by collection is told on the node, after the commit."""
    world.node("n1")
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    assert world.settled()
    before = world.server.nodes["n1"]["metadata"].get("annotations", {}).get(CAPACITY_CHANGED)
    world.collect_garbage(later=60)
    assert world.states("train") == ["failed"]
    assert world.settled()
    after = world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED]
    assert after != before


def test_release_while_the_api_server_is_away(world: World) -> None:
    """LEASE-3 a release that could not delete its leases goes on counting the devices, until collection finishes it."""
    world.node("n1")
    world.claim()
    world.place("train")
    world.remove("train")
    world.server.faults.append(Fault("DELETE", r"/leases/", status=500, times=50))
    world.reconcile()
    assert world.states("train") == ["releasing"]
    assert world.used("n1") == [100, 100, 0, 0]
    world.server.faults.clear()
    world.collect_garbage(later=10)
    assert world.states("train") == ["released"]
    assert world.leases() == {}
    assert Allocation.objects.get().ended_at is not None
