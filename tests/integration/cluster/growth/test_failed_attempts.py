"""Attempts at a node that fail: how often and when they are made again, and what is said then."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import OperationalError
from django.db.transaction import atomic
from pytest_django import Settings

from allocations.models import PodRefusal
from allocations.waiting import forget_waiting
from autoscaling.choices import TriggerState
from autoscaling.models import Pool, ScalingRequest, Trigger
from autoscaling.rounds import trigger_pods
from autoscaling.rounds.failures import EarlierFailures
from autoscaling.rounds.trigger_transitions import fail, move
from autoscaling.services import request_cancel
from autoscaling.transitions import trigger_moved
from kube.client import Cluster
from kube.keys import NODEPOOL_LABEL
from kube.objects import Pod
from tests.fakes.apikinds import CRDS
from tests.fakes.apiserver import Fault
from tests.integration.cluster.growth.conftest import Growing, reasons


def test_karpenter_away_for_minutes(growing: Growing, settings: Settings) -> None:
    """SCALE-4 The trigger's own clock ends it; another try follows, three in all, then a reason that stays."""
    growing.karpenter.pool()
    growing.pods(2)
    for number in range(3):
        growing.round()
        assert len(growing.triggers) == 1, number
        growing.wait(settings.GPUPLANE_TRIGGER_SECONDS + 1)
        growing.round(2)
        growing.wait(16)
    growing.round(2)
    assert growing.states == ["failed"] * 3
    (reason,) = reasons()
    assert reason.startswith("3 attempts failed, the last in pool h100: no NodeClaim within 600 s")
    Pool.objects.update(changed_at=growing.now())
    growing.wait(6)
    growing.round()
    assert growing.states[-1] == "created", "tried again since its pool changed"


def test_failures_are_forgotten(growing: Growing, settings: Settings) -> None:
    """SCALE-4 Ten minutes after the last of three failures three more attempts are made."""
    growing.karpenter.pool()
    growing.pods(1)
    for number in range(6):
        growing.round(2)
        assert growing.states == ["failed"] * number + ["created"]
        growing.wait(settings.GPUPLANE_TRIGGER_SECONDS + 1)
        growing.round(2)
        growing.wait(601 if number == 2 else 16)
    growing.round(2)
    assert growing.states == ["failed"] * 6
    assert next(iter(reasons())).startswith("3 attempts failed")


def test_a_trigger_pod_that_is_refused(growing: Growing, settings: Settings) -> None:
    """SCALE-4 The API server takes no trigger pod: three attempts, then its reason."""
    growing.karpenter.pool()
    growing.pods(2)
    refused = Fault("POST", f"/namespaces/{settings.GPUPLANE_NAMESPACE}/pods", status=403, reason="Forbidden", times=9)
    growing.server.faults.append(refused)
    for _ in range(4):
        growing.round(2)
        growing.wait(16)
    assert growing.states == ["failed"] * 3
    assert "the trigger pod was refused" in next(iter(reasons()))


def test_a_node_that_is_never_ready(growing: Growing) -> None:
    """SCALE-3 SCALE-4 Fifteen minutes from its registration."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    name = growing.karpenter.nominate(growing.triggers[0])
    growing.server.add_node(name, labels={NODEPOOL_LABEL: "h100"}, ready=False)
    growing.karpenter.step(name, "Launched", "Registered")
    growing.round(2)
    assert growing.states == ["registered"]
    growing.wait(14 * 60)
    growing.round()
    assert growing.states == ["registered"]
    growing.wait(90)
    growing.round()
    assert growing.states[0] == "failed"
    assert "was not ready within 900 s" in Trigger.objects.order_by("pk")[0].reason


@pytest.mark.parametrize("seen", ["created and gone", "never"])
def test_a_node_claim_that_goes_between_two_looks(growing: Growing, seen: str) -> None:
    """SCALE-3 SCALE-4 Karpenter has deleted it before the loop, or even the watch, saw it: one failure, tried again."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    name = growing.karpenter.nominate(growing.triggers[0])
    if seen != "never":
        growing.watch()
    growing.server.store.delete(growing.karpenter.claims, "", name, {})
    growing.round(2)
    assert growing.states == ["failed"]
    assert growing.triggers == []
    growing.wait(6)
    growing.round(2)
    assert growing.states == ["failed", "created"]


def test_a_nominated_node_claim_is_waited_for(growing: Growing) -> None:
    """SCALE-3 It is in the cluster, but the watch has not brought it: the trigger counts as taken up."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    name = growing.karpenter.nominate(growing.triggers[0])
    growing.unwatched(2)
    trigger = Trigger.objects.get()
    assert (trigger.state, trigger.node_claim) == ("created", name)
    growing.round()
    assert growing.states == ["launching"]


@pytest.mark.parametrize("says", [True, False], ids=["nominated", "not said"])
def test_a_node_claim_that_came_in_an_outage(growing: Growing, settings: Settings, says: bool) -> None:
    """SCALE-4 gpuplane was away longer than a NodeClaim may take: rows of before the outage fail no trigger."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    growing.karpenter.step(growing.karpenter.nominate(growing.triggers[0], says=says), "Launched")
    growing.wait(settings.GPUPLANE_TRIGGER_SECONDS + 1)
    growing.restart()
    growing.unwatched(2)
    assert growing.states == ["created"]
    growing.round()
    assert growing.states == ["launching"]
    assert len(growing.triggers) == 1


@pytest.mark.parametrize(
    ("before", "meanwhile", "minutes"), [((), ("Launched",), 6), (("Launched",), ("Launched", "Registered"), 16)]
)
def test_steps_of_a_node_claim_in_an_outage(
    growing: Growing, before: tuple[str, ...], meanwhile: tuple[str, ...], minutes: int
) -> None:
    """SCALE-4 the same of what became of its NodeClaim meanwhile."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    name = growing.karpenter.nominate(growing.triggers[0])
    growing.karpenter.step(name, *before)
    growing.round()
    assert growing.states == ["launching"]
    growing.server.add_node(name, labels={NODEPOOL_LABEL: "h100"}, ready=False)
    growing.karpenter.step(name, *meanwhile)
    growing.wait(minutes * 60)
    growing.restart()
    growing.unwatched(2)
    assert growing.states == ["launching"]


def test_karpenter_is_uninstalled(growing: Growing, settings: Settings) -> None:
    """SCALE-4 its kinds are gone: the trigger fails in its time."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    growing.server.store.delete(CRDS, "", "nodeclaims.karpenter.sh", {})
    growing.wait(settings.GPUPLANE_TRIGGER_SECONDS + 1)
    growing.unwatched()
    assert growing.states[0] == "failed"


def test_a_ready_node_is_followed_at_once(growing: Growing) -> None:
    """SCALE-4 Its trigger pod is gone, and seen to be gone: what becomes of the node counts in the next round."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    name = growing.to_ready()
    growing.round(2)
    assert (growing.triggers, growing.states) == ([], ["ready"])
    growing.server.store.delete(growing.karpenter.claims, "", name, {})
    growing.round()
    assert growing.states == ["failed"]


def while_made(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Trigger, Pod], object]) -> None:
    """It happens once a trigger pod was made, before that is noted."""
    create = trigger_pods._create

    def made(cluster: Cluster, trigger: Trigger) -> Pod:
        pod = create(cluster, trigger)
        happens(trigger, pod)
        return pod

    monkeypatch.setattr(trigger_pods, "_create", made)


class Killed(BaseException):
    """What a signal does that nothing catches."""


def killed(*_: object) -> None:
    raise Killed


def test_killed_before_a_pod_that_was_made_is_noted(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCALE-4 Its node came, and the pods run on it, before anybody looks: it served, nobody withdrew it."""
    growing.karpenter.pool()
    names = growing.pods(2)
    with monkeypatch.context() as patched:
        while_made(patched, killed)
        with pytest.raises(Killed):
            growing.round()
    assert growing.states == ["wanted"]
    (pod,) = growing.triggers
    node = growing.karpenter.nominate(pod)
    growing.karpenter.ready(node)
    growing.inventory(node)
    for name in names:
        growing.world.remove(name)
    forget_waiting(list(PodRefusal.objects.values_list("pod_uid", flat=True)))
    growing.restart()
    growing.round(3)
    assert growing.states == ["served"]
    assert [one.state for one in growing.requests] == ["served"]
    assert growing.triggers == []


def test_another_worker_notes_the_pod_that_was_made(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCALE-4 The one that made it does not delete it."""
    growing.karpenter.pool()
    growing.pods(2)

    def noted(trigger: Trigger, made: Pod) -> None:
        other = Trigger.objects.get(pk=trigger.pk)
        move(other, TriggerState.CREATED, now=growing.now(), uid=made.metadata.uid, created_at=growing.now())

    while_made(monkeypatch, noted)
    growing.round()
    assert growing.states == ["created"]
    assert len(growing.triggers) == 1


def test_a_cancel_that_comes_while_the_pod_is_made(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCALE-4 The pod is deleted at once, not when the cluster is looked at next."""
    growing.karpenter.pool()
    growing.pods(2)
    while_made(monkeypatch, lambda *_: request_cancel(request=growing.requests[0], actor="ann", now=growing.now()))
    growing.round()
    assert growing.triggers == []
    assert growing.states == ["withdrawn"]


def test_a_cancel_holds_back_its_own_pods_alone(growing: Growing) -> None:
    """SCALE-1 Triggers that were withdrawn for another reason before say nothing about their pods."""
    growing.karpenter.pool()
    early = growing.pods(1, "early")
    growing.round()
    (request,) = growing.requests
    (uid,) = Trigger.objects.get().pods
    Trigger.objects.update(state="withdrawn", reason="nobody waits for it any more", ended_at=growing.now())
    ScalingRequest.objects.filter(pk=request.pk).update(state="cancelled", reason="cancelled by ann")
    assert EarlierFailures.read(growing.now()).why_not_now(uid, list(Pool.objects.all())) == "", early
    Trigger.objects.update(reason="cancelled by ann")
    assert EarlierFailures.read(growing.now()).why_not_now(uid, list(Pool.objects.all())) == "cancelled by ann"


def test_a_retried_move_starts_from_the_state_before(growing: Growing) -> None:
    """SCALE-4 A transaction that the database aborts is run again, and moves the trigger then."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    trigger = Trigger.objects.select_related("request").get()

    @atomic
    def aborted() -> None:
        assert trigger_moved(trigger, TriggerState.FAILED, now=growing.now(), reason="first")
        raise OperationalError("deadlock detected")

    with pytest.raises(OperationalError):
        aborted()
    assert trigger.state == "created"
    fail(trigger, "second", now=growing.now())
    assert (trigger.state, trigger.reason) == ("failed", "second")
