"""Who has to go: reclaim across queues and preemption in one, a named case for each rule (docs/queues.md)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.allocations.scenario.queues import evicted, gang, node, placed, pod, pods, queue, quota, run, waits, why

FROM_A = [queue("a", quota(0, weight=0)), queue("b", quota(4))]
"""Everything that `a` holds is borrowed."""
H100_ONLY = {"metadata": {"name": "h"}, "spec": {"devices": {"count": 1, "model": ["H100"]}}}


def sick(manifest: dict[str, Any], minor: int) -> dict[str, Any]:
    """The node with a device that is not healthy."""
    manifest["devices"][minor]["healthy"] = False
    return manifest


@pytest.mark.parametrize(
    ("scenario", "want_evicted"),
    [
        pytest.param(
            {
                "nodes": [node("n1", 3)],
                "queues": FROM_A,
                "pods": [
                    pod("low", queue="a", on="n1:0", priority=-1),
                    pod("old", queue="a", on="n1:1"),
                    pod("new", queue="a", on="n1:2"),
                    *pods(2, "b", queue="b"),
                ],
            },
            [("low", "b-0"), ("new", "b-1")],
            id="the lowest priority first, then the newest",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 4)],
                "gangs": [gang("ring", 2)],
                "queues": FROM_A,
                "pods": [
                    *[pod(f"r-{number}", gang="ring", queue="a", on=f"n1:{number}") for number in range(3)],
                    pod("newest", queue="a", on="n1:3"),
                    *pods(2, "b", queue="b"),
                ],
            },
            [("r-2", "b-0"), ("newest", "b-1")],
            id="members above minMember before whole workloads",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 4)],
                "gangs": [gang("ring", 2)],
                "queues": FROM_A,
                "pods": [
                    pod("r-0", gang="ring", queue="a", on="n1:0"),
                    pod("lone", queue="a", on="n1:1"),
                    pod("r-1", gang="ring", queue="a", on="n1:2"),
                    pod("other", queue="b", on="n1:3"),
                    pod("b", queue="b"),
                ],
            },
            [("lone", "b")],
            id="a gang is as old as its oldest pod",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 2)],
                "gangs": [gang("ring", 2)],
                "queues": FROM_A,
                "pods": [
                    pod("r-0", gang="ring", queue="a", on="n1:0"),
                    pod("r-1", gang="ring", queue="a", on="n1:1", preemptible=False),
                    pod("b", queue="b"),
                ],
            },
            [],
            id="one that is not preemptible keeps its gang",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 1), node("n2", 2, model="A100")],
                "claims": [H100_ONLY],
                "queues": [queue("a", quota(2)), queue("b", quota(1))],
                "pods": [
                    pod("a-0", queue="a", on="n1:0"),
                    *[pod(f"a-{number}", queue="a", on=f"n2:{number - 1}") for number in (1, 2)],
                    pod("b", queue="b", claim="h"),
                ],
            },
            [("a-0", "b")],
            id="nobody on a model that the taker does not ask for",
        ),
        pytest.param(
            {
                "nodes": [sick(node("n1", 3), 2)],
                "queues": [queue("a", quota(1)), queue("b", quota(1))],
                "pods": [*[pod(f"a-{n}", queue="a", on=f"n1:{n}") for n in range(3)], pod("b", queue="b")],
            },
            [("a-1", "b")],
            id="nobody on a device that is not healthy",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 2), node("n2", 2)],
                "queues": [queue("a", quota(2)), queue("b", quota(2))],
                "pods": [
                    pod("fixed", queue="a", on="n1:0", preemptible=False),
                    *[pod(f"a-{number}", queue="a", on=f"n2:{number}") for number in range(2)],
                    pod("beside", queue="a", on="n1:1"),
                    pod("b", 2, queue="b"),
                ],
            },
            [("a-1", "b"), ("a-0", "b")],
            id="nobody beside one who stays, where the taker needs both",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 1, rack="x"), node("n2", 1, rack="y"), node("n3", 1, rack="y")],
                "gangs": [gang("ring", 2, topology={"required": "rack"})],
                "queues": [queue("a", quota(1)), queue("b", quota(2))],
                "pods": [
                    *[pod(f"a-{number}", queue="a", on=f"n{3 - number}:0") for number in range(3)],
                    *pods(2, "r", gang="ring", queue="b"),
                ],
            },
            [("a-1", "ring"), ("a-0", "ring")],
            id="nobody in a rack that is too small for the gang",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 4)],
                "queues": [
                    queue("left", quota(2)),
                    queue("l1", quota(2), parent="left"),
                    queue("l2", quota(0), parent="left"),
                    queue("right", quota(2)),
                    queue("r1", quota(0), parent="right"),
                ],
                "pods": [
                    *[pod(f"r-{number}", queue="r1", on=f"n1:{number}") for number in range(3)],
                    pod("l2-0", queue="l2", on="n1:3"),
                    pod("new", queue="l1"),
                ],
            },
            [("l2-0", "new")],
            id="the newest goes, of a sibling or of a cousin: each is above its share",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 4)],
                "queues": [
                    queue("left", quota(2)),
                    queue("l1", quota(1), parent="left"),
                    queue("right", quota(2)),
                    queue("r1", quota(1), parent="right"),
                ],
                "pods": [
                    *[pod(f"l-{number}", queue="l1", on=f"n1:{number}") for number in range(2)],
                    *[pod(f"r-{number}", queue="r1", on=f"n1:{number}") for number in (2, 3)],
                    pod("new", queue="l1"),
                ],
            },
            [],
            id="the ancestor just below the common one is within its share",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 4)],
                "queues": [
                    queue("left", quota(1)),
                    queue("l1", quota(1), parent="left"),
                    queue("l2", quota(1), parent="left"),
                    queue("right", quota(3)),
                ],
                "pods": [
                    pod("l2-0", queue="l2", on="n1:0", preemptible=False),
                    *[pod(f"r-{number}", queue="right", on=f"n1:{number}") for number in (1, 2, 3)],
                    pod("new", queue="l1"),
                ],
            },
            [],
            id="an ancestor of the taker would pass its share",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 8)],
                "queues": [
                    queue("org", quota(2, limit=2)),
                    queue("a", quota(0), parent="org"),
                    queue("b", quota(2), parent="org"),
                ],
                "pods": [
                    *[pod(f"a-{number}", queue="a", on=f"n1:{number}") for number in range(2)],
                    pod("b", queue="b"),
                ],
            },
            [("a-1", "b")],
            id="a limit of an ancestor is brought down by a sibling's pod",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 4)],
                "queues": [queue("a", quota(1)), queue("b", quota(3))],
                "pods": [*[pod(f"a-{n}", queue="a", on=f"n1:{n}") for n in range(4)], pod("b", 4, queue="b")],
            },
            [],
            id="nobody goes if that would not suffice",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 2), node("n2", 4)],
                "queues": FROM_A,
                "pods": [
                    *[
                        pod(f"big-{number}", 2, queue="a", on=f"n2:{2 * number},{2 * number + 1}")
                        for number in range(2)
                    ],
                    *[pod(f"small-{number}", queue="a", on=f"n1:{number}") for number in range(2)],
                    pod("b", 4, queue="b"),
                ],
            },
            [("big-1", "b"), ("big-0", "b")],
            id="who is chosen for nothing stays",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 2)],
                "queues": [queue("a", quota(1)), queue("b", quota(1))],
                "pods": [
                    pod("own", queue="a", on="n1:0", priority=-1),
                    pod("b-runs", queue="b", on="n1:1"),
                    pod("new", queue="a"),
                ],
            },
            [("own", "new")],
            id="preemption where nothing may be reclaimed",
        ),
    ],
)
def test_who_goes(scenario: dict[str, Any], want_evicted: list[tuple[str, str]]) -> None:
    """QUEUE-3 the victims, in the order in which they were chosen."""
    assert [(one, taker) for one, taker, _ in evicted(run(**scenario))] == want_evicted


def test_what_comes_free_beyond_the_taker_goes_to_the_next() -> None:
    """QUEUE-3 a gang of two goes for one pod; the next takes the other device, and waits for it too."""
    result = run(
        nodes=[node("n1", 2)],
        gangs=[gang("ring", 2)],
        queues=FROM_A,
        pods=[
            *[pod(f"r-{number}", gang="ring", queue="a", on=f"n1:{number}") for number in range(2)],
            *pods(2, "b", queue="b"),
        ],
    )
    assert sorted(evicted(result)) == [("r-0", "b-0", "reclaim"), ("r-1", "b-0", "reclaim")]
    assert waits(result)["b-0"] == ("r-0", "r-1")
    assert len(waits(result)["b-1"]) == 1
    assert set(placed(result)) == {"b-0", "b-1"}


def test_before_each_victim_its_queue_is_above_its_share() -> None:
    """QUEUE-3 the second victim would be of a queue that is at its share, so that nobody goes."""
    result = run(
        nodes=[node("n1", 4)],
        queues=[queue("a", quota(3)), queue("b", quota(1, limit=4))],
        pods=[*[pod(f"a-{n}", queue="a", on=f"n1:{n}") for n in range(4)], pod("b", 2, queue="b")],
    )
    assert evicted(result) == []
    assert list(why(result)) == ["b"]


def test_an_answer_with_queues_always_tells_of_evictions() -> None:
    """VIEW-4 an empty list, and none where pods go in the order of the file."""
    some = [pod("p")]
    assert run(nodes=[node("n1")], queues=[queue("a")], pods=some).evictions == ()
    assert run(nodes=[node("n1")], pods=some).evictions is None
