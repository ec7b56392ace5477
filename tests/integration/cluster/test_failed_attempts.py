"""A hold ends with the attempt of kube-scheduler that it is for, and with no other, whatever the clocks of the machines
say.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta

import pytest

from allocations.watching import watch_pods, watch_scheduling_events
from storage.clock import database_now
from tests.fakes.apikinds import EVENTS, Object
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.integration.cluster.test_watching import wait_for, watching

VOLUME = "no volume could be bound"
NO_NODE = "0/5 nodes are available: 5 Insufficient cpu."


@pytest.fixture
def one(world: World) -> World:
    """A node of two GPUs, and a pod `p` that asks for both."""
    world.node("n1", gpus=2)
    world.claim()
    world.pod("p")
    return world


def seen_by_a_later_pod(world: World) -> None:
    """Until the watch is past everything that was written: a pod made now is gone, and so is its hold."""
    world.node("last", gpus=1)
    world.claim("last", count=1)
    world.pod("last", claim="last")
    assert world.filter("last") == "last"
    world.remove("last")
    wait_for(lambda: world.states("last") == ["released"])


def as_it_is(world: World, name: str) -> Object:
    return deepcopy(world.server.pods[NAMESPACE, name])


@pytest.mark.parametrize(
    "skew_seconds",
    [
        pytest.param(-5, id="the scheduler's clock is behind"),
        pytest.param(0, id="one clock"),
        pytest.param(5, id="ahead"),
    ],
)
@pytest.mark.parametrize("by", ["watch", "comparison"])
def test_a_failed_attempt_ends_its_hold(one: World, skew_seconds: int, by: str) -> None:
    """LEASE-3 whatever the scheduler's clock says of the moment."""
    assert one.filter("p") == "n1"
    at = database_now() + timedelta(seconds=skew_seconds)
    if by == "watch":
        with watching(one, watch_pods, "pods"):
            one.refuse("p", at=at)
            wait_for(lambda: one.states("p") == ["failed"])
    else:
        one.refuse("p", at=at)
        assert one.reconcile().holds_dropped == 1
    assert one.used("n1") == [0, 0]


@pytest.mark.parametrize("skew_seconds", [-5, 5, 3600])
def test_a_failure_that_filter_saw_is_of_another_attempt(one: World, skew_seconds: int) -> None:
    """LEASE-3 a good hold stays, also where the failure before bears a later time than the hold; nor does an update of
    no consequence end it.
    """
    one.refuse("p", at=database_now() + timedelta(seconds=skew_seconds), message=NO_NODE)
    assert one.filter("p") == "n1"
    assert one.reconcile().holds_dropped == 0
    one.annotate("p", note="nothing to do with scheduling")
    with watching(one, watch_pods, "pods"):
        one.annotate("p", note="again")
        seen_by_a_later_pod(one)
    assert one.reconcile().holds_dropped == 0
    assert one.states("p") == ["held"]


def test_a_second_failure_with_another_message(one: World) -> None:
    """LEASE-3 PodScheduled was False before, so its time stands still: the text tells."""
    one.refuse("p", message=NO_NODE)
    assert one.filter("p") == "n1"
    with watching(one, watch_pods, "pods"):
        one.refuse("p", message=VOLUME)
        wait_for(lambda: one.states("p") == ["failed"])


def test_a_second_failure_with_the_same_message(one: World) -> None:
    """LEASE-3 the pod is not written at all: the event about the version that filter saw tells, and a series the next
    time.
    """
    first = one.version("p")
    assert one.filter("p") == "n1"
    with watching(one, watch_pods, "pods"), watching(one, watch_scheduling_events, "events"):
        one.failed_event("p", version=first, message=VOLUME)
        one.refuse("p", message=VOLUME)
        wait_for(lambda: one.states("p") == ["failed"])
        second = one.version("p")
        assert second != first

        assert one.filter("p") == "n1"
        one.refuse("p", message=VOLUME)
        assert one.version("p") == second
        one.failed_event("p", version=second, message=VOLUME)
        wait_for(lambda: one.states("p") == ["failed"] * 2)

        assert one.filter("p") == "n1"
        one.failed_event("p", version=second, message=VOLUME, times=2)
        wait_for(lambda: one.states("p") == ["failed"] * 3)


@pytest.mark.parametrize(
    ("before", "late", "want"),
    [
        pytest.param("refused by the scheduler itself", NO_NODE, "held", id="an attempt that never reached filter"),
        pytest.param(
            "refused by filter",
            "0/1 nodes are available: 1 fewer than 2 whole gpu devices free.",
            "held",
            id="refused by us, on one node",
        ),
        pytest.param("held", VOLUME, "held", id="held before, the same devices"),
        pytest.param("held elsewhere", VOLUME, "held", id="held before, other devices"),
        pytest.param("nothing", VOLUME, "failed", id="no attempt before: it is this one's"),
    ],
)
def test_the_late_word_of_an_attempt_before(one: World, before: str, late: str, want: str) -> None:
    """LEASE-3 a patch of an earlier attempt, written after the scheduler took the pod up again, ends no good hold; this
    attempt's own does.
    """
    behind = as_it_is(one, "p")
    if before == "refused by filter":
        one.place("other")
        assert one.filter("p", pod=behind) is None
        one.remove("other")
        one.reconcile()
    elif before.startswith("held"):
        assert one.filter("p", pod=behind) == "n1"
        if before == "held elsewhere":
            one.node("n0", gpus=2)
            one.server.remove_node("n1")
            assert one.filter("p", pod=behind) == "n0"
    assert one.filter("p", pod=behind) is not None
    one.refuse("p", message=late)
    done = one.reconcile()
    assert (one.states("p")[-1], done.holds_dropped) == (want, int(want == "failed"))
    if want == "held":
        one.refuse("p", message="the time for binding is over")
        assert one.reconcile().holds_dropped == 1
        assert one.states("p")[-1] == "failed"


def test_events_of_other_attempts(one: World) -> None:
    """LEASE-3 of an earlier version, of an attempt that found no node, and of the hold before at the same version: none
    ends a good hold.
    """
    behind = as_it_is(one, "p")
    first = one.version("p")
    one.annotate("p", note="another version")
    with watching(one, watch_scheduling_events, "events"), watching(one, watch_pods, "pods"):
        assert one.filter("p", pod=behind) == "n1"
        assert one.filter("p", pod=behind) == "n1"  # the next attempt, at the same version
        one.failed_event("p", version=first, message=VOLUME)  # late: of the one before
        assert one.filter("p") == "n1"
        one.failed_event("p", version=first, message=VOLUME, times=2)
        one.failed_event("p", version=one.version("p"), message=NO_NODE)
        one.pod("q")
        one.server.add_node("n2")
        one.node("n2", gpus=2, in_cluster=False)
        assert one.filter("q") == "n2"
        one.failed_event("q", version=one.version("q"), message=VOLUME)
        wait_for(lambda: one.states("q") == ["failed"])
    assert one.states("p") == ["held"]


def test_events_are_not_listed(one: World) -> None:
    """The watch asks for these events alone, and reads none that are there already: a cluster may have a hundred
    thousand.
    """
    version = one.version("p")
    assert one.filter("p") == "n1"
    one.failed_event("p", version=version, message=VOLUME)
    asked = len(one.server.requests)
    with watching(one, watch_scheduling_events, "events"):
        pass
    requests = [seen for seen in one.server.requests[asked:] if seen.path == "/api/v1/events"]
    assert [seen.query.get("limit") for seen in requests if "watch" not in seen.query] == ["1"]
    assert {seen.query["fieldSelector"] for seen in requests if "watch" in seen.query} == {
        "reason=FailedScheduling,involvedObject.kind=Pod"
    }
    assert one.states("p") == ["held"]
    one.server.store.delete(EVENTS, NAMESPACE, f"p.{version}", {})
    one.server.compact()
    asked = len(one.server.requests)
    with watching(one, watch_scheduling_events, "events"):
        wait_for(
            lambda: sum("watch" in seen.query for seen in one.server.requests[asked:]) == 2
        )  # the first one is gone
        one.failed_event("p", version=version, message=VOLUME)
        wait_for(lambda: one.states("p") == ["failed"])
