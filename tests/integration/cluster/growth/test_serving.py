"""A node that is ready: its devices serve those it was made for, each pod once, or its trigger fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import msgspec
import pytest
from pytest_django import Settings

from allocations.reconcile import run as comparing
from allocations.waiting import forget_waiting
from allocations.watching import Watching
from audit.choices import EventKind
from audit.models import Event
from autoscaling.models import Pool, Trigger
from autoscaling.rounds import run
from autoscaling.rounds.round_input import Waiting, read_waiting
from autoscaling.shapes import gpus_of
from kube.client import Cluster
from kube.karpenter import DO_NOT_DISRUPT
from kube.keys import NODEPOOL_LABEL
from kube.objects import Pod
from kube.watch import Changed
from nodes.models import Device, Node
from tests.fakes.apikinds import NODES, Object
from tests.integration.cluster.growth.conftest import Growing


def test_ready_without_an_agent(growing: Growing, settings: Settings) -> None:
    """SCALE-4 The node is let go of after `GPUPLANE_INVENTORY_SECONDS`."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    name = growing.to_ready()
    growing.wait(settings.GPUPLANE_INVENTORY_SECONDS + 1)
    growing.round(2)
    assert growing.states[0] == "failed"
    assert "no agent told" in Trigger.objects.order_by("pk")[0].reason
    annotations = growing.server.store.get(NODES, "", name)["metadata"].get("annotations", {})
    assert DO_NOT_DISRUPT not in annotations


def test_other_gpus_than_the_shape_said(growing: Growing) -> None:
    """SCALE-4 The shape is corrected, and the plan made again by what the nodes have."""
    growing.karpenter.pool()
    growing.pods(16)
    growing.round()
    name = growing.to_ready()
    growing.inventory(name, gpus=4)
    growing.round(2)
    pool = Pool.objects.get()
    assert (pool.source, gpus_of(pool.shape or {})) == ("inventory", 4)
    assert growing.states == ["served", "created"], "eight of the sixteen have room on the first, eight on another"


def test_devices_are_kept_for_those_they_were_made_for(growing: Growing) -> None:
    """SCALE-4 For a minute nobody else of that priority gets them."""
    name = growing.serve_one()
    uid = growing.server.pods["research", "p-0"]["metadata"]["uid"]
    assert set(Device.objects.values_list("kept_for", flat=True)) == {uid}
    growing.round(2)
    assert growing.states == ["served"]
    growing.wait(61)
    growing.round()
    assert set(Device.objects.values_list("kept_for", flat=True)) == {""}
    annotations = growing.server.store.get(NODES, "", name)["metadata"].get("annotations", {})
    assert DO_NOT_DISRUPT not in annotations, "nobody came within a minute"


@pytest.mark.parametrize("stays", [True, False], ids=["it runs", "it has ended"])
def test_a_node_is_protected_until_its_first_pod_is_bound(growing: Growing, stays: bool) -> None:
    """SCALE-4 Karpenter may have it in the next round, however short the pod's life was, and nothing else is to do."""
    growing.karpenter.pool()
    (pod,) = growing.pods(1, claim="eight")
    growing.round()
    name = growing.to_ready()
    growing.inventory(name)
    growing.round(3)
    assert (growing.states, growing.triggers) == (["served"], [])
    annotations = growing.server.store.get(NODES, "", name)["metadata"]["annotations"]
    assert annotations[DO_NOT_DISRUPT] == "true", "nobody is bound yet"
    assert growing.world.filter(pod) == name
    assert growing.world.bind(pod, name) == ""
    forget_waiting({growing.server.pods["research", pod]["metadata"]["uid"]})
    if not stays:
        growing.world.remove(pod)
        growing.world.reconcile(later=60)
        assert growing.world.states(pod) == ["released"]
    growing.round()
    assert DO_NOT_DISRUPT not in growing.server.store.get(NODES, "", name)["metadata"].get("annotations", {})
    assert not growing.claims[0].protected


def test_shares_are_kept_for_all_that_share_a_device(growing: Growing) -> None:
    """SCALE-4 Nobody else of that priority gets a part of the devices; those that the node was made for get theirs in
    any order, and what is left over is free once they have it.
    """
    growing.karpenter.pool()
    names = growing.pods(15)
    growing.round()
    node = growing.to_ready()
    growing.inventory(node)
    growing.round()
    assert growing.states == ["served"]
    uids = {growing.server.pods["research", name]["metadata"]["uid"] for name in names}
    kept = [said.split(",") for said in Device.objects.values_list("kept_for", flat=True)]
    assert sorted(len(sharers) for sharers in kept) == [1, *[2] * 7]
    assert {uid for sharers in kept for uid in sharers} == uids
    (other,) = growing.pods(1, "other")
    assert growing.world.filter(other) is None
    for name in reversed(names):
        assert growing.world.filter(name) == node
        assert growing.world.bind(name, node) == ""
    forget_waiting(uids)  # as the watch of pods does
    growing.round()
    assert set(Device.objects.values_list("kept_for", flat=True)) == {""}
    assert growing.world.filter(other) == node


def test_pods_that_take_devices_while_the_plan_is_made(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCALE-2 They are held between the look at the pods and that at the devices: no node comes for them."""
    growing.world.node("there", gpus=1)
    growing.karpenter.pool()
    names = growing.pods(2)

    def then_held(cluster: Cluster, now: datetime) -> Waiting:
        found = read_waiting(cluster, now)
        assert [growing.world.filter(name) for name in names] == ["there", "there"]
        return found

    monkeypatch.setattr(run, "read_waiting", then_held)
    growing.round()
    assert growing.states == []


@pytest.mark.parametrize("seen", ["ready", "launching"])
def test_a_node_that_is_filled_while_the_plan_is_made(
    growing: Growing, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    """SCALE-2 SCALE-4 Its devices are counted once: the trigger that the other pods wait for is not withdrawn."""
    growing.karpenter.pool()
    names = growing.pods(32)
    growing.round(2)
    node = growing.karpenter.nominate(growing.triggers[0])
    growing.round()
    if seen == "ready":
        growing.karpenter.ready(node)
        growing.round()
    assert sorted(growing.states) == sorted([seen, "created"])

    def once_filled(cluster: Cluster, now: datetime) -> Waiting:
        if seen == "launching":
            growing.karpenter.ready(node)
        growing.inventory(node)
        assert {growing.world.filter(name) for name in names[:16]} == {node}
        return read_waiting(cluster, now)

    with monkeypatch.context() as patched:
        patched.setattr(run, "read_waiting", once_filled)
        growing.round()
    assert sorted(growing.states) == sorted([seen, "created"])
    growing.round(3)
    assert sorted(growing.states) == ["created", "served"]
    assert len(growing.requests) == 1


@pytest.mark.parametrize("made", [True, False], ids=["its node comes", "nothing comes"])
def test_a_trigger_that_nobody_waits_for(growing: Growing, made: bool) -> None:
    """SCALE-2 It is withdrawn, but not while its NodeClaim may be there: Karpenter tells of ten pods at once, and drops
    what it would say of the others.
    """
    growing.karpenter.pool()
    (pod,) = growing.pods(1, claim="eight")
    growing.round(2)
    (trigger,) = growing.triggers
    node = growing.karpenter.nominate(trigger, says=False) if made else ""
    forget_waiting({growing.server.pods["research", pod]["metadata"]["uid"]})
    growing.server.remove_pod(pod, namespace="research")
    growing.round(2)
    assert growing.states == ["created" if made else "withdrawn"]
    if made:
        growing.karpenter.ready(node)
        growing.karpenter.bind(trigger, node)
        growing.round(2)
        assert growing.states == ["ready"]
        assert growing.claims[0].trigger == trigger["metadata"]["name"]


def test_a_node_that_its_node_claim_does_not_name_yet(growing: Growing) -> None:
    """SCALE-2 Karpenter opens a node before its NodeClaim says which it is: it counts once, and the trigger of those
    that it has no room for is not withdrawn.
    """
    growing.karpenter.pool()
    growing.pods(2, claim="eight")
    growing.round(2)
    name = growing.karpenter.nominate(growing.triggers[0])
    growing.round()
    growing.server.add_node(name, labels={NODEPOOL_LABEL: "h100"})
    growing.watch()
    growing.inventory(name)
    growing.wait(5.1)  # a plan of the same rows is made again after five
    growing.round(2)
    assert sorted(growing.states) == ["created", "launching"]


def test_a_node_claim_that_is_not_the_triggers(growing: Growing) -> None:
    """SCALE-2 A trigger that nobody waits for, and that Karpenter makes no node for, is withdrawn after 20 s."""
    growing.karpenter.pool()
    (pod,) = growing.pods(1, claim="eight")
    growing.round(2)
    growing.karpenter.nominate(growing.triggers[0], says=False)
    Trigger.objects.update(said="no instance type has room")
    forget_waiting({growing.server.pods["research", pod]["metadata"]["uid"]})
    growing.server.remove_pod(pod, namespace="research")
    growing.wait(18)
    growing.round()
    assert growing.states == ["created"]
    growing.wait(5.1)  # a plan of the same rows is made again after five
    growing.round()
    assert growing.states == ["withdrawn"]


def test_pods_that_take_devices_before_the_node_serves(growing: Growing) -> None:
    """SCALE-4 For those who have theirs just that is kept, so everybody the node was made for finds room there."""
    growing.karpenter.pool()
    names = growing.pods(16)
    growing.round()
    node = growing.to_ready()
    growing.inventory(node)
    quick = names[:3]
    assert {growing.world.filter(name) for name in quick} == {node}
    growing.round()
    assert growing.states == ["served"]
    assert {growing.world.filter(name) for name in names} == {node}


def to_registered(growing: Growing) -> tuple[Object, str]:
    """A trigger pod, and the node that Karpenter made for it, on which no round has looked yet."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    trigger = growing.triggers[0]
    name = growing.karpenter.nominate(trigger)
    growing.karpenter.step(name, "Launched", "Registered")
    return trigger, name


def test_the_end_of_a_trigger_pod_opens_the_devices_of_its_node(growing: Growing) -> None:
    """SCALE-4 LEASE-2 The agent was quicker than Ready: its devices stayed closed for the pod that asked for GPUs, and
    are opened by the event of its end, not by the next comparison.
    """
    trigger, name = to_registered(growing)
    growing.karpenter.bind(trigger, name)
    growing.inventory(name)
    assert Device.objects.exclude(stranger="").count() == 8
    meta = trigger["metadata"]
    gone = msgspec.convert(growing.server.pods[meta["namespace"], meta["name"]], Pod)
    growing.server.remove_pod(meta["name"], namespace=meta["namespace"])
    with ThreadPoolExecutor(1) as threads:
        watching = Watching(threads)
        watching.handle(Changed("DELETED", gone.key, gone))
        watching.settle()
    assert Device.objects.exclude(stranger="").count() == 0


@pytest.mark.parametrize("ends", [True, False])
def test_a_trigger_pod_that_ends_while_ledger_and_cluster_are_compared(
    growing: Growing, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """SCALE-4 LEASE-2 A slow API server: it was listed, and is gone before its devices would be closed for it. One that
    still runs keeps them closed; neither is a pod that somebody bound past gpuplane.
    """
    trigger, name = to_registered(growing)
    growing.inventory(name)
    growing.karpenter.bind(trigger, name)
    Node.objects.update(registered_at=growing.now() - timedelta(minutes=2))  # no record of the kubelet came
    look = comparing._look

    def then_ended(cluster: Cluster) -> comparing._Seen:
        seen = look(cluster)
        if ends:
            growing.server.remove_pod(trigger["metadata"]["name"], namespace=trigger["metadata"]["namespace"])
        return seen

    monkeypatch.setattr(comparing, "_look", then_ended)
    comparing.reconcile(backends=growing.world.backends, now=growing.now())
    assert Device.objects.exclude(closed="").count() == (0 if ends else 8)
    assert not Event.objects.filter(kind=EventKind.DIFFERENCE).exists()
