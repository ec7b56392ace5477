"""Gangs between admission and their end: time-outs, back-off, failures, deletion."""

from __future__ import annotations

from datetime import timedelta

from access.actors import SYSTEM
from allocations.explain import pod_explain
from allocations.live_scenario import live_scenario
from allocations.models import Allocation, GangState, QueueState, QueueUsage, QueueUsageMark
from allocations.queue_overviews import queue_overview
from allocations.queue_usage.recording import record_usage
from allocations.scenario import Limits
from claims.kinds import GANG, QUEUE
from claims.models import GpuGang
from claims.queues import DIRECTORY
from claims.services import manifest_delete
from kube.keys import QUEUE_LABEL
from storage.clock import database_now
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.queueing.conftest import Queues
from tests.integration.cluster.queueing.test_reclaim import gone, leaving


def ring(queues: Queues, members: int, *, gpus: int = 1, **spec: object) -> list[str]:
    """A gang `ring` with all its pods; their names."""
    queues.gang("ring", members, **spec)
    names = [f"ring-{number}" for number in range(members)]
    for name in names:
        queues.pod(name, gang="ring", gpus=gpus)
    return names


def later(seconds: float) -> None:
    """So much time passes for the gang."""
    for state in GangState.objects.all():
        state.admitted_at = None if state.admitted_at is None else state.admitted_at - timedelta(seconds=seconds)
        state.retry_at = None if state.retry_at is None else state.retry_at - timedelta(seconds=seconds)
        state.save()


def test_a_gang_that_takes_too_long_is_undone(queues: Queues) -> None:
    """CLAIM-8 holds end, bound members are evicted, and the gang waits with back-off, then goes again."""
    queues.world.node("n1")
    first, second, third = ring(queues, 3, timeoutSeconds=60)
    queues.settle()
    queues.bind(first)
    later(61)
    queues.round()
    assert leaving(queues) == [first]
    assert (queues.node_of(second), queues.node_of(third)) == ("", "")
    gone(queues, first)
    queues.pod(first, gang="ring")
    queues.round()
    assert "is tried again at" in queues.why(second)
    assert queues.world.live() == 0
    later(10)
    queues.settle()
    assert all(queues.node_of(name) for name in (first, second, third))


def test_the_back_off_grows_and_ends_when_the_gang_stands(queues: Queues) -> None:
    """CLAIM-8 10 s, 20 s, 40 s; a gang that stood begins anew."""
    queues.world.node("n1")
    names = ring(queues, 2, timeoutSeconds=60)
    waits = []
    for _ in range(3):
        queues.settle()
        later(61)
        began = database_now()
        queues.round()
        state = GangState.objects.get()
        assert state.retry_at is not None
        waits.append(round((state.retry_at - began).total_seconds(), -1))
        later(1000)
    assert waits == [10, 20, 40]
    queues.settle()
    for name in names:
        queues.bind(name)
    queues.round()
    assert (GangState.objects.get().undone, GangState.objects.get().stood_at is not None) == (0, True)


def test_a_gang_that_stands_is_left_alone(queues: Queues) -> None:
    """CLAIM-8 its time-out is over, and a member ends: `none`, the default, touches nobody."""
    queues.world.node("n1")
    names = ring(queues, 2, timeoutSeconds=60)
    queues.settle()
    for name in names:
        queues.bind(name)
    queues.round()
    later(61)
    gone(queues, names[0])
    queues.round()
    assert leaving(queues) == []
    assert queues.node_of(names[1]) == "n1"


def test_all_go_with_one(queues: Queues) -> None:
    """CLAIM-8 onMemberFailure: evictAll."""
    queues.world.node("n1")
    names = ring(queues, 3, onMemberFailure="evictAll")
    queues.settle()
    for name in names:
        queues.bind(name)
    queues.round()
    gone(queues, names[0])
    queues.round()
    assert leaving(queues) == names[1:]


def test_a_member_that_ended_well_takes_nobody_along(queues: Queues) -> None:
    """CLAIM-8 evictAll is about failures."""
    queues.world.node("n1")
    names = ring(queues, 2, onMemberFailure="evictAll")
    queues.settle()
    for name in names:
        queues.bind(name)
    queues.round()
    queues.world.finish(names[0])
    queues.world.reconcile()
    queues.round()
    assert leaving(queues) == []


def test_a_gang_larger_than_the_fleet_says_so(queues: Queues) -> None:
    """CLAIM-8 QUEUE-5 at once."""
    queues.world.node("n1", gpus=2)
    ring(queues, 3)
    queues.settle()
    assert queues.world.live() == 0
    assert queues.why("ring-0") == "room for 2 of 3 pods of ring"


def test_a_gang_that_is_deleted_while_its_pods_wait(queues: Queues) -> None:
    """CLAIM-8 they wait for a gang of that name, and say so."""
    queues.world.node("n1", gpus=1)
    ring(queues, 2)
    queues.settle()
    manifest_delete(GANG, namespace=NAMESPACE, name="ring", actor=SYSTEM, now=database_now())
    queues.settle()
    assert queues.why("ring-0") == "GpuGang ring does not exist"


def test_a_gang_that_is_deleted_while_its_pods_run(queues: Queues) -> None:
    """CLAIM-8 they keep their devices."""
    queues.world.node("n1")
    names = ring(queues, 2)
    queues.settle()
    for name in names:
        queues.bind(name)
    manifest_delete(GANG, namespace=NAMESPACE, name="ring", actor=SYSTEM, now=database_now())
    queues.settle()
    assert leaving(queues) == []
    assert queues.world.live() == 2


def test_pods_above_the_least_come_one_by_one(queues: Queues) -> None:
    """CLAIM-8 once the gang stands; a member that does not fit holds back no other."""
    queues.world.node("n1", gpus=4)
    queues.gang("ring", 2)
    for number in range(5):
        queues.pod(f"ring-{number}", gang="ring")
    queues.settle()
    assert [bool(queues.node_of(f"ring-{number}")) for number in range(5)] == [True, True, True, True, False]


def test_a_queue_that_is_deleted_with_pods_in_it(queues: Queues) -> None:
    """QUEUE-1 all go to `default`, those by its label as those of its namespaces; while they wait there they say so."""
    queues.world.node("n1", gpus=2)
    queues.queue("research", namespaces=[NAMESPACE], quotas=[{"limit": 0}])
    queues.queue("default", quotas=[{"limit": 1}])
    queues.pod("labelled", queue="research")
    queues.pod("by-namespace")
    queues.settle()
    assert queues.world.live() == 0
    manifest_delete(QUEUE, namespace="", name="research", actor=SYSTEM, now=database_now())
    DIRECTORY.forget()
    queues.see("labelled", "by-namespace")
    queues.settle()
    held, waits = sorted(("labelled", "by-namespace"), key=queues.gated)
    assert (queues.gated(held), queues.gated(waits)) == (False, True)
    gone = "queue research does not exist, so the pod is in queue default: "
    assert queues.why(waits) == f"{gone if waits == 'labelled' else ''}queue default holds 1 of its limit of 1 GPUs"


def test_a_queue_that_is_deleted_beside_an_untouched_default(queues: Queues) -> None:
    """QUEUE-1 pods of an untouched `default` are kube-scheduler's: the gate of one whose queue is gone is taken off."""
    queues.world.node("n1", gpus=2)
    queues.queue("research", quotas=[{"limit": 0}])
    queues.queue("other")
    queues.pod("labelled", queue="research")
    queues.settle()
    assert queues.gated("labelled")
    manifest_delete(QUEUE, namespace="", name="research", actor=SYSTEM, now=database_now())
    DIRECTORY.forget()
    queues.see("labelled")
    queues.settle()
    assert not queues.gated("labelled")


def test_one_node_when_asked(queues: Queues) -> None:
    """DEV-10b CLAIM-8 a topology by hostname, also where nobody labelled the nodes: all on one node, and none moves."""
    queues.world.node("n1", gpus=1)
    queues.world.node("n2", gpus=2)
    queues.world.node("n3", gpus=1)
    queues.gang("near", 2, topology={"required": "kubernetes.io/hostname"})
    for name in ("a", "b"):
        queues.pod(name, gang="near")
    queues.settle()
    assert {queues.node_of("a"), queues.node_of("b")} == {"n2"}
    queues.world.server.remove_node("n2")  # kube-scheduler offers the others only
    assert queues.world.filter("a") is None


def test_a_stored_gang_by_a_label_that_no_node_can_have_delays_no_others(queues: Queues) -> None:
    """CLAIM-8 QUEUE-4 admission refuses such gangs; one that was stored before waits."""
    queues.world.node("n1")
    queues.world.reconcile()
    queues.queue("research", namespaces=[NAMESPACE])
    queues.gang("ring", 1, topology={"required": "rack"})
    GpuGang.objects.update(spec={"minMember": 1, "topology": {"required": "not a label!"}})
    queues.pod("a", gang="ring")
    queues.pod("b")
    queues.settle()
    assert (queues.node_of("a"), queues.node_of("b")) == ("", "n1")


def test_members_with_labels_of_two_queues(queues: Queues) -> None:
    """QUEUE-1 QUEUE-4 all pods of a gang count in the queue of the oldest, waiting or running: no limit is passed."""
    queues.world.node("n1", gpus=4)
    queues.queue("research", quotas=[{"limit": 2}])
    queues.queue("product", quotas=[{"limit": 0}])
    queues.gang("ring", 2)
    queues.pod("ring-0", gang="ring", queue="research")
    queues.pod("ring-1", gang="ring", queue="product")
    queues.settle()
    assert {queues.bind("ring-0"), queues.bind("ring-1")} == {"n1"}
    queues.pod("a", queue="research")
    queues.settle()
    assert queues.why("a") == "queue research holds 2 of its limit of 2 GPUs"
    held = {row.name: row.quotas[0]["allocated"] for row in QueueState.objects.exclude(name="default")}
    assert held == {"research": 2, "product": 0}


def test_members_with_labels_of_two_queues_are_shown_where_they_count(queues: Queues) -> None:
    """QUEUE-6 QUEUE-1 chargeback, the page of the queue, a what-if and explain count as the rounds do."""
    queues.world.node("n1", gpus=2)
    queues.queue("research")
    queues.queue("product")
    queues.gang("ring", 2)
    queues.pod("ring-0", gang="ring", queue="research")
    queues.pod("ring-1", gang="ring", queue="product")
    queues.settle()
    assert {queues.bind("ring-0"), queues.bind("ring-1")} == {"n1"}
    queues.pod("ring-2", gang="ring", queue="product")
    queues.settle()
    minute = database_now().replace(second=0, microsecond=0)
    Allocation.objects.update(created_at=minute - timedelta(hours=1))
    QueueUsageMark.objects.create(pk=1, until=minute)
    assert record_usage(now=minute + timedelta(minutes=4)) == 1
    assert {row.queue: row.held for row in QueueUsage.objects.all()} == {"research": 120}

    pages = {name: queue_overview(name, actor=SYSTEM) for name in ("research", "product")}
    assert {name: page.namespaces for name, page in pages.items() if page} == {
        "research": [(NAMESPACE, 2)],
        "product": [],
    }
    assert {name: [one.pod_name for one in page.waiting] for name, page in pages.items() if page} == {
        "research": ["ring-2"],
        "product": [],
    }
    scenario = live_scenario(actor=SYSTEM, limits=Limits())
    assert [pod["metadata"]["labels"][QUEUE_LABEL] for pod in scenario["pods"]] == ["research", "research"]
    assert pod_explain(NAMESPACE, "ring-2", SYSTEM)["workload"]["queue"] == "research"
