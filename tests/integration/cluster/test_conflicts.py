"""Two pods that run with one device: seen by everybody for as long as it is so, and nobody else is let in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from access.choices import Role
from allocations.models import Allocation
from allocations.publish.ledger_metrics import ledger_metrics
from allocations.reconcile import verify_devices
from allocations.reconcile.conflicts import conflicts_note
from allocations.reconcile.report import Difference
from kube.keys import ALLOCATED, CAPACITY_CHANGED
from nodes.models import Device
from nodes.revisions import next_revision
from nodes.unverified_devices import UNREAD
from storage.clock import database_now
from tests.factories import UserFactory
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World


@pytest.fixture
def world(world: World) -> World:
    """N1 with three GPUs: `rightful` has half of the first, `intruder` runs with the first and the second, past the
    ledger.
    """
    world.node("n1", gpus=3)
    world.claim("half", count=1, core=50, memory="10Gi")
    world.claim("one", count=1)
    world.place("rightful", claim="half")
    intrude(world, "intruder", "n1:0,1")
    return world


def intrude(world: World, name: str, devices: str) -> None:
    told = {"gpu.scheduling/allocated": devices}
    world.server.add_pod(name, namespace=NAMESPACE, node="n1", phase="Running", annotations=told)


def disputed() -> dict[int, str]:
    """Minor → who runs with it."""
    return dict(Device.objects.exclude(conflict="").order_by("minor").values_list("minor", "conflict"))


BOTH = {0: f"{NAMESPACE}/intruder", 1: f"{NAMESPACE}/intruder"}


def test_a_device_in_conflict_is_closed_to_new_pods(world: World) -> None:
    """LEASE-2 LEASE-6 of all that the intruder runs with, what nobody else holds too; who holds it keeps it."""
    world.reconcile()
    assert disputed() == BOTH
    for number in range(3):
        world.pod(f"half-{number}", claim="half")
    placed = [name for name in ("half-0", "half-1", "half-2") if world.filter(name) == "n1"]
    assert len(placed) == 2
    assert world.used("n1") == [50, 0, 100]
    assert world.states("rightful") == ["bound"]


def test_what_an_annotation_names_past_the_ledger_is_nobodys(world: World) -> None:
    """LEASE-2 LEASE-6 a pod with a row whose annotation names a device that is free runs with that one: nobody else
    gets it.
    """
    world.remove("intruder")
    world.place("other", claim="one")
    world.annotate("other", **{ALLOCATED: "n1:2"})
    world.reconcile()
    assert disputed() == {2: f"{NAMESPACE}/other"}
    world.pod("next", claim="one")
    assert world.filter("next") is None


def test_a_conflict_lasts_as_long_as_both_run(world: World) -> None:
    """LEASE-6 every comparison finds it anew; the event is written once."""
    for _ in range(3):
        world.reconcile()
    assert disputed() == BOTH
    assert len(world.told("reconcile.difference")) == 1


@pytest.mark.parametrize(
    ("ended", "used"),
    [
        pytest.param("intruder", [50, 0, 0], id="the intruder"),
        pytest.param("rightful", [100, 100, 0], id="the rightful: the other is adopted"),
    ],
)
def test_a_conflict_ends_with_one_of_the_two(world: World, ended: str, used: list[int]) -> None:
    """LEASE-6 by itself, and whoever waits is told."""
    world.reconcile()
    assert world.settled()
    before = world.server.nodes["n1"]["metadata"].get("annotations", {}).get(CAPACITY_CHANGED, "")
    world.remove(ended)
    done = world.reconcile()
    assert disputed() == {}
    assert world.used("n1") == used
    assert "gpu 0 of n1 is nobody's dispute any more" in done.lines
    assert world.settled()
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] > before


def _pods_away(world: World) -> None:
    world.server.faults.append(Fault("GET", r"/pods", status=500, times=50))


def _unreadable(world: World) -> None:
    found = world.server.pods[NAMESPACE, "intruder"]
    found["spec"]["containers"] = "no list"


@pytest.mark.parametrize(
    "break_it",
    [pytest.param(_pods_away, id="the API server is away"), pytest.param(_unreadable, id="the pod cannot be read")],
)
def test_a_look_that_says_nothing_opens_nothing(world: World, break_it: Callable[[World], None]) -> None:
    """LEASE-6 only what was seen to have ended has."""
    world.reconcile()
    break_it(world)
    world.reconcile()
    assert disputed() == BOTH


def test_a_third(world: World) -> None:
    """Each is named; while two are left there is a conflict."""
    intrude(world, "another", "n1:0")
    world.reconcile()
    assert disputed() == {0: f"{NAMESPACE}/another, {NAMESPACE}/intruder", 1: f"{NAMESPACE}/intruder"}
    world.remove("intruder")
    world.reconcile()
    assert disputed() == {0: f"{NAMESPACE}/another"}


def test_an_annotation_that_names_what_another_has(world: World) -> None:
    """LEASE-6 a pod with a row of its own whose annotation names the device of another; its own devices are no
    dispute.
    """
    world.remove("intruder")
    world.place("whole", claim="one")
    minor = world.used("n1").index(100)
    world.annotate("whole", **{"gpu.scheduling/allocated": "n1:0"})
    world.reconcile()
    assert disputed() == {0: f"{NAMESPACE}/whole"}
    world.annotate("whole", **{"gpu.scheduling/allocated": f"n1:{minor}"})
    world.reconcile()
    assert disputed() == {}


def test_devices_in_conflict_are_measured(world: World) -> None:
    """VIEW-5 a gauge by node and type, for an alert."""
    line = 'gpuplane_devices_in_conflict{node="n1",type="gpu"} 2.0'
    assert line not in ledger_metrics(samples={}, now=database_now().timestamp())
    world.reconcile()
    assert line in ledger_metrics(samples={}, now=database_now().timestamp())


@pytest.mark.parametrize(
    ("role", "namespaces", "named"),
    [
        pytest.param(Role.ADMIN, [], f"{NAMESPACE}/intruder", id="an admin"),
        pytest.param(Role.VIEWER, ["elsewhere"], "another team", id="another team"),
    ],
)
def test_pages_say_so(world: World, role: Role, namespaces: list[str], named: str) -> None:
    """VIEW-4 on every page while it lasts; who it is, to those who may know."""
    client = Client()
    client.force_login(UserFactory(role=role, namespaces=namespaces))
    device = Device.objects.get(minor=0)
    assert "used by two pods" not in client.get("/").content.decode()
    world.reconcile()
    for path in ("/", "/nodes/", "/nodes/n1/", f"/devices/{device.pk}/"):
        page = client.get(path).content.decode()
        assert "2 devices are used by two pods" in page, path
        assert f'href="/devices/{device.pk}/"' in page
        assert (f"{NAMESPACE}/intruder" in page) is (named != "another team" and path not in {"/", "/nodes/"}), path
    assert f"{named} runs with it" in client.get("/nodes/n1/").content.decode()
    assert f"{named} runs with it" in client.get(f"/devices/{device.pk}/state/").content.decode()


def test_the_pods_of_a_new_node(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-6 they are read before its devices are opened; what is in conflict stays closed when they are, and what was
    elsewhere stays too.
    """
    monkeypatch.setattr("storage.enqueue.current_app.send_task", lambda *_, **__: None)  # there is no worker
    world.reconcile()
    world.server.add_node("n2")
    for name in ("early", "late"):
        told = {"gpu.scheduling/allocated": "n2:0"}
        world.server.add_pod(name, namespace=NAMESPACE, node="n2", phase="Running", annotations=told)
    node = world.node("n2", gpus=2, in_cluster=False)
    Device.objects.filter(node=node).update(stranger=UNREAD, revision=next_revision())
    assert verify_devices(backends=world.backends, now=database_now()) == 2
    (late,) = {"early", "late"} - set(Allocation.objects.filter(state="bound").values_list("pod_name", flat=True))
    assert dict(Device.objects.filter(node=node).exclude(conflict="").values_list("minor", "conflict")) == {
        0: f"{NAMESPACE}/{late}"
    }
    assert len(Device.objects.exclude(conflict="")) == 3


def test_a_name_that_does_not_fit(world: World) -> None:
    """LEASE-6 a device whose dispute was too long to be written down stays closed while any pod cannot be read."""
    device = Device.objects.get(minor=2)
    pod, now = f"{'n' * 63}/{'p' * 253}", database_now()
    conflicts_note(differences=[Difference("", disputed=((device.pk, pod),))], complete=True, now=now)
    conflicts_note(differences=[], unreadable=[pod], complete=True, now=now)
    assert 2 in disputed()
    conflicts_note(differences=[], complete=True, now=now)
    assert 2 not in disputed()
