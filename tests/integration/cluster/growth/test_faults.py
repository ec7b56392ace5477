"""What goes wrong while a node is to come: each ends in another try, or in a reason."""

from __future__ import annotations

import itertools

import pytest
from django.db import IntegrityError
from django.db.transaction import atomic

from allocations.errors import MovedOn
from allocations.models import PodRefusal
from allocations.waiting import forget_waiting
from autoscaling import pod_events
from autoscaling.choices import EDGES, TRIGGER_EDGES, RequestState, TriggerState
from autoscaling.models import NodeClaim, Pool, ScalingRequest, Trigger
from autoscaling.pod_events import write_pod_events
from autoscaling.rounds.run import Rounds
from autoscaling.services import request_cancel
from autoscaling.transitions import settle, trigger_moved
from kube.karpenter import DO_NOT_DISRUPT
from storage.clock import database_now
from tests.fakes.apikinds import NODES
from tests.integration.cluster.growth.conftest import Growing, reasons


def test_a_thousand_pods_are_one_request(growing: Growing) -> None:
    """SCALE-1 SCALE-5 As many triggers as nodes; the second round adds none."""
    growing.karpenter.pool()
    growing.pods(100)
    growing.round(2)
    assert len(growing.requests) == 1
    assert len(growing.triggers) == 7
    growing.pods(28, "q")
    growing.round(2)
    (request,) = growing.requests
    assert (request.wanted, len(growing.triggers)) == (8, 8)


def test_two_workers_make_one_trigger(growing: Growing) -> None:
    """SCALE-1 The one that began first is stopped by the fence."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.watch()
    cluster = growing.world.backends.cluster
    assert cluster is not None
    first, second = Rounds(cluster), Rounds(cluster)
    second.run()
    with pytest.raises(MovedOn):
        first.run()
    assert len(growing.triggers) == 1


def test_a_restart_between_any_two_rounds(growing: Growing) -> None:
    """SCALE-4 All of it is in the database."""
    growing.karpenter.pool()
    growing.pods(16)
    for _ in range(2):
        growing.restart()
        growing.round()
    (pod,) = growing.triggers
    name = growing.karpenter.nominate(pod)
    for steps in (("Launched",), ("Launched", "Registered"), ("Launched", "Registered", "Ready")):
        growing.restart()
        growing.karpenter.step(name, *steps)
        growing.round()
    growing.restart()
    growing.inventory(name)
    growing.round()
    growing.restart()
    growing.round()
    assert (growing.states, growing.triggers) == (["served"], [])


def test_needs_that_go_away(growing: Growing) -> None:
    """SCALE-4 Triggers not taken up are deleted; a node that launches comes, and is not protected."""
    growing.karpenter.pool()
    names = growing.pods(32)
    growing.round()
    assert len(growing.triggers) == 2
    name = growing.karpenter.nominate(growing.triggers[0])
    growing.round()
    for pod in names:
        growing.world.remove(pod)

    forget_waiting(list(PodRefusal.objects.values_list("pod_uid", flat=True)))
    growing.round(2)
    assert sorted(growing.states) == ["launching", "withdrawn"]
    assert len(growing.triggers) == 1
    growing.karpenter.ready(name)
    growing.round()
    assert growing.triggers == []
    assert DO_NOT_DISRUPT not in growing.server.store.get(NODES, "", name)["metadata"].get("annotations", {})


def test_a_trigger_pod_that_is_lost(growing: Growing) -> None:
    """SCALE-4 Deleted by hand it is made again, three times; then it has failed."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    for _ in range(3):
        (pod,) = growing.triggers
        growing.server.remove_pod(pod["metadata"]["name"], namespace=pod["metadata"]["namespace"])
        growing.round(2)
        assert len(growing.triggers) == 1
    (pod,) = growing.triggers
    growing.server.remove_pod(pod["metadata"]["name"], namespace=pod["metadata"]["namespace"])
    growing.round()
    assert growing.states[0] == "failed"


def test_a_lost_trigger_pod_whose_node_claim_is_not_seen(growing: Growing) -> None:
    """SCALE-4 Karpenter's event names a NodeClaim that has no row yet, and the pod is deleted: it is made again, and
    goes where nobody waits any more.
    """
    growing.karpenter.pool()
    (name,) = growing.pods(1)
    growing.round()
    (pod,) = growing.triggers
    growing.karpenter.nominate(pod)
    growing.unwatched()
    growing.server.remove_pod(pod["metadata"]["name"], namespace=pod["metadata"]["namespace"])
    growing.unwatched()
    growing.server.store.delete(growing.karpenter.claims, "", "h100-1", {})
    assert (growing.states, len(growing.triggers)) == (["created"], 1)
    growing.world.remove(name)
    forget_waiting(list(PodRefusal.objects.values_list("pod_uid", flat=True)))
    growing.round(2)
    assert (growing.states, growing.triggers) == (["withdrawn"], [])


def test_a_trigger_pod_that_lands_on_an_old_node(growing: Growing) -> None:
    """SCALE-4 It is deleted at once and made again; every GPU node was labelled before."""
    growing.world.node("old", gpus=1)
    growing.karpenter.pool()
    growing.pods(4, claim="eight")
    growing.round()
    assert growing.karpenter.is_in_use("old")
    pod = growing.triggers[0]
    growing.karpenter.bind(pod, "old")
    growing.round(2)
    again = next(one for one in growing.triggers if one["metadata"]["name"] == pod["metadata"]["name"])
    assert again["metadata"]["uid"] != pod["metadata"]["uid"]
    assert not again["spec"].get("nodeName")


def test_an_unknown_trigger_pod_is_deleted(growing: Growing) -> None:
    """SCALE-4 A pod without a row goes."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    ScalingRequest.objects.all().delete()
    for pod in list(growing.server.pods):
        if pod[1].startswith("p-"):
            growing.world.remove(pod[1])
    growing.restart()
    growing.round()
    assert growing.triggers == []


def test_another_pool_is_tried(growing: Growing) -> None:
    """SCALE-4 A NodeClaim that goes before its node is ready."""
    growing.karpenter.pool("first", weight=10)
    growing.karpenter.pool("second")
    growing.pods(2)
    growing.round()
    name = growing.karpenter.nominate(growing.triggers[0])
    growing.round()
    growing.server.store.delete(growing.karpenter.claims, "", name, {})
    growing.round()
    assert growing.states == ["failed"]
    growing.wait(6)
    growing.round()
    assert [one.pool for one in growing.requests] == ["first", "second"]
    assert [one.state for one in growing.requests] == ["failed", "triggered"]


@pytest.mark.parametrize(
    ("conditions", "minutes", "what"),
    [((), 6, "launched within 5 min"), (("Launched",), 16, "registered within 900 s")],
)
def test_a_node_claim_that_gets_nowhere(growing: Growing, conditions: tuple[str, ...], minutes: int, what: str) -> None:
    """SCALE-3 SCALE-4 Five minutes to launch, fifteen to register."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    name = growing.karpenter.nominate(growing.triggers[0])
    if conditions:
        growing.karpenter.step(name, *conditions)
    growing.round()
    growing.wait(minutes * 60)
    growing.round()
    assert growing.states[0] == "failed"
    assert f"was not {what}" in Trigger.objects.order_by("pk")[0].reason


def test_a_model_that_no_pool_has(growing: Growing) -> None:
    """SCALE-1 Nothing is made, and the reason says so."""
    growing.world.claim("v100", count=1, model=["V100"])
    growing.karpenter.pool()
    growing.pods(2, claim="v100")
    growing.round()
    assert growing.triggers == []
    assert reasons() == {"no pool can hold it: pool h100: no gpu of the models asked"}


def test_a_pool_at_its_limit(growing: Growing) -> None:
    """SCALE-4 No trigger, a reason."""
    growing.karpenter.pool(limits={"nvidia.com/gpu": "8"})
    growing.pods(2, claim="eight")
    growing.round(2)
    assert len(growing.triggers) == 1
    assert reasons() == {"pool h100 may make no more nodes"}


def test_a_pool_of_unknown_shape(growing: Growing) -> None:
    """SCALE-1 It is shown and not used, until somebody says what its nodes have."""
    growing.karpenter.pool(gpus=0)
    growing.pods(2)
    growing.round()
    assert (Pool.objects.get().source, growing.triggers) == ("", [])
    Pool.objects.update(
        given={"devices": [{"minor": 0, "type": "gpu", "model": "H100", "memory": 80 << 30}], "links": []}
    )
    growing.wait(6)
    growing.round()
    assert len(growing.triggers) == 1


def test_a_pool_that_is_deleted(growing: Growing) -> None:
    """SCALE-4 Its triggers that were not taken up go; a node that launches is followed on."""
    growing.karpenter.pool()
    growing.pods(32)
    growing.round()
    growing.karpenter.nominate(growing.triggers[0])
    growing.round()
    growing.server.store.delete(growing.karpenter.pools, "", "h100", {})
    growing.wait(6)
    growing.round(2)
    assert sorted(growing.states) == ["launching", "withdrawn"]


def test_an_operator_cancels(growing: Growing) -> None:
    """SCALE-1 Its triggers go; the pods wait, and say so."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    (request,) = growing.requests
    request_cancel(request=request, actor="ann", now=growing.now())
    growing.round(2)
    assert growing.triggers == []
    assert [one.state for one in growing.requests] == ["cancelled"]
    assert reasons() == {"cancelled by ann"}


def test_unneeded_triggers_that_grow_are_made_anew(growing: Growing) -> None:
    """SCALE-2 A trigger asks for as many GPUs as the plan puts on its node."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    growing.pods(6, "q")
    growing.round(2)
    (pod,) = growing.triggers
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"


def _request(state: str) -> ScalingRequest:
    now = database_now()
    return ScalingRequest.objects.create(pool="a", shape=state, state=state, created_at=now, changed_at=now)


def test_every_edge_of_a_trigger(growing: Growing) -> None:
    """SCALE-4 Each move that the table has, and no other."""
    del growing
    now = database_now()
    for before, after in itertools.product(TriggerState, TriggerState):
        request = _request("triggered")
        trigger = Trigger.objects.create(request=request, ordinal=0, name="t", gpus=1, state=before)
        allowed = after in TRIGGER_EDGES[before]
        with atomic():
            assert trigger_moved(trigger, after, now=now, reason="why") is allowed
        trigger.refresh_from_db()
        assert trigger.state == (after if allowed else before)
        request.delete()


def test_every_edge_of_a_request(growing: Growing) -> None:
    """SCALE-4 Its state follows its trigger's; an ended one stays as it ended."""
    del growing
    reached: dict[str, set[str]] = {state: set() for state in RequestState}
    for before, state in itertools.product(RequestState, TriggerState):
        request = _request(before)
        Trigger.objects.create(request=request, ordinal=0, name="t", gpus=1, state=state, reason="why")
        with atomic():
            settle(request.pk, now=database_now())
        request.refresh_from_db()
        reached[before].add(request.state)
        request.delete()
    assert {before: found - {before} for before, found in reached.items()} == {
        state: set(EDGES[state]) for state in RequestState
    }


def test_one_active_request_of_a_kind(growing: Growing) -> None:
    """SCALE-1 By a constraint of the database."""
    del growing
    _request("wanted")
    first = ScalingRequest.objects.get()
    now = database_now()
    with pytest.raises(IntegrityError), atomic():
        ScalingRequest.objects.create(pool="a", shape=first.shape, state="ready", created_at=now, changed_at=now)
    ScalingRequest.objects.create(pool="a", shape=first.shape, state="failed", created_at=now, changed_at=now)


def test_node_claims_are_tied_by_pool_and_time(growing: Growing) -> None:
    """SCALE-3 Without a word of Karpenter's."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    growing.server.store.create(
        growing.karpenter.claims,
        "",
        {"metadata": {"name": "silent", "labels": {"karpenter.sh/nodepool": "h100"}}},
    )
    growing.round()
    assert NodeClaim.objects.get().trigger == ""
    growing.wait(11)
    growing.round()
    assert NodeClaim.objects.get().trigger == Trigger.objects.get().name


@pytest.mark.parametrize("bound", [True, False])
def test_a_trigger_pod_on_the_node_of_another(growing: Growing, bound: bool) -> None:
    """SCALE-3 SCALE-4 kube-scheduler binds it to a node that Karpenter made for another one, whose event is seen later.
    The other one is tied to the NodeClaim that is left, both nodes serve, and no trigger pod stays.
    """
    growing.karpenter.pool()
    growing.pods(32)
    growing.round(2)
    pods = {one["metadata"]["name"]: one for one in growing.triggers}
    early, late = (pods[trigger.name] for trigger in Trigger.objects.order_by("pk"))
    claims = [growing.karpenter.nominate(late), growing.karpenter.nominate(early, says=False)]
    growing.karpenter.step(claims[0], "Launched", "Registered")
    growing.karpenter.bind(early, claims[0])
    growing.round()
    if bound:
        growing.karpenter.step(claims[1], "Launched", "Registered")
        growing.karpenter.bind(late, claims[1])
    else:
        growing.wait(11)  # by pool and time
    growing.round()
    assert [trigger.node_claim for trigger in Trigger.objects.order_by("pk")] == claims
    for claim in claims:
        growing.karpenter.ready(claim)
    growing.round(2)
    assert growing.triggers == []
    for claim in claims:
        growing.inventory(claim)
    growing.round()
    assert growing.states == ["served", "served"]


def test_pods_are_told(growing: Growing) -> None:
    """SCALE-4 Of the pool and the NodeClaim that they wait for, once; the rounds wait for no event."""
    growing.karpenter.pool()
    growing.pods(1)
    growing.round()
    growing.karpenter.nominate(growing.triggers[0])
    growing.round(2)
    assert told(growing) == []
    assert [write_pod_events(growing.cluster, now=growing.now()) for _ in range(2)] == [1, 0]
    assert told(growing) == ["waits for a new node of pool h100, NodeClaim h100-1: it is being launched"]


def test_events_on_many_pods(growing: Growing) -> None:
    """SCALE-4 a run writes so many at most, and begins none after its time; the others are written by the next."""
    growing.karpenter.pool()
    growing.pods(pod_events.MOST + 20)
    growing.round()
    cluster, now = growing.cluster, growing.now()
    times = itertools.chain([0.0, 1.0, 2.0, pod_events.RUN_SECONDS], itertools.repeat(pod_events.RUN_SECONDS + 0.1))
    assert write_pod_events(cluster, now=now, clock=lambda: next(times)) == 3
    assert [write_pod_events(cluster, now=now) for _ in range(3)] == [pod_events.MOST, 17, 0]
    assert len(told(growing)) == pod_events.MOST + 20


def told(growing: Growing) -> list[str]:
    """What pods were told of nodes."""
    return [one["message"] for one in growing.server.events.values() if one["reason"] == pod_events.REASON]
