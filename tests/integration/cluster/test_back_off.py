"""Rows that collection cannot move on wait longer each time, and keep nobody else waiting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from allocations import ledger
from allocations.choices import State
from allocations.ledger import back_off
from allocations.ledger.back_off import FIRST_PAUSE, LONGEST_PAUSE, due_later
from allocations.models import Allocation
from allocations.reconcile import garbage_collection
from nodes.models import Device
from nodes.revisions import next_revision
from storage.clock import database_now
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World

STUCK = ("stuck-0", "stuck-1", "stuck-2")


@pytest.fixture(autouse=True)
def _two_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(back_off, "BATCH", 2)


def lost_answers(world: World) -> None:
    """Binds whose answer was lost, and of whose pods the API server does not tell."""
    for name in (*STUCK, "fine"):
        world.pod(name, claim="one")
        node = world.filter(name)
        assert node is not None
        allocation = Allocation.objects.get(pod_name=name)
        assert ledger.reserve([allocation.pk], now=database_now() - timedelta(minutes=1))
    world.server.faults.append(Fault("GET", r"/pods/stuck-", status=500, times=10_000))


def left_leases(world: World) -> None:
    """Releases whose leases cannot be deleted."""
    for name in (*STUCK, "fine"):
        world.place(name, claim="one")
    fine = Allocation.objects.get(pod_name="fine").devices.get().minor
    others = "|".join(str(minor) for minor in range(4) if minor != fine)
    world.server.faults.append(Fault("DELETE", rf"/leases/gpu-n1-({others})$", status=403, times=10_000))
    everything = Fault("DELETE", r"/leases/", status=403, times=10_000)
    world.server.faults.append(everything)
    for name in (*STUCK, "fine"):
        world.remove(name)
        world.reconcile()
    world.server.faults.remove(everything)


def budgets(world: World) -> None:
    """Pods whose time is over, and whom a disruption budget keeps."""
    for name in (*STUCK, "fine"):
        world.place(name, claim="brief")
    for name in STUCK:
        world.server.store.blocked_evictions.add((NAMESPACE, name))


def fine(world: World) -> str:
    """What became of the row behind the others."""
    going = "deletionTimestamp" in world.server.pods.get((NAMESPACE, "fine"), {"metadata": {}})["metadata"]
    return "going" if going else world.states("fine")[-1]


@pytest.mark.parametrize(
    ("left_behind", "outcome"),
    [
        pytest.param(lost_answers, "bound", id="reservations"),
        pytest.param(left_leases, "released", id="releases"),
        pytest.param(budgets, "going", id="the end of their time"),
    ],
)
def test_those_behind_get_their_turn(world: World, left_behind: Callable[[World], None], outcome: str) -> None:
    """LEASE-3 CLAIM-9 three rows that cannot be moved, two a turn: the fourth is moved all the same."""
    world.node("n1")
    world.claim("one", count=1)
    world.claim("brief", count=1, ttl=60)
    left_behind(world)
    for turn in range(3):
        world.collect_garbage(later=100 + turn)
    assert fine(world) == outcome
    assert {state for name in STUCK for state in world.states(name)} <= {"reserved", "releasing", "bound"}


def test_one_that_cannot_be_moved_is_tried_less_and_less(world: World) -> None:
    """Twice as long each time, up to the longest; what kept it being over, it is moved at its next turn."""
    world.node("n1")
    world.claim("one", count=1)
    left_leases(world)
    start, tried = database_now() + timedelta(seconds=10), []
    listed = garbage_collection.stale_releases(start)
    (first, _), *_ = listed
    now, end = start, start + timedelta(minutes=5)
    while now < end:
        due = dict(garbage_collection.stale_releases(now))
        if first in due:
            tried.append((now - start).total_seconds())
        due_later(due, State.RELEASING, now)
        now += timedelta(seconds=1)
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps[0] == FIRST_PAUSE.total_seconds()
    assert gaps == sorted(gaps)
    assert gaps[-1] == LONGEST_PAUSE.total_seconds()
    world.server.faults.clear()
    for turn in range(3):
        world.collect_garbage(later=400 + turn)
    assert world.used("n1") == [0, 0, 0, 0]
    assert not Allocation.objects.exclude(retries=0, retry_at=None).exists()


@pytest.mark.parametrize("move", ["moved", "renewed"])
def test_a_row_that_moves_begins_anew(world: World, move: str) -> None:
    """What kept it from its last state says nothing about the next, nor about another end."""
    world.node("n1")
    world.claim("brief", count=1, ttl=60)
    world.place("train", claim="brief")
    row, now = Allocation.objects.get(), database_now()
    due_later([row.pk], State.BOUND, now)
    assert Allocation.objects.get().retries == 1
    if move == "moved":
        world.remove("train")
        world.reconcile()
    else:
        assert ledger.renew(allocation_id=row.pk, expires_at=now, ttl_seconds=1, now=now, actor="somebody")
    assert (Allocation.objects.get().retries, Allocation.objects.get().retry_at) == (0, None)


def test_a_row_that_the_database_does_not_let_go_stops_nobody(world: World, caplog: Any) -> None:
    """CLAIM-4 its device counts less than it was given: filter, which drops expired holds before it refuses,
    goes on.
    """
    world.node("n1", gpus=2)
    world.claim("one", count=1)
    for name in ("broken", "fine"):
        world.pod(name, claim="one")
        assert world.filter(name) == "n1"
    broken = Allocation.objects.get(pod_name="broken").devices.get().minor
    Device.objects.filter(minor=broken).update(core_used=1, revision=next_revision())
    Allocation.objects.update(hold_until=database_now() - timedelta(seconds=1))
    world.pod("next", claim="one")
    assert world.filter("next") == "n1"
    assert world.states("broken") == ["held"]
    assert world.states("fine") == ["failed"]
    assert "garbage_collection.hold_broken" in caplog.text
    world.collect_garbage()
    world.reconcile()  # which counts again
    world.collect_garbage(later=10)
    assert world.states("broken") == ["failed"]
