"""Capacity came back, and the process that was to tell the waiting pods died first: the next comparison tells them."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from allocations import ledger
from allocations.choices import State
from allocations.models import Allocation, GroupBackOff, PodRefusal
from allocations.reconcile.requeue import RequeueNotifier
from claims.models import GpuClaim
from kube.keys import CAPACITY_CHANGED
from kube.objects import Pod
from nodes.models import Device, Node
from storage.clock import database_now
from tests.integration.cluster.conftest import World

MINUTE = timedelta(minutes=1)


@pytest.fixture
def waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """n1's only GPU is held; `waits` was refused a minute ago."""
    monkeypatch.setattr("storage.enqueue.current_app.send_task", lambda *_, **__: None)  # there is no worker
    world.node("n1", gpus=1)
    world.claim("one", count=1)
    world.place("holder", claim="one")
    world.pod("waits", claim="one")
    assert world.filter("waits") is None
    world.reconcile()
    assert world.settled()
    moved = database_now() - MINUTE
    PodRefusal.objects.update(last_at=moved)
    Device.objects.update(changed_at=moved - MINUTE)
    GpuClaim.objects.update(changed_at=moved - MINUTE)
    monkeypatch.setattr("allocations.reconcile.run.REMINDER", RequeueNotifier())
    return world


def told(world: World) -> str:
    """When capacity was announced last."""
    assert world.settled()
    return str(world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED])


def come_back_untold(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder's device comes back half a minute ago, and the process dies after the commit."""
    world.remove("holder")
    row = Allocation.objects.get(state=State.BOUND)
    with monkeypatch.context() as patched:
        patched.setattr("allocations.ledger.transitions.announce", lambda **_: None)
        now = database_now()
        ledger.begin_release(
            allocation_id=row.id,
            sources=(State.BOUND,),
            outcome=State.RELEASED,
            reason="the pod is gone",
            now=now,
            actor="watch",
        )
        ledger.finish_release(allocation_id=row.id, outcome=State.RELEASED, now=now, actor="watch")
    Allocation.objects.update(ended_at=now - MINUTE / 2)


def waits(world: World) -> dict[str, Pod]:
    """The pod that waits, by its UID."""
    uid = PodRefusal.objects.get().pod_uid
    return {uid: msgspec.convert({"metadata": {}, "spec": {}, "status": {}}, Pod)}


def test_the_next_comparison_announces_it_once(waiting: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-4 LEASE-6 capacity that nobody announced is announced."""
    before = told(waiting)
    come_back_untold(waiting, monkeypatch)
    assert waiting.reconcile().reminded == 1
    after = told(waiting)
    assert after > before
    assert waiting.reconcile().reminded == 0
    assert told(waiting) == after


@pytest.mark.parametrize(("over_since", "want"), [(MINUTE / 6, 1), (-MINUTE / 6, 0), (2 * MINUTE, 0)])
def test_a_node_that_begins_groups_again(waiting: World, over_since: timedelta, want: int) -> None:
    """SHARE-5 LEASE-4 the end of a node's back-off is announced, once; neither one to come, nor one that the pod was
    refused after.
    """
    node = Node.objects.get(name="n1")
    until = database_now() - over_since
    GroupBackOff.objects.create(node=node, failures=1, until=until, reason="the kubelet refused")
    assert waiting.reconcile().reminded == want
    assert waiting.reconcile().reminded == 0


def test_nothing_is_announced_without_a_gain(waiting: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing came free since; or just now, and telling is under way; or the pod has been asked for again, is placed,
    or is gone.
    """
    assert waiting.reconcile().reminded == 0
    come_back_untold(waiting, monkeypatch)
    Allocation.objects.update(ended_at=database_now())
    assert waiting.reconcile().reminded == 0
    Allocation.objects.update(ended_at=database_now() - MINUTE / 2)
    PodRefusal.objects.update(last_at=database_now() - MINUTE / 3)
    assert waiting.reconcile().reminded == 0
    PodRefusal.objects.update(last_at=database_now() - MINUTE)
    waiting.remove("waits")
    assert waiting.reconcile().reminded == 0


@pytest.mark.parametrize("what", ["device", "claim"])
def test_other_gains(waiting: World, what: str) -> None:
    """CLAIM-3 a device that is well again, and a claim that was changed, count as well."""
    when = database_now() - MINUTE / 2
    (Device.objects.update if what == "device" else GpuClaim.objects.update)(changed_at=when)
    assert waiting.reconcile().reminded == 1


@pytest.mark.parametrize(
    "what", [{"conflict": "research/other"}, {"closed": "a pod runs there"}, {"mig": True}], ids=str
)
def test_what_is_kept_from_new_pods_is_no_gain(waiting: World, what: dict[str, object]) -> None:
    """LEASE-4 a device that was closed since, by whatever it was, is nothing to wake pods for."""
    Device.objects.update(changed_at=database_now() - MINUTE / 2, **what)
    assert RequeueNotifier().remind(pods=waits(waiting), now=database_now()) == 0


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param({"spec": {"nodeName": "n1"}}, id="bound"),
        pytest.param({"status": {"phase": "Failed"}}, id="over"),
        pytest.param({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, id="leaving"),
    ],
)
def test_pods_that_do_not_wait(waiting: World, monkeypatch: pytest.MonkeyPatch, pod: dict[str, object]) -> None:
    """They need no telling."""
    come_back_untold(waiting, monkeypatch)
    uid = PodRefusal.objects.get().pod_uid
    seen = {uid: msgspec.convert({"metadata": {}, "spec": {}, "status": {}, **pod}, Pod)}
    assert RequeueNotifier().remind(pods=seen, now=database_now()) == 0
    assert RequeueNotifier().remind(pods={uid: Pod()}, now=database_now()) == 1
