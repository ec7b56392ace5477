"""How a node ceases to make way: there is plenty again, told to whoever waits, though a process died or two wrote at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Literal

import msgspec
import pytest

from allocations import making_way
from allocations.making_way import promises
from allocations.making_way.promises import LASTS, LONGEST
from allocations.watching import Watching
from audit.clock import database_now
from kube import nodes as kube_nodes
from kube.keys import CAPACITY_CHANGED
from kube.objects import Pod
from kube.watch import Changed
from nodes.advertise import PLENTY, advertise, pods_tell
from nodes.models import MakingWay, Node
from tests.fakes.apikinds import PODS
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World
from tests.integration.cluster.making_way.conftest import HIGH, LOW, add, ask, pods_of, preempt, promised, uid
from tests.measured import growth


def test_what_came_free_meanwhile_evicts_nobody(world: World) -> None:
    """The node makes way no more, which wakes the pod."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    world.remove("b")
    world.reconcile()
    assert preempt(world, "urgent", {"n1": ["a"]}) == {}
    assert promised() == {}
    assert pods_of(world, "n1") == PLENTY
    assert ask(world, "urgent", ["n1"]) == ["n1"]


def test_it_ends_by_time_alone(world: World) -> None:
    """Whoever promised has died: a reconciling, or the beat, restores plenty."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    promises.forget()
    MakingWay.objects.update(until=database_now() - timedelta(seconds=1))
    cluster = world.outside.cluster
    assert cluster is not None
    advertise(cluster=cluster, machines=kube_nodes.list_all(cluster).items)
    assert pods_of(world, "n1") == PLENTY
    assert making_way.tidy(now=database_now(), world=world.outside) == 1
    assert promised() == {}


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "bound past this process"])
def test_it_ends_with_the_pod(world: World, gone: bool) -> None:
    """The beat sees it within seconds."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    assert making_way.tidy(now=database_now(), world=world.outside) == 0
    if gone:
        world.remove("urgent")
    else:
        world.server.store.patch(PODS, NAMESPACE, "urgent", {"spec": {"nodeName": "n2"}}, content_type=MERGE)
    assert making_way.tidy(now=database_now(), world=world.outside) == 1
    assert pods_of(world, "n1") == PLENTY


def test_beginnings_and_ends_are_counted_once(world: World) -> None:
    """VIEW-5 the beat and a web process may end the same promise."""
    add(world, "urgent", HIGH)
    begun, ended = "gpuplane_making_way_begun_total", "gpuplane_making_way_ended_total"
    with growth(begun, ended) as grown:
        ask(world, "urgent", ["n1", "n2"])
        found = promises.live(database_now())
        for _ in range(2):
            promises.end(found, database_now(), vain=True)
    assert grown == {(begun,): 1, (ended, "yes"): 1}


def test_it_lasts_while_its_victims_take_their_time(world: World) -> None:
    """A long grace period: prolonged as long as they hold devices, but not for ever."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    preempt(world, "urgent", {"n1": ["a"]})
    world.server.store.delete(PODS, NAMESPACE, "a", {})
    later = database_now() + LASTS - timedelta(seconds=5)
    assert making_way.tidy(now=later, world=world.outside) == 0
    assert MakingWay.objects.get().until == later + LASTS
    assert making_way.tidy(now=later + LONGEST, world=world.outside) == 1


def test_in_vain(world: World) -> None:
    """Nobody asked for victims where a node made way: the next time it is another node, so nobody starves there."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    assert promised() == {"urgent": ("n1", False)}
    over = database_now() + LASTS + timedelta(seconds=1)
    MakingWay.objects.all().delete()
    assert making_way.kept_from(pod_uid="another", priority=LOW, now=database_now()) != set()
    assert making_way.kept_from(pod_uid="another", priority=LOW, now=over) == set()
    assert ask(world, "urgent", ["n1", "n2"]) == []
    assert promised() == {"urgent": ("n2", False)}


def test_a_pod_refused_though_its_node_makes_way(world: World) -> None:
    """kube-scheduler let it through, having counted fewer: looked at again, and woken."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    assert world.settled()
    before = world.server.nodes["n1"]["metadata"].get("annotations", {}).get(CAPACITY_CHANGED, "")
    assert ask(world, "urgent", ["n1"]) == []
    assert promised() == {"urgent": ("n1", False)}
    assert world.settled()
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] > before


def test_the_last_word_on_a_node_is_right(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two promises of a node end at once: whoever wrote what was so a moment ago writes again."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    cluster = world.outside.cluster
    assert cluster is not None
    write = kube_nodes.advertise

    def written_late(*arguments: Any, **options: Any) -> Any:
        MakingWay.objects.all().delete()
        return write(*arguments, **options)

    monkeypatch.setattr(kube_nodes, "advertise", written_late)
    pods_tell(cluster=cluster, node="n1", now=database_now())
    assert pods_of(world, "n1") == PLENTY


def test_a_promise_taken_back_elsewhere_refuses_nobody(world: World) -> None:
    """Another process, the watch say, saw the preemptor go: its GPU is for the next one at once, not when this process forgets."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    preempt(world, "urgent", {"n1": ["a"]})
    world.remove("a")
    world.reconcile()
    add(world, "next", HIGH)
    assert ask(world, "next", ["n1"]) == []
    MakingWay.objects.all().delete()
    assert ask(world, "next", ["n1"]) == ["n1"]


def test_a_promise_made_during_the_look_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's: this one read the database a moment before it was written."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    add(world, "pressing", HIGH)
    look = promises.live

    def looked_early(now: Any) -> Any:
        found = look(now)
        monkeypatch.setattr(promises, "live", look)
        ask(world, "pressing", ["n2"])
        return found

    monkeypatch.setattr(promises, "live", looked_early)
    assert not making_way.withdrawn(database_now())
    assert promised() == {"urgent": ("n1", False), "pressing": ("n2", False)}
    assert all(making_way.awaited(uid(world, name)) for name in ("urgent", "pressing"))


@pytest.mark.parametrize(
    ("change", "phase", "ends"),
    [
        pytest.param("DELETED", "Pending", True, id="deleted"),
        pytest.param("MODIFIED", "Failed", True, id="failed"),
        pytest.param("MODIFIED", "Pending", False, id="waits on"),
    ],
)
def test_the_watch_ends_what_a_pod_that_is_gone_was_promised(
    world: World, change: Literal["MODIFIED", "DELETED"], phase: str, ends: bool
) -> None:
    """No later than its event, and of no other pod."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    found = world.server.pods[NAMESPACE, "urgent"]
    pod = msgspec.convert({**found, "status": {**found.get("status", {}), "phase": phase}}, Pod)
    with ThreadPoolExecutor(1) as threads:
        watching = Watching(threads)
        watching.handle(Changed(change, (NAMESPACE, "urgent"), pod))
        watching.settle()
    assert promised() == ({} if ends else {"urgent": ("n1", False)})


def test_the_watch_takes_back_what_was_promised_to_a_pod_that_is_gone(world: World) -> None:
    """And wakes whoever waits, even where the node's status stays as it is for a third pod."""
    urgent = add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    assert world.settled()
    before = world.server.nodes["n1"]["metadata"].get("annotations", {}).get(CAPACITY_CHANGED, "")
    making_way.gone("another pod", database_now())
    assert promised() == {"urgent": ("n1", False)}
    making_way.gone(urgent, database_now())
    assert promised() == {}
    assert pods_of(world, "n1") == PLENTY
    assert world.settled()
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] > before


def test_whoever_waits_is_woken_though_the_node_makes_way_for_a_third(world: World) -> None:
    """The beat ends the promise of a pod that is gone; the node's status stays as it is, so it is told otherwise."""
    for name in ("urgent", "pressing"):
        add(world, name, HIGH)
        ask(world, name, ["n1"])
    assert promised() == {"urgent": ("n1", False), "pressing": ("n1", False)}
    assert world.settled()
    before = world.server.nodes["n1"]["metadata"].get("annotations", {}).get(CAPACITY_CHANGED, "")
    lowered = pods_of(world, "n1")
    world.remove("urgent")
    assert making_way.tidy(now=database_now(), world=world.outside) == 1
    assert pods_of(world, "n1") == lowered
    assert world.settled()
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] > before


def test_a_promise_made_anew_elsewhere_is_gone_by(world: World) -> None:
    """Another process promised the same pod other devices of the node: the old ones are free, the new ones are not."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    (before,) = promises.live(database_now())
    others = {device.pk for device in Node.objects.get(name="n1").devices.all()} - before.devices
    MakingWay.objects.update(devices=sorted(others))
    assert making_way.withdrawn(database_now())
    assert making_way.kept_from(pod_uid="another", priority=LOW, now=database_now()) == others
    assert not making_way.withdrawn(database_now())
