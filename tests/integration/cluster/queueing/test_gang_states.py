"""What becomes of a gang whose members end late, cannot be evicted, or were admitted by a worker that was stopped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models import F

from allocations import ledger
from allocations.choices import State
from allocations.errors import MovedOn, NewerDecision
from allocations.ledger.hold import hold_all
from allocations.ledger.queue_fence import raise_fence
from allocations.models import Allocation, GangState, QueueFence
from allocations.scheduling import placement
from allocations.scheduling.expired_holds import drop_useless_holds
from allocations.scheduling.queueing.loop import run_round
from allocations.scheduling.queueing.rounds import Rounds
from kube.keys import ATTEMPT
from nodes.choices import NodeState
from nodes.models import Node
from storage.clock import database_now
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.queueing.conftest import Queues
from tests.integration.cluster.queueing.test_gangs import later, ring
from tests.integration.cluster.queueing.test_reclaim import gone, leaving

DELETED = "2026-11-28T00:00:00Z"


def replaced(queues: Queues, **spec: Any) -> tuple[list[str], list[str]]:
    """A gang that stood, whose controller deletes its pods and makes new ones before they are gone: (old, new)."""
    queues.world.node("n1", gpus=4)
    old, new = ring(queues, 2, timeoutSeconds=60, **spec), ["again-0", "again-1"]
    queues.settle()
    for name in old:
        queues.bind(name)
    queues.round()
    assert GangState.objects.get().stood_at is not None
    for name in old:
        queues.world.server.pods[NAMESPACE, name]["metadata"]["deletionTimestamp"] = DELETED
    queues.world.reconcile()
    for name in new:
        queues.pod(name, gang="ring")
    queues.settle()
    assert all(queues.node_of(name) for name in new)
    return old, new


def test_new_pods_have_the_time_of_a_new_gang(queues: Queues) -> None:
    """CLAIM-8 one of them is never bound, so the other is evicted."""
    old, new = replaced(queues)
    for name in old:
        gone(queues, name)
    queues.bind(new[0])
    later(61)
    queues.settle()
    assert leaving(queues) == [new[0]]


@pytest.mark.parametrize("looked", [True, False], ids=["in a round without pods", "between two rounds"])
def test_pods_after_those_that_were_never_bound_have_the_time_of_a_new_gang(queues: Queues, looked: bool) -> None:
    """CLAIM-8 the first were deleted while they were held: the time goes on for pods whose holds have ended alone, not
    for others that the gang has by then.
    """
    queues.world.node("n1", gpus=2)
    old, new = ring(queues, 2, timeoutSeconds=60), ["again-0", "again-1"]
    queues.settle()
    if looked:
        for name in old:
            gone(queues, name)
        queues.round()
    later(50)
    if not looked:
        for name in old:
            gone(queues, name)
    for name in new:
        queues.pod(name, gang="ring")
    queues.settle()
    queues.bind(new[0])
    later(20)
    queues.round()
    assert (leaving(queues), GangState.objects.get().undone) == ([], 0)


def test_the_end_of_old_pods_is_no_failure_of_new_ones(queues: Queues) -> None:
    """CLAIM-8 `onMemberFailure: evictAll` is about the pods that stand."""
    old, new = replaced(queues, onMemberFailure="evictAll")
    for name in new:
        queues.bind(name)
    queues.settle()
    for name in old:
        gone(queues, name)
    queues.settle()
    assert leaving(queues) == []
    gone(queues, new[0])
    queues.settle()
    assert leaving(queues) == [new[1]]


@pytest.mark.parametrize("how", ["error", "budget", "reserved"])
def test_a_member_that_stays_when_its_gang_is_undone(queues: Queues, how: str) -> None:
    """CLAIM-8 it goes as soon as it may, though the gang cannot be admitted again."""
    queues.world.node("n1", gpus=3)
    names = ring(queues, 3, timeoutSeconds=60)
    queues.settle()
    rows = Allocation.objects.filter(pod_name=names[0])
    if how == "reserved":  # its bind is under way: a slow API server, or a reservation pod that starts
        rows.update(state="reserved", reserved_at=database_now(), bind_attempt=1)
    else:
        queues.bind(names[0])
    if how == "error":
        queues.world.server.faults.append(Fault("POST", "eviction", status=500, times=50))
    if how == "budget":
        queues.world.server.store.blocked_evictions.add((NAMESPACE, names[0]))
    later(61)
    queues.round()
    assert (leaving(queues), GangState.objects.get().undone) == ([], 1)
    queues.world.server.faults.clear()
    queues.world.server.store.blocked_evictions.clear()
    if how == "reserved":
        rows.update(state="bound", bound_at=database_now(), changed_at=database_now())
        queues.world.server.pods[NAMESPACE, names[0]]["spec"]["nodeName"] = "n1"
    queues.pod("other", gpus=2, gated=False)  # takes the GPUs that came free
    assert queues.bind("other") == "n1"
    queues._rounds = None  # a later run, which spares nobody
    queues.round()
    assert (leaving(queues), GangState.objects.get().undone) == ([names[0]], 1)
    gone(queues, names[0])
    queues.round()
    assert GangState.objects.get().admitted_at is None


def test_a_member_that_succeeds_before_its_bind_is_confirmed(queues: Queues) -> None:
    """CLAIM-8 `onMemberFailure: evictAll` is about failures: a success that is noted at the reservation is none."""
    queues.world.node("n1", gpus=4)
    names = ring(queues, 2, onMemberFailure="evictAll")
    queues.settle()
    for name in names:
        queues.bind(name)
    queues.round()
    queues.pod("above", gang="ring")
    queues.settle()
    reserved = Allocation.objects.filter(pod_name="above")
    long_ago = database_now() - timedelta(seconds=60)
    reserved.update(state="reserved", reserved_at=long_ago, bind_attempt=1)
    made = queues.world.server.pods[NAMESPACE, "above"]  # its Binding was applied, and the worker was killed
    made["spec"]["nodeName"] = "n1"
    made["metadata"].setdefault("annotations", {})[ATTEMPT] = f"{reserved.get().id}/1"
    queues.world.finish("above")
    assert ledger.note_ended(allocation_id=reserved.get().id, reason="the pod has succeeded")
    queues.world.collect_garbage()
    assert reserved.get().state == State.RELEASED
    queues.settle()
    assert leaving(queues) == []


def test_no_member_is_admitted_while_its_gang_is_undone(queues: Queues) -> None:
    """CLAIM-8 the hold of one has ended unbound when the time is over: it waits with the others, and with back-off."""
    queues.world.node("n1", gpus=2)
    names = ring(queues, 2, timeoutSeconds=60)
    queues.settle()
    queues.bind(names[0])
    held = Allocation.objects.get(pod_name=names[1])
    ledger.drop_hold(allocation_id=held.id, outcome=State.FAILED, reason="", now=database_now(), actor="test")
    later(61)
    queues.round()
    state = GangState.objects.get()
    assert (leaving(queues), queues.node_of(names[1])) == ([names[0]], "")
    assert state.retry_at is not None
    assert queues.why(names[1]) == "gang ring is undone: not all its pods were bound within 60 s"
    queues.round()
    assert queues.why(names[1]) == f"gang ring was undone; it is tried again at {state.retry_at:%H:%M:%S} UTC"


def test_a_pod_that_a_budget_protects_is_not_asked_about_in_each_round(queues: Queues) -> None:
    """CLAIM-8"""
    queues.world.node("n1", gpus=2)
    names = ring(queues, 2, timeoutSeconds=60)
    queues.settle()
    queues.bind(names[0])
    queues.world.server.store.blocked_evictions.add((NAMESPACE, names[0]))
    later(61)
    before = sum("eviction" in one.path for one in queues.world.server.requests)
    for _ in range(5):
        queues.round()
    asked = sum("eviction" in one.path for one in queues.world.server.requests)
    assert asked - before == 1


def test_overtaken_between_two_transactions(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-8 the first gang has its holds, then a REST claim in a queue is admitted, and the round ends."""
    queues.world.node("n1", gpus=4)
    for gang in ("one", "two"):
        queues.gang(gang, 2, timeoutSeconds=60)
        for number in range(2):
            queues.pod(f"{gang}-{number}", gang=gang)
    hold_whole, calls = placement._hold_whole, []

    def overtaken(holds: Sequence[Any], fence: Any, now: datetime) -> Any:
        calls.append(len(holds))
        if len(calls) == 2:
            QueueFence.objects.update(admissions=F("admissions") + 1)
        return hold_whole(holds, fence, now)

    with monkeypatch.context() as patch:
        patch.setattr(placement, "PODS_A_TRANSACTION", 2)
        patch.setattr(placement, "_hold_whole", overtaken)
        with pytest.raises(MovedOn):
            queues.round()
    queues._rounds = None  # the next run
    queues.settle()
    assert queues.world.live() == 4
    for gang in ("one", "two"):
        queues.bind(f"{gang}-0")  # the other one of each is never bound
    later(61)
    queues.settle()
    assert leaving(queues) == ["one-0", "two-0"]


def test_a_claim_over_rest_comes_before_a_round(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-8 the run goes on with another round at once; where another worker has begun, it ends."""
    queues.world.node("n1", gpus=2)
    ring(queues, 2)
    hold_whole = placement._hold_whole
    rounds = Rounds(queues.world.backends.cluster)

    def overtaken(holds: Sequence[Any], fence: Any, now: datetime) -> Any:
        QueueFence.objects.update(admissions=F("admissions") + 1)
        return hold_whole(holds, fence, now)

    with monkeypatch.context() as patch:
        patch.setattr(placement, "_hold_whole", overtaken)
        assert run_round(rounds) == 0
    assert queues.world.live() == 0
    assert run_round(rounds) == 0
    assert queues.world.live() == 2
    queues.pod("above", gang="ring")
    queues.world.node("n2", gpus=1)
    raise_fence()
    with pytest.raises(NewerDecision):
        run_round(rounds)
    assert queues.world.live() == 2


def test_a_node_that_goes_during_a_round(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-8 its pods wait for the next round, and those of other nodes are admitted."""
    queues.world.node("n1", gpus=1)
    queues.world.node("n2", gpus=1)
    queues.queue("research", quotas=[{"deserved": 2}])
    queues.pod("a", queue="research")
    queues.pod("b", queue="research")

    def without_n1(holds: Sequence[Any], **options: Any) -> Any:
        if any(one.decision.node == "n1" for one in holds):
            raise MovedOn("the node is gone")
        return hold_all(holds, **options)

    with monkeypatch.context() as patch:
        patch.setattr(placement, "hold_all", without_n1)
        queues.round()
        assert list(Allocation.objects.values_list("node__name", flat=True)) == ["n2"]
    queues.round()
    assert queues.world.live() == 2


def test_a_node_that_goes_after_the_admission(queues: Queues) -> None:
    """CLAIM-8 kube-scheduler, which has no node for the pod, does not ask again: its hold ends at once all the same."""
    queues.world.node("n1", gpus=1)
    queues.queue("research", quotas=[{"deserved": 2}])
    queues.pod("a", queue="research")
    queues.round()
    Node.objects.update(state=NodeState.GONE)
    queues.world.node("n2", gpus=1)
    queues.round()
    assert list(Allocation.objects.filter(state=State.HELD).values_list("node__name", flat=True)) == ["n1"]
    assert drop_useless_holds(database_now()) == 1
    assert Allocation.objects.get().reason == "its node is gone"
    queues.round()
    assert queues.bind("a") == "n2"


def test_killed_before_the_admission_is_noted(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-8"""
    queues.world.node("n1")
    names = ring(queues, 3, timeoutSeconds=60, onMemberFailure="evictAll")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("allocations.scheduling.queueing.rounds.note_admitted", killed)
        with pytest.raises(KeyboardInterrupt):
            queues.round()
    queues._rounds = None  # the next run
    queues.settle()
    for name in names:
        queues.bind(name)
    queues.settle()
    gone(queues, names[0])
    queues.settle()
    assert leaving(queues) == names[1:]
