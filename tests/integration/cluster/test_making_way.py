"""A node makes way for a pod that was refused everywhere: what it advertises, who is named, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from access.actors import SYSTEM
from allocations import fleet, making_way
from allocations.extender import views
from allocations.extender.filter import filter_pod
from allocations.extender.wire import Asked
from allocations.ledger.own import request_of
from allocations.making_way import begin, promises
from allocations.making_way.beginning import PACE, Pace
from allocations.making_way.promises import LASTS, LONGEST
from allocations.models import Allocation
from audit.clock import database_now
from kube import nodes as kube_nodes
from kube.keys import CAPACITY_CHANGED, PODS_RESOURCE
from kube.objects import Pod
from nodes.advertise import PLENTY, advertise, pods_tell
from nodes.models import MakingWay
from nodes.services import devices_health
from tests.fakes.apikinds import PODS
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World

LOW, MIDDLE, HIGH = 10, 100, 1000


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """N1 and n2 with two GPUs each, held whole: a and b (low, middle) on n1, c and d (middle) on n2; all advertise plenty."""
    monkeypatch.setattr("nodes.soon.current_app.send_task", lambda *_, **__: None)  # there is no worker
    promises.forget()
    monkeypatch.setattr(PACE, "_left", 1000.0)
    monkeypatch.setattr("allocations.making_way.beginning.AT_ONCE_SECONDS", 1000.0)
    for count in (1, 2, 3):
        world.claim(f"claim-{count}", count=count)
    for node in ("n1", "n2"):
        world.node(node, gpus=2)
    for name, priority, node in (("a", LOW, "n1"), ("b", MIDDLE, "n1"), ("c", MIDDLE, "n2"), ("d", MIDDLE, "n2")):
        add(world, name, priority)
        assert ask(world, name, [node]) == [node]
        assert world.bind(name, node) == ""
    world.reconcile()
    assert (pods_of(world, "n1"), pods_of(world, "n2")) == (PLENTY, PLENTY)
    yield world
    promises.forget()


def add(world: World, name: str, priority: int, *, count: int = 1, counted: bool = True, **spec: Any) -> str:
    """A pending pod as the mutating webhook leaves it; its UID."""
    amounts = {PODS_RESOURCE: "1"} if counted else {}
    containers = [{"name": "main", "image": "x", "resources": {"limits": amounts, "requests": amounts}}]
    return world.pod(name, claim=f"claim-{count}", spec={"priority": priority, "containers": containers, **spec})


def ask(world: World, name: str, nodes: list[str]) -> list[str]:
    """Nodes that filter passes of those that kube-scheduler's own filters let through."""
    body = {"Pod": world.server.pods[NAMESPACE, name], "NodeNames": nodes}
    passed: list[str] = msgspec.json.decode(filter_pod(Asked(msgspec.json.encode(body))))["NodeNames"]
    return passed


def uid(world: World, name: str) -> str:
    return str(world.server.pods[NAMESPACE, name]["metadata"]["uid"])


def preempt(world: World, name: str, offered: dict[str, list[str]], *, violations: int = 0) -> dict[str, list[str]]:
    """Node → names of those who are to go, as the verb answers."""
    body = {
        "Pod": world.server.pods[NAMESPACE, name],
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid(world, one)} for one in names], "NumPDBViolations": violations}
            for node, names in offered.items()
        },
    }
    told = msgspec.json.decode(views.preempt(msgspec.json.encode(body)))["NodeNameToMetaVictims"]
    assert all(one["NumPDBViolations"] == violations for one in told.values())
    by_uid = {one["metadata"]["uid"]: one["metadata"]["name"] for one in world.server.pods.values()}
    return {node: [by_uid[pod["UID"]] for pod in one["Pods"]] for node, one in told.items()}


def pods_of(world: World, node: str) -> int:
    status = world.server.nodes[node]["status"]
    assert status["capacity"][PODS_RESOURCE] == status["allocatable"][PODS_RESOURCE]
    return int(status["allocatable"][PODS_RESOURCE])


def promised() -> dict[str, tuple[str, bool]]:
    """Pod → (node, whether kube-scheduler knows the victims)."""
    return {row.pod_name: (row.node.name, row.told) for row in MakingWay.objects.select_related("node")}


def test_the_node_of_the_least_important_makes_way(world: World) -> None:
    """It advertises as many as there are; the verb names the victim; once the pod is bound there is plenty again."""
    add(world, "urgent", HIGH)
    assert ask(world, "urgent", ["n1", "n2"]) == []
    assert promised() == {"urgent": ("n1", False)}
    assert (pods_of(world, "n1"), pods_of(world, "n2")) == (2, PLENTY)
    assert ask(world, "urgent", ["n2"]) == []
    assert promised() == {"urgent": ("n1", False)}

    assert preempt(world, "urgent", {"n1": ["a"]}) == {"n1": ["a"]}
    assert promised() == {"urgent": ("n1", True)}
    world.remove("a")
    world.reconcile()
    assert pods_of(world, "n1") == 2
    assert ask(world, "urgent", ["n1"]) == ["n1"]
    assert world.bind("urgent", "n1") == ""
    assert promised() == {}
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
def test_nobody_makes_way(world: World, name: str, spec: dict[str, Any]) -> None:
    """Where it would not help, or must not be."""
    add(world, name, **spec)
    assert ask(world, name, ["n1", "n2"]) == []
    assert promised() == {}
    assert (pods_of(world, "n1"), pods_of(world, "n2")) == (PLENTY, PLENTY)


def test_holders_over_rest_and_uncounted_pods_stay(world: World) -> None:
    """A holder without a priority in the ledger is never named."""
    Allocation.objects.filter(pod_name__in=("a", "b")).update(priority=None)
    add(world, "urgent", HIGH, count=2)
    assert ask(world, "urgent", ["n1", "n2"]) == []
    assert promised() == {"urgent": ("n2", False)}
    assert preempt(world, "urgent", {"n2": ["c"]}) == {"n2": ["c", "d"]}


def test_only_nodes_that_kube_scheduler_lets_the_pod_on(world: World) -> None:
    """The least important one is on n1, where a taint, say, keeps the pod off."""
    add(world, "urgent", HIGH)
    assert ask(world, "urgent", ["n2"]) == []
    assert promised() == {"urgent": ("n2", False)}


def test_who_goes_already_is_enough(world: World) -> None:
    """Somebody was told to go by another: nobody else is."""
    world.server.store.delete(PODS, NAMESPACE, "a", {})
    add(world, "urgent", HIGH)
    assert ask(world, "urgent", ["n1", "n2"]) == []
    assert promised() == {}


def test_the_engines_choice_replaces_what_would_not_do(world: World) -> None:
    """Two are needed, one is offered; budgets are told as they came; the least important comes last."""
    add(world, "urgent", HIGH, count=2)
    assert ask(world, "urgent", ["n1", "n2"]) == []
    assert promised() == {"urgent": ("n1", False)} or promised() == {"urgent": ("n2", False)}
    (node, _) = promised()["urgent"]
    names = {"n1": ["b", "a"], "n2": ["c", "d"]}[node]
    assert preempt(world, "urgent", {node: names[1:]}, violations=1) == {node: names}


def test_those_offered_go_where_they_will_do(world: World) -> None:
    """kube-scheduler offers the more important one for a disruption budget's sake."""
    add(world, "urgent", HIGH)
    ask(world, "urgent", ["n1", "n2"])
    assert preempt(world, "urgent", {"n1": ["b"]}, violations=1) == {"n1": ["b"]}
    assert MakingWay.objects.get().victims == [uid(world, "b")]


def test_offered_by_other_names_and_not_enough(world: World) -> None:
    """kube-scheduler counts one victim by `nvidia.com/gpu`, say, and the devices of another are needed too."""
    add(world, "urgent", HIGH, count=2)
    assert preempt(world, "urgent", {"n1": ["a"]}) == {"n1": ["a", "b"]}
    assert promised() == {"urgent": ("n1", True)}
    assert pods_of(world, "n1") == 2


def test_a_less_important_pod_gets_nothing_of_it(world: World) -> None:
    """The promised devices are kept while their holders leave one by one, and a node that makes way names nobody for others."""
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
    assert promised() == {"first": ("n1", True), "second": ("n1", True)}
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
    """In the very cycle in which a node begins to make way kube-scheduler offers more important ones elsewhere: not those."""
    add(world, "urgent", HIGH)
    assert ask(world, "urgent", ["n1"]) == []
    assert preempt(world, "urgent", {"n2": ["c"]}) == {}
    assert promised() == {"urgent": ("n1", False)}
    MakingWay.objects.update(made_at=database_now() - timedelta(seconds=11))
    assert preempt(world, "urgent", {"n2": ["c"]}) == {"n2": ["c"]}
    assert promised() == {}
    assert pods_of(world, "n1") == PLENTY


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


def test_devices_that_fell_sick_meanwhile(world: World) -> None:
    """The verb finds that they would not do: nobody goes, and the node advertises plenty again."""
    add(world, "urgent", HIGH, count=2)
    ask(world, "urgent", ["n1"])
    devices_health(node_name="n1", health={"GPU-n1-0": "Xid 79"}, actor=SYSTEM, now=database_now())
    assert preempt(world, "urgent", {"n1": ["a"]}) == {}
    assert promised() == {}
    assert pods_of(world, "n1") == PLENTY


def test_an_api_server_that_is_away_evicts_nobody(world: World) -> None:
    """What cannot be seen makes no way; the pod is refused as before."""
    add(world, "urgent", HIGH)
    pod = world.server.pods[NAMESPACE, "urgent"]
    world.server.stop()
    body = msgspec.json.encode({"Pod": pod, "NodeNames": ["n1", "n2"]})
    answer = msgspec.json.decode(filter_pod(Asked(body)))
    world.server.start()
    assert answer["NodeNames"] == []
    assert promised() == {}


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


def test_where_nobody_is_less_important_it_costs_one_query(world: World, django_assert_num_queries: Any) -> None:
    """One a state of the fleet, however many pods are refused in it."""
    add(world, "equal", LOW)
    pod = msgspec.convert(world.server.pods[NAMESPACE, "equal"], Pod)
    request = request_of(Allocation.objects.get(pod_name="a").request)
    picture, now = fleet.current()
    for expected in (1, 0):
        with django_assert_num_queries(expected):
            begin(pod=pod, priority=LOW, request=request, picture=picture, nodes=None, own=None, now=now)


def test_looking_takes_its_share_of_time_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second at once, a fifth of the time after it; one for whom nobody can go is not looked at again in the same state."""
    monkeypatch.setattr("allocations.making_way.beginning.AT_ONCE_SECONDS", 1.0)
    seconds = [0.0]
    pace = Pace(clock=lambda: seconds[0])
    for wanted, took in ((True, 0.6), (True, 1.2), (False, 1.0), (False, 2.0), (True, 0.1)):
        began = pace.begin("p")
        assert (began is not None) is wanted
        assert pace.is_put_off("p") is not wanted
        seconds[0] += took
        if began is not None:
            pace.end(began)

    request = request_of(Allocation.objects.get(pod_name="a").request)
    assert not pace.is_fruitless("p", request, ("one",))
    pace.note_fruitless("p", request, ("one",))
    assert pace.is_fruitless("p", request, ("one",))
    assert not pace.is_fruitless("p", request, ("another",))
    pace.note_fruitless("q", request, ("another",))
    assert not pace.is_fruitless("p", request, ("one",))


def test_who_was_put_off_is_given_no_node_of_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """kube-scheduler offers the node that makes way for another; where the pod's own best node is, is not known yet."""
    add(world, "first", HIGH)
    add(world, "second", HIGH)
    ask(world, "first", ["n1", "n2"])
    monkeypatch.setattr(PACE, "_left", -1000.0)
    assert ask(world, "second", ["n2"]) == []
    assert preempt(world, "second", {"n1": ["b", "a"]}) == {}
    assert preempt(world, "first", {"n1": ["a"]}) == {"n1": ["a"]}
    monkeypatch.setattr(PACE, "_left", 1000.0)
    assert ask(world, "second", ["n2"]) == []
    assert promised() == {"first": ("n1", True), "second": ("n2", False)}
    assert world.settled()


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
