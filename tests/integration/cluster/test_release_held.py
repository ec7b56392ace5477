"""Giving devices back that a pod only holds so far: the same rules as for a bound one, by every door."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from access.actors import SYSTEM
from access.choices import Role
from access.errors import Conflict, Unavailable
from allocations.models import Allocation
from allocations.services import allocation_release
from audit.choices import EventKind
from audit.models import Event
from storage.clock import database_now
from tests.factories import UserFactory
from tests.fakes.apikinds import PODS
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World


def held(world: World) -> Allocation:
    """`train` waits, and filter has just given it two GPUs of n1."""
    world.node("n1")
    world.claim()
    world.pod("train")
    assert world.filter("train") == "n1"
    return Allocation.objects.get(state="held")


def release(allocation: Allocation, *, evict: bool = False) -> Allocation:
    return allocation_release(allocation=allocation, actor=SYSTEM, evict=evict, now=database_now())


def test_its_pod_lives(world: World) -> None:
    """CLAIM-10 refused: kube-scheduler may bind the pod with these devices at this moment."""
    allocation = held(world)
    with pytest.raises(Conflict):
        release(allocation)
    assert world.states("train") == ["held"]
    assert world.used("n1") == [100, 100, 0, 0]
    assert world.bind("train", "n1") == ""


def test_its_pod_is_evicted_first(world: World) -> None:
    """On record, as for a bound one. A pod that runs nowhere is gone at once, and its devices are back."""
    allocation = held(world)
    assert release(allocation, evict=True).state == "released"
    assert (NAMESPACE, "train") not in world.server.pods
    assert Event.objects.get(kind=EventKind.ALLOCATION_EVICTED).actor == SYSTEM.name
    assert world.used("n1") == [0, 0, 0, 0]


def test_its_pod_takes_its_time_to_go(world: World) -> None:
    """A Binding reached it that the ledger does not know of yet: its devices return when it is gone."""
    allocation = held(world)
    world.server.store.patch(PODS, NAMESPACE, "train", {"spec": {"nodeName": "n1"}}, content_type=MERGE)
    assert release(allocation, evict=True).state == "held"
    assert "deletionTimestamp" in world.server.pods[NAMESPACE, "train"]["metadata"]
    assert world.used("n1") == [100, 100, 0, 0]
    world.remove("train")
    world.reconcile()
    assert world.states("train") == ["released"]


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda world: world.remove("train"), id="gone"),
        pytest.param(lambda world: world.finish("train", "Failed"), id="failed"),
        pytest.param(lambda world: (world.remove("train"), world.pod("train")), id="another of its name"),
    ],
)
def test_its_pod_is_gone(world: World, end: Callable[[World], object]) -> None:
    """Nothing keeps them."""
    allocation = held(world)
    end(world)
    assert release(allocation).state == "released"
    assert world.used("n1") == [0, 0, 0, 0]


def test_nobody_says_whether_its_pod_lives(world: World) -> None:
    """LEASE-4 an API server that does not answer frees nothing."""
    allocation = held(world)
    world.server.faults.append(Fault("GET", r"/pods/train", status=500, times=50))
    with pytest.raises(Unavailable):
        release(allocation)
    assert world.used("n1") == [100, 100, 0, 0]


def test_the_pages_button(world: World) -> None:
    """It asks the pod to go first; without that word the page says why not."""
    allocation = held(world)
    client = Client()
    client.force_login(UserFactory(role=Role.ADMIN))
    path = f"/allocations/{allocation.pk}/release/"
    page = client.post(path, follow=True)
    assert "release with evict=true" in page.content.decode()
    assert world.states("train") == ["held"]
    page = client.post(path, {"evict": "true"}, follow=True)
    assert "The devices are returned." in page.content.decode()
    assert world.states("train") == ["released"]
