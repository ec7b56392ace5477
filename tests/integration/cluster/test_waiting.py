"""Pods that wait, also those that the extender is never asked about: a record, a place in the lists, our answer beside
the scheduler's.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from access.actors import SYSTEM
from access.errors import NotFound
from allocations.explain import pod_explain
from allocations.models import PodRefusal
from allocations.publish.pending_events import write as write_pending_events
from allocations.selectors import pending_count, waiting_pods
from allocations.waiting import SEEN_AGAIN, plan_waiting
from allocations.watching import watch_pods
from storage.clock import database_now
from tests.fakes.apikinds import PODS
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World
from tests.integration.cluster.test_watching import wait_for, watching

FULL = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
CPU = "0/2 nodes are available: 2 Insufficient cpu."
GPU = {"nvidia.com/gpu": "1"}


@pytest.fixture
def there(world: World) -> World:
    """Two nodes of one GPU each."""
    world.node("n1", gpus=1)
    world.node("n2", gpus=1)
    world.claim("one", count=1)
    return world


def native(world: World, name: str, **spec: Any) -> str:
    """A pod by `nvidia.com/gpu`."""
    made = world.server.add_pod(name, namespace=NAMESPACE, limits=GPU, spec=spec)
    return str(made["metadata"]["uid"])


def plan(world: World, *, later: float = 0.0) -> int:
    return plan_waiting(now=database_now() + timedelta(seconds=later))


def row(name: str) -> PodRefusal:
    return PodRefusal.objects.get(pod_name=name)


def rows() -> list[str]:
    return sorted(PodRefusal.objects.values_list("pod_name", flat=True))


def explain(name: str) -> dict[str, Any]:
    return pod_explain(NAMESPACE, name, SYSTEM)


def test_a_pod_that_the_extender_never_saw(there: World) -> None:
    """VIEW-3 on a full fleet kube-scheduler asks nobody: the pod has an answer, a place in the list and an event all
    the same.
    """
    there.place("a", claim="one")
    there.place("b", claim="one")
    uid = native(there, "never")
    with watching(there, watch_pods, "pods"):
        there.refuse("never", message=FULL)
        wait_for(lambda: PodRefusal.objects.filter(pod_name="never", scheduler_message=FULL).exists())
    assert plan(there) == 1
    told = explain("never")
    assert (told["state"], told["uid"], told["summary"]) == ("pending", uid, "2 of 2 nodes: no whole gpu device free")
    assert told["scheduler"] == {"name": "default-scheduler", "message": FULL, "refused": 0}
    assert [(one["node"], [device["reason"] for device in one["devices"]]) for one in told["nodes"]] == [
        ("n1", ["in use, a whole device is asked"]),
        ("n2", ["in use, a whole device is asked"]),
    ]
    assert [one.pod_name for one in waiting_pods(actor=SYSTEM)] == ["never"]
    assert pending_count(actor=SYSTEM, since=database_now() - timedelta(minutes=1)) == 1
    assert (
        there.told("pod.refused")[-1] == f"{NAMESPACE}/never cannot be placed: 2 of 2 nodes: no whole gpu device free"
    )
    cluster = there.backends.cluster
    assert cluster is not None
    assert write_pending_events(cluster=cluster, now=database_now() + timedelta(seconds=3)) == 1
    assert [one["message"] for one in there.server.events.values()] == ["2 of 2 nodes: no whole gpu device free"]


def test_kept_off_by_the_scheduler_alone(there: World) -> None:
    """VIEW-3 where devices are free it says so, with what the scheduler says."""
    native(there, "busy")
    there.refuse("busy", message=CPU)
    there.reconcile()
    assert plan(there) == 1
    assert row("busy").summary == "n1 has the devices; the scheduler has not asked for them"
    told = explain("busy")
    assert told["summary"] == "n1 can serve it now; the scheduler has not asked about it, for reasons of its own"
    assert told["scheduler"]["message"] == CPU
    cluster = there.backends.cluster
    assert cluster is not None
    assert write_pending_events(cluster=cluster, now=database_now() + timedelta(seconds=3)) == 0, (
        "the scheduler tells that itself"
    )


def test_text_that_postgresql_does_not_take(there: World) -> None:
    """VIEW-3 LEASE-6 the API server takes NUL in annotations and messages: a pod that has it costs no other its row,
    neither by the watch nor by a comparison nor by filter.
    """
    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}

    def add(suffix: str) -> list[str]:
        there.server.add_pod(
            f"model-{suffix}", namespace=NAMESPACE, limits=share, annotations={"nvidia.com/use-gputype": "a\x00"}
        )
        native(there, f"scheduler-{suffix}", schedulerName="a\x00b")
        native(there, f"said-{suffix}")
        there.refuse(f"said-{suffix}", message="a\x00b")
        native(there, f"good-{suffix}")
        for name in ("good", "model", "scheduler"):
            there.refuse(f"{name}-{suffix}", message=FULL)
        return [f"{name}-{suffix}" for name in ("good", "model", "said", "scheduler")]

    first = add("listed")
    there.reconcile()
    assert rows() == first
    assert row("said-listed").scheduler_message == "a\ufffdb"
    assert row("scheduler-listed").scheduler_name == "a\ufffdb"
    with watching(there, watch_pods, "pods"):
        second = add("watched")
        wait_for(lambda: rows() == sorted(first + second))
    there.server.add_pod("asked", namespace=NAMESPACE, limits=share, annotations={"nvidia.com/use-gputype": "a\x00"})
    assert there.filter("asked") is None
    assert row("asked").count == 1


@pytest.mark.parametrize(
    ("spec", "want_rule", "want_summary"),
    [
        pytest.param(
            {"schedulingGates": [{"name": "quota.example/ready"}]},
            "gated",
            "the pod is gated: no scheduler looks at it before quota.example/ready is taken away",
            id="gated",
        ),
        pytest.param(
            {"schedulerName": "kai-scheduler"},
            "other-scheduler",
            "it waits for the scheduler kai-scheduler, which has not asked gpuplane",
            id="another scheduler",
        ),
        pytest.param(
            {"schedulerName": "gpu-scheduler"},
            "not-asked",
            "n1 has the devices; the scheduler has not asked for them",
            id="ours",
        ),
        pytest.param({}, "not-asked", "n1 has the devices; the scheduler has not asked for them", id="Kubernetes' own"),
    ],
)
def test_who_it_waits_for(there: World, spec: dict[str, Any], want_rule: str, want_summary: str) -> None:
    """VIEW-3 no answer of ours for pods that others have to look at first."""
    native(there, "p", **spec)
    there.reconcile()
    plan(there)
    assert (row("p").rule, row("p").summary) == (want_rule, want_summary)
    assert explain("p")["state"] == "pending"


def test_a_gate_that_is_taken_away(there: World) -> None:
    """VIEW-3 the next comparison knows."""
    native(there, "p", schedulingGates=[{"name": "g"}])
    there.reconcile()
    there.server.store.patch(PODS, NAMESPACE, "p", {"spec": {"schedulingGates": None}}, content_type=MERGE)
    there.reconcile()
    assert plan(there) == 1
    assert row("p").rule == "not-asked"


@pytest.mark.parametrize("by", ["watch", "comparison"])
@pytest.mark.parametrize("end", ["bound", "bound by another", "finished", "gone"])
def test_when_it_ends(there: World, by: str, end: str) -> None:
    """VIEW-3 a pod that is bound, finished or gone waits no more."""
    there.pod("p", claim="one")
    there.refuse("p", message=CPU)
    there.reconcile()
    assert rows() == ["p"]

    def over() -> None:
        if end == "bound":
            assert there.bind("p", str(there.filter("p"))) == ""
        elif end == "bound by another":
            there.server.store.bind(NAMESPACE, "p", {"metadata": {}, "target": {"name": "n2"}})
        elif end == "finished":
            there.finish("p", "Failed")
        else:
            there.remove("p")

    if by == "watch":
        with watching(there, watch_pods, "pods"):
            over()
            wait_for(lambda: rows() == [])
    else:
        over()
        there.reconcile()
    assert rows() == []
    assert not waiting_pods(actor=SYSTEM).exists()


def test_an_answer_of_the_extender_stays_beside_the_schedulers_word(there: World) -> None:
    """VIEW-3 what filter said is not overwritten, and what the scheduler says then is kept with it."""
    there.place("a", claim="one")
    there.place("b", claim="one")
    there.pod("p", claim="one")
    assert there.filter("p") is None
    asked = row("p")
    there.refuse("p", message="0/2 nodes are available: 2 no whole gpu device free.")
    there.reconcile()
    assert plan(there) == 0
    now = row("p")
    assert (now.count, now.summary, now.last_at, now.reasons) == (1, asked.summary, asked.last_at, asked.reasons)
    assert explain("p")["scheduler"] == {
        "name": "default-scheduler",
        "message": "0/2 nodes are available: 2 no whole gpu device free.",
        "refused": 1,
    }
    # later the scheduler finds no node of its own any more, and asks no longer: the engine looks again
    there.remove("a")
    there.reconcile()
    assert plan(there, later=61) == 1
    assert row("p").summary.startswith("n1 has the devices")
    assert there.filter("p") == "n1"


def test_a_broken_claim(there: World) -> None:
    """CLAIM-3 VIEW-3 what a person has to mend, also of a pod that nobody asked about; and when it is mended."""
    there.pod("lost", claim="nowhere")
    there.pod("lost-too", claim="nowhere")
    there.reconcile()
    for name in ("lost", "lost-too"):
        assert row(name).summary == "GpuClaim nowhere does not exist in the namespace of the pod"
    there.claim("nowhere", count=2)
    there.reconcile()
    assert plan(there) == 2
    assert explain("lost")["summary"] == "2 of 2 nodes: fewer than 2 gpu devices"


def test_a_pod_without_a_row_is_read(there: World) -> None:
    """VIEW-3 a pod made a moment ago is read when it is asked about; other pods are nobody's business here."""
    there.pod("fresh", claim="one")
    there.server.add_pod("plain", namespace=NAMESPACE)
    assert explain("fresh")["state"] == "pending"
    with pytest.raises(NotFound):
        explain("plain")
    there.server.stop()
    with pytest.raises(NotFound):
        explain("other")


def test_thousands_are_planned_in_turns(there: World) -> None:
    """A turn has its time; who asks the same shares an answer, those looked at longest ago come first."""
    there.claim("two", count=2)
    for number in range(3):
        there.pod(f"one-{number}", claim="one")
        there.pod(f"two-{number}", claim="two")
    there.reconcile()
    ticks = iter([0.0, 0.5, 9.0])  # the turn begins, the first request, the second one
    assert plan_waiting(now=database_now(), clock=lambda: next(ticks), seconds=1.0) == 3
    assert plan(there) == 3
    assert plan(there) == 0
    assert plan(there, later=61) == 6


def test_a_pod_that_stays_as_it_is_costs_a_write_now_and_then(there: World) -> None:
    """Comparisons that find nothing new write nothing; the row lives on as long as the pod waits."""
    native(there, "p")
    there.reconcile()
    first = row("p").seen_at
    there.reconcile(later=25)
    assert row("p").seen_at == first
    later = SEEN_AGAIN.total_seconds() + 25
    there.reconcile(later=later)
    assert row("p").seen_at != first
    there.collect_garbage(later=later + 600)
    assert rows() == ["p"]
    there.collect_garbage(later=later + 1000)
    assert rows() == []


def test_a_burst_of_refusals_is_written_in_batches(there: World) -> None:
    """Each gets its row, and what ends in their midst is released."""
    there.place("runs", claim="one")
    names = [f"p{number:03}" for number in range(60)]
    for name in names:
        native(there, name)
    with watching(there, watch_pods, "pods"):
        for name in names:
            there.refuse(name, message=FULL)
        there.remove("runs")
        told = PodRefusal.objects.filter(scheduler_message=FULL)
        wait_for(lambda: there.live() == 0 and told.count() == len(names))
    assert rows() == names


def test_a_pod_that_asks_for_something_else_while_it_is_planned(there: World) -> None:
    """VIEW-3 what was worked out for the earlier request is not written beside the later one."""
    native(there, "changing")
    there.reconcile()
    ticks = iter([lambda: None, change_annotation(there, "changing")])

    def clock() -> float:
        next(ticks)()
        return 0.0

    plan_waiting(now=database_now(), clock=clock, seconds=1.0)
    changed = row("changing")
    assert changed.request is not None
    assert changed.request["ignored"] == ["annotation:pod-group-name"]
    assert changed.planned_at is None
    assert plan(there) == 1
    assert row("changing").planned_at is not None


def change_annotation(world: World, name: str) -> Callable[[], None]:
    def change() -> None:
        world.server.store.patch(
            PODS, NAMESPACE, name, {"metadata": {"annotations": {"pod-group-name": "ring"}}}, content_type=MERGE
        )
        world.reconcile()

    return change
