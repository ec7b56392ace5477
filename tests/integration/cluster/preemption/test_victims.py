"""Which node is reserved for a pod that was refused everywhere, what it advertises meanwhile, and which victims the
verb names.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from access.actors import SYSTEM
from allocations.extender import views
from allocations.models import Allocation
from nodes.advertise import PLENTY
from nodes.models import PreemptionReservation
from nodes.services import devices_health
from storage.clock import database_now
from tests.fakes.apikinds import PODS
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.integration.cluster.preemption.conftest import HIGH, LOW, MIDDLE, add, ask, pods_of, preempt, reserved, uid


def test_the_node_of_the_least_important_is_reserved(world: World) -> None:
    """It advertises as many as there are; the verb names the victim; once the pod is bound there is plenty again."""
    add(world, "urgent", HIGH)
    assert ask(world, "urgent", ["n1", "n2"]) == []
    assert reserved() == {"urgent": ("n1", False)}
    assert (pods_of(world, "n1"), pods_of(world, "n2")) == (2, PLENTY)
    assert ask(world, "urgent", ["n2"]) == []
    assert reserved() == {"urgent": ("n1", False)}

    assert preempt(world, "urgent", {"n1": ["a"]}) == {"n1": ["a"]}
    assert reserved() == {"urgent": ("n1", True)}
    world.remove("a")
    world.reconcile()
    assert pods_of(world, "n1") == 2
    assert ask(world, "urgent", ["n1"]) == ["n1"]
    assert world.bind("urgent", "n1") == ""
    assert reserved() == {}
    assert pods_of(world, "n1") == PLENTY


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param("equal", {"priority": LOW}, id="equal priority"),
        pytest.param("polite", {"priority": HIGH, "preemptionPolicy": "Never"}, id="never preempts"),
        pytest.param("uncounted", {"priority": HIGH, "counted": False}, id="made before pods were counted"),
        pytest.param("wide", {"priority": HIGH, "count": 3}, id="more than any node has"),
    ],
)
def test_no_node_is_reserved(world: World, name: str, spec: dict[str, Any]) -> None:
    """Where it would not help, or must not be."""
    add(world, name, **spec)
    assert ask(world, name, ["n1", "n2"]) == []
    assert reserved() == {}
    assert (pods_of(world, "n1"), pods_of(world, "n2")) == (PLENTY, PLENTY)


def test_holders_over_rest_and_uncounted_pods_stay(world: World) -> None:
    """A holder without a priority in the ledger is never named."""
    Allocation.objects.filter(pod_name__in=("a", "b")).update(priority=None)
    add(world, "urgent", HIGH, count=2)
    assert ask(world, "urgent", ["n1", "n2"]) == []
    assert reserved() == {"urgent": ("n2", False)}
    assert preempt(world, "urgent", {"n2": ["c"]}) == {"n2": ["c", "d"]}


def test_only_nodes_that_kube_scheduler_lets_the_pod_on(world: World) -> None:
    """The least important one is on n1, where a taint, say, keeps the pod off."""
    add(world, "urgent", HIGH)
    assert ask(world, "urgent", ["n2"]) == []
    assert reserved() == {"urgent": ("n2", False)}


def test_who_goes_already_is_enough(world: World) -> None:
    """Somebody was told to go by another: nobody else is."""
    world.server.store.delete(PODS, NAMESPACE, "a", {})
    add(world, "urgent", HIGH)
    assert ask(world, "urgent", ["n1", "n2"]) == []
    assert reserved() == {}


def test_the_engines_choice_replaces_what_would_not_do(world: World) -> None:
    """Two are needed, one is offered; budgets are told as they came; the least important comes last."""
    add(world, "urgent", HIGH, count=2)
    assert ask(world, "urgent", ["n1", "n2"]) == []
    assert reserved() == {"urgent": ("n1", False)} or reserved() == {"urgent": ("n2", False)}
    (node, _) = reserved()["urgent"]
    names = {"n1": ["b", "a"], "n2": ["c", "d"]}[node]
    assert preempt(world, "urgent", {node: names[1:]}, violations=1) == {node: names}


def test_those_offered_go_where_they_will_do(world: World) -> None:
    """kube-scheduler offers the more important one for a disruption budget's sake."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    assert preempt(world, "urgent", {"n1": ["b"]}, violations=1) == {"n1": ["b"]}
    assert PreemptionReservation.objects.get().victims == [uid(world, "b")]


def test_offered_by_other_names_and_not_enough(world: World) -> None:
    """kube-scheduler counts one victim by `nvidia.com/gpu`, say, and the devices of another are needed too."""
    add(world, "urgent", HIGH, count=2)
    assert preempt(world, "urgent", {"n1": ["a"]}) == {"n1": ["a", "b"]}
    assert reserved() == {"urgent": ("n1", True)}
    assert pods_of(world, "n1") == 2


def test_a_less_important_pod_gets_nothing_of_it(world: World) -> None:
    """The reserved devices are kept while their holders leave one by one, and a node that is reserved names nobody for
    others.
    """
    add(world, "urgent", HIGH, count=2)
    ask(world, "urgent", ["n1"])
    assert preempt(world, "urgent", {"n1": ["a"]}) == {"n1": ["b", "a"]}
    add(world, "thief", MIDDLE)
    assert preempt(world, "thief", {"n1": ["a"]}) == {}
    world.remove("a")
    world.reconcile()
    assert ask(world, "thief", ["n1"]) == []
    world.remove("b")
    world.reconcile()
    assert ask(world, "thief", ["n1"]) == []
    assert ask(world, "urgent", ["n1"]) == ["n1"]


def test_a_second_one_gets_other_victims(world: World) -> None:
    """Two of equal priority on one node: the second is not given the first one's, and counts the first as nominated."""
    add(world, "first", HIGH)
    add(world, "second", HIGH)
    ask(world, "first", ["n1"])
    assert preempt(world, "first", {"n1": ["a"]}) == {"n1": ["a"]}
    assert preempt(world, "second", {"n1": ["b", "a"]}) == {"n1": ["b"]}
    assert reserved() == {"first": ("n1", True), "second": ("n1", True)}
    assert pods_of(world, "n1") == 3
    for name in "ab":
        world.remove(name)
    world.reconcile()
    for name in ("first", "second"):
        assert ask(world, name, ["n1"]) == ["n1"]
        assert world.bind(name, "n1") == ""
    assert pods_of(world, "n1") == PLENTY


def test_a_more_important_pod_goes_first(world: World) -> None:
    """Promises to less important ones bind nobody."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1"])
    add(world, "critical", HIGH + 1)
    assert preempt(world, "critical", {"n1": ["a"]}) == {"n1": ["a"]}
    assert preempt(world, "urgent", {"n1": ["a"]}) == {"n1": ["b"]}


def test_waits_for_the_better_node(world: World) -> None:
    """In the very cycle in which a node begins to be reserved kube-scheduler offers more important ones elsewhere: not
    those.
    """
    add(world, "urgent", HIGH)
    assert ask(world, "urgent", ["n1"]) == []
    assert preempt(world, "urgent", {"n2": ["c"]}) == {}
    assert reserved() == {"urgent": ("n1", False)}
    PreemptionReservation.objects.update(made_at=database_now() - timedelta(seconds=11))
    assert preempt(world, "urgent", {"n2": ["c"]}) == {"n2": ["c"]}
    assert reserved() == {}
    assert pods_of(world, "n1") == PLENTY


def test_devices_that_fell_sick_meanwhile(world: World) -> None:
    """The verb finds that they would not do: nobody goes, and the node advertises plenty again."""
    add(world, "urgent", HIGH, count=2)
    ask(world, "urgent", ["n1"])
    devices_health(node_name="n1", health={"GPU-n1-0": "Xid 79"}, actor=SYSTEM, now=database_now())
    assert preempt(world, "urgent", {"n1": ["a"]}) == {}
    assert reserved() == {}
    assert pods_of(world, "n1") == PLENTY


def test_an_api_server_that_is_away_evicts_nobody(world: World) -> None:
    """What cannot be seen makes no way; the pod is refused as before."""
    add(world, "urgent", HIGH)
    pod = world.server.pods[NAMESPACE, "urgent"]
    world.server.stop()
    body = msgspec.json.encode({"Pod": pod, "NodeNames": ["n1", "n2"]})
    answer = msgspec.json.decode(views.filter(body))
    world.server.start()
    assert answer["NodeNames"] == []
    assert reserved() == {}
