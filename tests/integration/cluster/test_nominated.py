"""Preemption's second half: victims go, and the pod for which they went gets their devices without anybody else going
too.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
import pytest

from allocations import ledger
from allocations.choices import State
from allocations.engine.amounts import Held
from allocations.extender import views
from allocations.models import Allocation
from allocations.scheduling import preemption
from allocations.scheduling.release_ended import SOON, Ended, release_finished
from kube.keys import CAPACITY_CHANGED
from storage.clock import database_now
from tests.fakes.apikinds import PODS
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World


@pytest.fixture
def full(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """n1 and n2 with two GPUs each, held whole by a, b and c, d; `urgent` waits for one GPU."""
    monkeypatch.setattr("storage.enqueue.current_app.send_task", lambda *_, **__: None)  # there is no worker
    world.claim("one", count=1)
    world.claim("both", count=2)
    for node, names in (("n1", "ab"), ("n2", "cd")):
        world.node(node, gpus=2)
        for name in names:
            world.place(name, claim="one")
    world.pod("urgent", claim="one")
    assert world.filter("urgent") is None
    return world


def nominate(world: World, name: str, node: str) -> None:
    """What kube-scheduler writes when it evicts others for the pod."""
    body = {"status": {"nominatedNodeName": node}}
    world.server.store.patch(PODS, NAMESPACE, name, body, content_type=MERGE, subresource="status")


def told_to_go(world: World, name: str) -> None:
    """A deletionTimestamp; the pod still ends."""
    world.server.store.delete(PODS, NAMESPACE, name, {})


def begin_release(row: Allocation, *, now: datetime | None = None) -> None:
    """The watch has begun, and its worker stands still."""
    ledger.begin_release(
        allocation_id=row.id,
        sources=(State.BOUND,),
        outcome=State.RELEASED,
        reason="the pod is gone",
        now=now or database_now(),
        actor="watch",
    )


def preempt(world: World, name: str, victims: dict[str, list[str]], *, nominated: bool = True) -> list[str]:
    """Nodes that the verb leaves. Without `nominated` kube-scheduler asks from before it knew of that."""
    pod: dict[str, Any] = dict(world.server.pods[NAMESPACE, name])
    if not nominated:
        pod["status"] = {"phase": "Pending"}
    offered = {
        node: {"Pods": [{"UID": world.server.pods[NAMESPACE, one]["metadata"]["uid"]} for one in names]}
        for node, names in victims.items()
    }
    body = {"Pod": pod, "NodeNameToMetaVictims": offered}
    return sorted(msgspec.json.decode(views.preempt(msgspec.json.encode(body)))["NodeNameToMetaVictims"])


def test_a_nominated_pod_has_the_devices_the_moment_their_holder_is_gone(full: World) -> None:
    """LEASE-4 filter does not refuse because the watch has not brought yet what kube-scheduler knows; one that is not
    nominated waits.
    """
    full.pod("another", claim="one")
    full.remove("a")
    assert full.filter("another") is None
    nominate(full, "urgent", "n1")

    assert full.filter("urgent") == "n1"

    assert full.states("a") == ["released"]
    assert len(full.leases()) == 3
    assert full.bind("urgent", "n1") == ""


def test_of_several_victims_all_have_to_go(full: World) -> None:
    """One is gone, one still ends: refused; then both are gone."""
    full.pod("wide", claim="both")
    nominate(full, "wide", "n1")
    full.remove("a")
    told_to_go(full, "b")
    assert full.filter("wide") is None
    assert (full.states("a"), full.states("b")) == (["released"], ["bound"])
    full.remove("b")
    assert full.filter("wide") == "n1"


def test_a_release_under_way_is_finished(full: World) -> None:
    """The watch has begun, and its worker stands still."""
    row = Allocation.objects.get(pod_name="a")
    full.remove("a")
    begin_release(row)
    nominate(full, "urgent", "n1")
    assert full.filter("urgent") == "n1"
    assert full.states("a") == ["released"]


def test_the_living_keep_what_they_hold(full: World) -> None:
    """LEASE-4 running pods, holds and binds under way, and everything while the API server is away."""
    told_to_go(full, "b")
    uid = full.server.pods[NAMESPACE, "b"]["metadata"]["uid"]
    assert release_finished(node="n1", now=database_now()) == Ended(0, frozenset({uid}))
    assert release_finished(node="nowhere", now=database_now()) == Ended()
    full.remove("a")
    full.server.stop()
    assert release_finished(node="n1", now=database_now()) == Ended()
    full.server.start()
    assert full.live() == 4


@pytest.mark.parametrize("nominated", [True, False], ids=["told", "not told yet"])
def test_nobody_else_goes_while_victims_are_going(full: World, nominated: bool) -> None:
    """CLAIM-4 a second question for the same pod names nobody: what was made free, or is being made free, is enough."""
    assert preempt(full, "urgent", {"n1": ["a"], "n2": ["c"]}) == ["n1", "n2"]
    told_to_go(full, "a")
    nominate(full, "urgent", "n1")
    assert preempt(full, "urgent", {"n2": ["c"]}, nominated=nominated) == []
    assert full.settled()
    before = full.server.nodes["n1"]["metadata"].get("annotations", {}).get(CAPACITY_CHANGED, "")
    full.remove("a")
    assert preempt(full, "urgent", {"n2": ["c"]}, nominated=nominated) == []
    assert full.states("a") == ["released"]
    assert full.settled()
    assert full.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] > before
    assert full.filter("urgent") == "n1"


def test_nobody_else_goes_while_another_is_at_the_release(full: World) -> None:
    """CLAIM-4 a victim is gone and its release has begun, by the watch, whose lease is not dropped yet: its devices
    count as on their way.
    """
    row = Allocation.objects.get(pod_name="a")
    nominate(full, "urgent", "n1")
    full.remove("a")
    full.server.faults.append(Fault("DELETE", "/leases/", status=500, times=50))
    begin_release(row)
    assert preempt(full, "urgent", {"n1": ["b"], "n2": ["c"]}) == []
    assert full.states("a") == ["releasing"]
    full.server.faults.clear()
    assert preempt(full, "urgent", {"n1": ["b"], "n2": ["c"]}) == []
    assert full.states("a") == ["released"]
    assert full.filter("urgent") == "n1"


def test_a_release_that_is_stuck_is_waited_for_no_longer(full: World) -> None:
    """CLAIM-4 leases that cannot be dropped, say because that is forbidden, keep a pod from preempting elsewhere for a
    minute only.
    """
    row = Allocation.objects.get(pod_name="a")
    nominate(full, "urgent", "n1")
    full.remove("a")
    full.server.faults.append(Fault("DELETE", "/leases/", status=403, times=500))
    begun = database_now() - SOON
    begin_release(row, now=begun)
    assert preempt(full, "urgent", {"n2": ["c"]}) == ["n2"]
    assert full.states("a") == ["releasing"]


def test_nobody_else_goes_while_the_watch_is_quicker(full: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-4 the watch ends what a victim held between two looks of the verb: after the picture was read, before the
    grants were.
    """
    nominate(full, "urgent", "n1")
    told_to_go(full, "a")
    held_by = preemption.held_by

    def overtaken(pod_uids: Iterable[str]) -> dict[str, list[Held]]:
        uids = set(pod_uids)
        if uids and (NAMESPACE, "a") in full.server.pods:
            full.remove("a")
            full.reconcile()
        return held_by(uids)

    monkeypatch.setattr(preemption, "held_by", overtaken)
    assert preempt(full, "urgent", {"n2": ["c"]}) == []
    assert full.states("a") == ["released"]


def test_what_another_took_has_to_be_made_anew(full: World) -> None:
    """CLAIM-4 the nominated node lost the devices to somebody: victims elsewhere are named again."""
    nominate(full, "urgent", "n1")
    full.remove("a")
    full.reconcile()
    full.place("thief", claim="one")
    assert preempt(full, "urgent", {"n2": ["c"]}) == ["n2"]


def test_what_came_back_is_not_enough(full: World) -> None:
    """CLAIM-4 one of two devices came back: another victim is named."""
    full.pod("wide", claim="both")
    nominate(full, "wide", "n1")
    full.remove("a")
    assert preempt(full, "wide", {"n1": ["b"], "n2": ["c"]}) == ["n1"]


def test_room_for_long_does_not_keep_a_pod_from_preempting(full: World) -> None:
    """CLAIM-4 our devices are free since long, so something else keeps the pod from its node: kube-scheduler
    decides.
    """
    full.remove("a")
    full.reconcile()
    Allocation.objects.filter(pod_name="a").update(ended_at="2026-01-01T00:00:00Z")
    nominate(full, "urgent", "n1")
    assert preempt(full, "urgent", {"n2": ["c"]}) == ["n2"]
