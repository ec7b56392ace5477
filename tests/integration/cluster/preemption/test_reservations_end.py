"""How a node ceases to be reserved: it advertises plenty again, and waiting pods are requeued, though a process died or
two wrote at once.
"""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import msgspec
import pytest

from allocations.scheduling import preemption
from allocations.scheduling.preemption import reservations
from allocations.scheduling.preemption.reservations import LASTS, LONGEST, SHUNNED
from allocations.watching import Watching
from kube import nodes as kube_nodes
from kube.keys import CAPACITY_CHANGED, PODS_RESOURCE
from kube.objects import Pod
from kube.watch import Changed
from nodes.advertise import PLENTY, advertise, advertise_pods
from nodes.models import Device, Node, PreemptedInVain, PreemptionReservation
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.fakes.apikinds import PODS
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World
from tests.integration.cluster.preemption.conftest import HIGH, add, ask, pods_of, preempt, reserved, uid
from tests.measured import growth


def test_what_came_free_meanwhile_evicts_nobody(world: World) -> None:
    """The node is no longer reserved, which wakes the pod."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    world.remove("b")
    world.reconcile()
    assert preempt(world, "urgent", {"n1": ["a"]}) == {}
    assert reserved() == {}
    assert pods_of(world, "n1") == PLENTY
    assert ask(world, "urgent", ["n1"]) == ["n1"]


def test_a_reservation_ends_by_time_alone(world: World) -> None:
    """Whoever reserved it has died: a reconciling, or the beat, restores plenty."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    PreemptionReservation.objects.update(until=database_now() - timedelta(seconds=1))
    cluster = world.backends.cluster
    assert cluster is not None
    advertise(cluster=cluster, machines=kube_nodes.list_all(cluster).items, now=database_now())
    assert pods_of(world, "n1") == PLENTY
    assert preemption.end_stale(now=database_now(), backends=world.backends) == 1
    assert reserved() == {}


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "bound past this process"])
def test_a_reservation_ends_with_its_pod(world: World, gone: bool) -> None:
    """The beat sees it within seconds."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    assert preemption.end_stale(now=database_now(), backends=world.backends) == 0
    if gone:
        world.remove("urgent")
    else:
        world.server.store.patch(PODS, NAMESPACE, "urgent", {"spec": {"nodeName": "n2"}}, content_type=MERGE)
    assert preemption.end_stale(now=database_now(), backends=world.backends) == 1
    assert pods_of(world, "n1") == PLENTY


def test_beginnings_and_ends_are_counted_once(world: World) -> None:
    """VIEW-5 the beat and a web process may end the same reservation."""
    add(world, "urgent", HIGH)
    begun, ended = "gpuplane_making_way_begun_total", "gpuplane_making_way_ended_total"
    with growth(begun, ended) as grown:
        ask(world, "urgent", ["n1", "n2"])
        found = reservations.live(database_now())
        for _ in range(2):
            reservations.end(found, database_now(), vain=True)
    assert grown == {(begun,): 1, (ended, "yes"): 1}


def test_a_reservation_lasts_while_its_victims_take_their_time(world: World) -> None:
    """A long grace period: prolonged as long as they hold devices, but not for ever."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    preempt(world, "urgent", {"n1": ["a"]})
    world.server.store.delete(PODS, NAMESPACE, "a", {})
    later = database_now() + LASTS - timedelta(seconds=5)
    assert preemption.end_stale(now=later, backends=world.backends) == 0
    assert PreemptionReservation.objects.get().until == later + LASTS
    assert preemption.end_stale(now=later + LONGEST, backends=world.backends) == 1


@pytest.mark.parametrize("tidied", [True, False], ids=["the beat was quicker", "before the beat"])
def test_in_vain(world: World, tidied: bool) -> None:
    """Nobody asked for victims where a node was reserved: the next time it is another node, so nobody starves there,
    whichever process looks.
    """
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    assert reserved() == {"urgent": ("n1", False)}
    PreemptionReservation.objects.update(until=database_now() - timedelta(seconds=1))
    if tidied:
        assert preemption.end_stale(now=database_now(), backends=world.backends) == 1
    assert ask(world, "urgent", ["n1", "n2"]) == []
    assert reserved() == {"urgent": ("n2", False)}
    assert set(PreemptedInVain.objects.values_list("pod_uid", "node__name")) == {(uid(world, "urgent"), "n1")}
    preemption.end_stale(now=database_now() + SHUNNED + timedelta(seconds=1), backends=world.backends)
    assert not PreemptedInVain.objects.filter(node__name="n1").exists()


def test_a_pod_refused_though_its_node_is_reserved(world: World) -> None:
    """kube-scheduler let it through, having counted fewer: looked at again, and woken."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    assert world.settled()
    before = world.server.nodes["n1"]["metadata"].get("annotations", {}).get(CAPACITY_CHANGED, "")
    assert ask(world, "urgent", ["n1"]) == []
    assert reserved() == {"urgent": ("n1", False)}
    assert world.settled()
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] > before


def test_the_last_word_on_a_node_is_right(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reservations of a node end at once: whoever wrote what was so a moment ago writes again."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    cluster = world.backends.cluster
    assert cluster is not None
    write = kube_nodes.advertise

    def written_late(*arguments: Any, **options: Any) -> Any:
        PreemptionReservation.objects.all().delete()
        return write(*arguments, **options)

    monkeypatch.setattr(kube_nodes, "advertise", written_late)
    advertise_pods(cluster=cluster, node="n1", now=database_now())
    assert pods_of(world, "n1") == PLENTY


def test_a_reservation_taken_back_elsewhere_refuses_nobody(world: World) -> None:
    """Another process, the watch say, saw the preemptor go: its GPU is for the next one at once."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    preempt(world, "urgent", {"n1": ["a"]})
    world.remove("a")
    world.reconcile()
    add(world, "next", HIGH)
    assert ask(world, "next", ["n1"]) == []
    reservations.end([one for one in reservations.live(database_now()) if one.pod_name == "urgent"], database_now())
    assert ask(world, "next", ["n1"]) == ["n1"]


@pytest.mark.parametrize(
    ("change", "phase", "ends"),
    [
        pytest.param("DELETED", "Pending", True, id="deleted"),
        pytest.param("MODIFIED", "Failed", True, id="failed"),
        pytest.param("MODIFIED", "Pending", False, id="waits on"),
    ],
)
def test_the_watch_ends_the_reservation_of_a_pod_that_is_gone(
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
    assert reserved() == ({} if ends else {"urgent": ("n1", False)})


def test_the_watch_withdraws_the_reservation_of_a_pod_that_is_gone(world: World) -> None:
    """And wakes whoever waits, even where the node's status stays as it is for a third pod."""
    urgent = add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    assert world.settled()
    before = world.server.nodes["n1"]["metadata"].get("annotations", {}).get(CAPACITY_CHANGED, "")
    preemption.pod_gone("another pod", database_now())
    assert reserved() == {"urgent": ("n1", False)}
    preemption.pod_gone(urgent, database_now())
    assert reserved() == {}
    assert pods_of(world, "n1") == PLENTY
    assert world.settled()
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] > before


def test_a_waiting_pod_is_requeued_though_the_node_is_reserved_for_a_third(world: World) -> None:
    """The beat ends the reservation of a pod that is gone; the node's status stays, so the pod is requeued apart."""
    for name in ("urgent", "pressing"):
        add(world, name, HIGH)
        ask(world, name, ["n1"])
    assert reserved() == {"urgent": ("n1", False), "pressing": ("n1", False)}
    assert world.settled()
    before = world.server.nodes["n1"]["metadata"].get("annotations", {}).get(CAPACITY_CHANGED, "")
    lowered = pods_of(world, "n1")
    world.remove("urgent")
    assert preemption.end_stale(now=database_now(), backends=world.backends) == 1
    assert pods_of(world, "n1") == lowered
    assert world.settled()
    assert world.server.nodes["n1"]["metadata"]["annotations"][CAPACITY_CHANGED] > before


def kept() -> dict[str, str]:
    """Device, as node and minor → the UID of the pod that it is kept for."""
    rows = Device.objects.exclude(kept_for="").values_list("node__name", "minor", "kept_for")
    return {f"{node}:{minor}": pod for node, minor, pod in rows}


def changed(reservation: PreemptionReservation, **columns: Any) -> PreemptionReservation:
    """A reservation that is not written yet, with other values in these columns."""
    made = copy.deepcopy(reservation)
    for name, value in columns.items():
        setattr(made, name, value)
    return made


def test_a_reservation_made_again_moves(world: World) -> None:
    """The old devices are free at once, the new ones are not."""
    urgent = add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    (before,) = reservations.live(database_now())
    assert kept() == {"n1:0": urgent}
    others = {device.pk for device in Node.objects.get(name="n1").devices.all()} - set(before.devices)
    reservations.write(changed(before, devices=sorted(others)))
    assert PreemptionReservation.objects.get().devices == sorted(others)
    assert kept() == {"n1:1": urgent}


def test_of_two_reservations_the_higher_priority_counts(world: World) -> None:
    """One for a more important pod takes a device over from another's; when it ends the weaker holds again."""
    urgent = add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    assert kept() == {"n1:0": urgent}
    (weaker,) = reservations.live(database_now())
    reservations.write(changed(weaker, pod_uid="more", priority=HIGH + 1))
    assert kept() == {"n1:0": "more"}
    reservations.write(changed(weaker, pod_uid="equal", made_at=weaker.made_at + timedelta(seconds=1)))
    assert kept() == {"n1:0": "more"}
    reservations.end([one for one in reservations.live(database_now()) if one.pod_uid == "more"], database_now())
    assert kept() == {"n1:0": urgent}


def test_the_beat_restores_what_devices_say(world: World) -> None:
    """A reservation of a higher priority lapsed unnoticed, or a row was written past the ledger."""
    urgent = add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    Device.objects.filter(node__name="n2", minor=1).update(kept_for="nobody", kept_until=database_now() + LASTS)
    Device.objects.filter(node__name="n1").update(kept_for="", kept_until=None)
    assert preemption.end_stale(now=database_now(), backends=world.backends) == 0
    assert kept() == {"n1:0": urgent}


def test_reservations_written_and_ended_at_once(world: World, ledger_db: TestDatabase) -> None:
    """Two processes, one device: whatever the order, it says what the rows say."""
    urgent = add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    (mine,) = reservations.live(database_now())
    for turn in range(10):
        other = changed(mine, pod_uid=f"other-{turn}", made_at=mine.made_at + timedelta(seconds=1))
        answers = ledger_db.race(
            [partial(reservations.write, other), partial(reservations.end, [mine], database_now())]
        )
        assert [one for one in answers if isinstance(one, Exception)] == []
        assert kept() == {"n1:0": f"other-{turn}"}
        answers = ledger_db.race(
            [partial(reservations.end, [other], database_now()), partial(reservations.write, mine)]
        )
        assert [one for one in answers if isinstance(one, Exception)] == []
        assert kept() == {"n1:0": urgent}


def test_what_was_reserved_meanwhile_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The beat asks the API server about a reservation that is over, and filter makes another meanwhile."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    assert reserved() == {"urgent": ("n1", False)}
    PreemptionReservation.objects.update(until=database_now() - timedelta(seconds=1))
    gone = reservations._gone

    def slow(*arguments: Any) -> bool:
        answer = gone(*arguments)
        ask(world, "urgent", ["n1", "n2"])
        return answer

    monkeypatch.setattr(reservations, "_gone", slow)
    preemption.end_stale(now=database_now(), backends=world.backends)
    assert reserved() == {"urgent": ("n2", False)}
    assert set(PreemptedInVain.objects.values_list("node__name", flat=True)) == {"n1"}
    assert pods_of(world, "n2") < PLENTY


def test_a_reservation_that_begins_while_the_node_is_advertised(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before it does not overwrite what it advertises."""
    cluster = world.backends.cluster
    assert cluster is not None
    kube_nodes.advertise(cluster, name="n1", amounts={PODS_RESOURCE: 1})  # left by an earlier one
    add(world, "urgent", HIGH)
    machines = kube_nodes.list_all(cluster).items
    write = kube_nodes.advertise
    asked: list[str] = []

    def late(cluster: Any, *, name: str, amounts: Any, **options: Any) -> Any:
        if not asked and name == "n1" and amounts.get(PODS_RESOURCE) == PLENTY:
            asked.append(name)
            ask(world, "urgent", ["n1", "n2"])
        return write(cluster, name=name, amounts=amounts, **options)

    monkeypatch.setattr(kube_nodes, "advertise", late)
    advertise(cluster=cluster, machines=machines, now=database_now())
    assert (asked, reserved()) == (["n1"], {"urgent": ("n1", False)})
    assert pods_of(world, "n1") < PLENTY
