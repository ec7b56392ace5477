"""Who comes next: the order of queues and workloads, one named case for each rule (docs/queues.md, The decision)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.allocations.scenario.queues import Manifest, gang, node, placed, pod, pods, queue, quota, run, why

H100, A100 = ("H100",), ("A100",)
TWO_MODELS = (quota(1, models=H100), quota(1, models=A100))


def claim(name: str, count: int = 1, *models: str, **spec: Any) -> dict[str, Any]:
    """A GpuClaim."""
    devices: dict[str, Any] = {"count": count} | ({"model": list(models)} if models else {})
    return {"metadata": {"name": name}, "spec": {"devices": devices, **spec}}


@pytest.mark.parametrize(
    ("scenario", "want_placed"),
    [
        pytest.param(
            {
                "nodes": [node("n1", 2)],
                "queues": [queue("a", quota(1), priority=200), queue("b", quota(1))],
                "pods": [*pods(2, "a", 2, queue="a"), pod("b", queue="b")],
            },
            {"b"},
            id="1 within fair share goes before a higher priority that is not",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 2)],
                "queues": [queue("a", quota(1, limit=1)), queue("b", quota(0, weight=2)), queue("c", quota(0))],
                "pods": [pod("c", queue="c"), pod("b", queue="b"), pod("a", queue="a")],
            },
            {"a", "b"},
            id="2 within deserved goes before within fair share",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 1), node("n2", 1, model="A100")],
                "claims": [claim("h", 1, "H100"), claim("any")],
                "queues": [queue("a", *TWO_MODELS), queue("b", *TWO_MODELS, priority=200)],
                "pods": [pod("a", queue="a", claim="any"), pod("b", queue="b", claim="h")],
            },
            {"a", "b"},
            id="3 the queue of the higher priority goes first",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 8), node("n2", 1)],
                "queues": [queue("a", quota(4)), queue("b", quota(5))],
                "pods": [
                    pod("a-runs", 2, queue="a", on="n1:0,1"),
                    pod("b-runs", 2, queue="b", on="n1:2,3"),
                    pod("a", 1, queue="a", selector={"kubernetes.io/hostname": "n2"}),
                    pod("b", 1, queue="b", selector={"kubernetes.io/hostname": "n2"}),
                ],
            },
            {"b"},
            id="4 the smaller part of what is due, with the head",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 8), node("n2", 1)],
                "queues": [queue("a", quota(4)), queue("b", quota(4))],
                "pods": [
                    pod("a-runs", 2, queue="a", on="n1:0,1"),
                    pod("b-runs", 1, queue="b", on="n1:2"),
                    pod("a", 1, queue="a", selector={"kubernetes.io/hostname": "n2"}),
                    pod("b", 2, queue="b"),
                    pod("b-next", 1, queue="b", selector={"kubernetes.io/hostname": "n2"}),
                ],
            },
            {"b", "a"},
            id="4 a tie with the head goes to the smaller part without it",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 2)],
                "queues": [queue("a", quota(weight=0)), queue("b", quota(weight=0))],
                "pods": [*pods(2, "b", queue="b"), *pods(2, "a", queue="a")],
            },
            {"a-0", "a-1"},
            id="4 and 5 of queues that are due nothing the older goes on",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 1)],
                "queues": [queue("a", quota(weight=0)), queue("b", quota(1))],
                "pods": [pod("a", queue="a"), pod("b", queue="b")],
            },
            {"b"},
            id="4 a queue that is due nothing comes last",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 1)],
                "queues": [queue("z", quota()), queue("a", quota())],
                "pods": [pod("a", queue="a"), pod("z", queue="z")],
            },
            {"z"},
            id="5 the queue that stands first in the file is older",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 2)],
                "queues": [
                    queue("top", quota(2)),
                    queue("low", quota(0), parent="top"),
                    queue("high", quota(0), parent="top", priority=200),
                    queue("other", quota(0), priority=300),
                ],
                "pods": [*pods(2, "low", queue="low"), *pods(2, "high", queue="high"), *pods(2, "o", queue="other")],
            },
            {"high-0", "high-1"},
            id="down the tree: the top by its own keys, then its children by theirs",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 1)],
                "queues": [queue("a", quota(1))],
                "pods": [
                    pod("east", queue="a", created="2026-01-01T02:00:00+02:00"),
                    pod("west", queue="a", created="2026-01-01T01:00:00Z"),
                ],
            },
            {"east"},
            id="the older by its creationTimestamp, whatever its time zone",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 3)],
                "queues": [queue("a", quota(3))],
                "gangs": [gang("ring", 2)],
                "pods": [
                    pod("r-0", gang="ring", queue="a", on="n1:0"),
                    pod("lone", 2, queue="a"),
                    pod("r-1", 2, gang="ring", queue="a"),
                ],
            },
            {"r-1"},
            id="a gang is as old as its oldest pod, running ones included",
        ),
        pytest.param(
            {
                "nodes": [node("n1", 1)],
                "queues": [queue("a", quota(1))],
                "pods": [
                    pod("ours", queue="a"),
                    {
                        "metadata": {"name": "kai", "labels": {"kai.scheduler/queue": "a"}},
                        "spec": {"priority": 5, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
                    },
                ],
            },
            {"kai"},
            id="KAI's label of a queue is read",
        ),
    ],
)
def test_who_comes_next(scenario: dict[str, Any], want_placed: set[str]) -> None:
    """QUEUE-2 the order of turns."""
    assert set(placed(run(**scenario))) == want_placed


def test_strict_order_holds_by_model() -> None:
    """QUEUE-2 behind a head that waits for H100 nobody of the queue gets one, but an A100."""
    result = run(
        nodes=[node("n1", 1), node("n2", 1, model="A100")],
        claims=[claim("h", 2, "H100"), claim("any")],
        queues=[
            queue(
                "a",
                quota(5, models=H100, weight=0),
                quota(0, models=A100, weight=0),
                queueingStrategy="StrictFIFO",
            )
        ],
        pods=[
            pod("first", queue="a", claim="h"),
            pod("second", queue="a", claim="any"),
            pod("third", queue="a", claim="any"),
        ],
    )
    assert placed(result) == {"second": "n2"}
    assert set(why(result)) == {"first", "third"}
    assert [one.node for one in result.decisions] == [None, "n2", None]


def test_strict_order_in_a_gang_of_two_models() -> None:
    """QUEUE-2 a gang that needs both models waits as soon as one of its turns has ended."""
    result = run(
        nodes=[node("n1", 1), node("n2", 1, model="A100")],
        claims=[claim("big", 2, "H100"), claim("h", 1, "H100"), claim("a", 1, "A100")],
        gangs=[gang("ring", 2)],
        queues=[
            queue("q", quota(9, models=H100), quota(0, models=A100, weight=0), queueingStrategy="StrictFIFO"),
        ],
        pods=[
            pod("head", queue="q", claim="big"),
            pod("r-0", queue="q", claim="h", gang="ring"),
            pod("r-1", queue="q", claim="a", gang="ring"),
        ],
    )
    assert placed(result) == {}
    assert why(result)["r-0"] == why(result)["r-1"] == "waits behind others in queue q"


def test_members_above_the_least_never_go_before_their_gang() -> None:
    """CLAIM-8 also where they ask for another model, whose turn comes first."""
    claims = [claim("h", 2, "H100", gangRef="ring"), claim("a", 1, "A100", gangRef="ring")]
    some = [pod("r-0", queue="q", claim="h"), pod("r-1", queue="q", claim="h"), pod("above", queue="q", claim="a")]
    queues = [queue("q", *TWO_MODELS)]
    small = [node("n1", 2), node("n2", 1, model="A100")]
    result = run(nodes=small, claims=claims, gangs=[gang("ring", 2)], queues=queues, pods=some)
    assert placed(result) == {}
    assert set(why(result).values()) == {"room for 1 of 2 pods of ring"}
    result = run(nodes=[*small, node("n3", 2)], claims=claims, gangs=[gang("ring", 2)], queues=queues, pods=some)
    assert set(placed(result)) == {"r-0", "r-1", "above"}


def test_quota_comes_before_nodes() -> None:
    """QUEUE-5 a gang of two models, one of them beyond its limit, says so, and not that a node lacks room."""
    result = run(
        nodes=[node("n1", 1), node("n2", 1, model="A100")],
        claims=[claim("h", 1, "H100", gangRef="ring"), claim("a", 1, "A100", gangRef="ring")],
        gangs=[gang("ring", 2)],
        queues=[queue("q", quota(0, models=H100), quota(0, limit=0, models=A100))],
        pods=[pod("r-0", queue="q", claim="h"), pod("r-1", queue="q", claim="a")],
    )
    assert set(why(result).values()) == {"queue q holds 0 of its limit of 0 A100"}


def test_the_engine_is_offered_only_models_that_the_quota_lets_in() -> None:
    """QUEUE-1 a pod for any model goes where its queue has room yet."""
    result = run(
        nodes=[node("n1", 4), node("n2", 4, model="A100")],
        claims=[claim("any")],
        queues=[queue("q", quota(0, limit=1, models=H100), quota(0, limit=2, models=A100))],
        pods=[pod(f"p{number}", queue="q", claim="any") for number in range(4)],
    )
    assert sorted(placed(result).values()) == ["n1", "n2", "n2"]


def test_what_is_not_preemptible_stays_within_what_each_ancestor_deserves() -> None:
    """QUEUE-1 the parent deserves two, and a child's sibling holds them."""
    result = run(
        nodes=[node("n1", 8)],
        queues=[queue("org", quota(2)), queue("a", quota(2), parent="org"), queue("b", quota(2), parent="org")],
        pods=[
            pod("a-runs", 2, queue="a", on="n1:0,1", preemptible=False),
            pod("b", queue="b", preemptible=False),
            pod("free", queue="b"),
        ],
    )
    assert set(placed(result)) == {"free"}
    assert why(result)["b"].startswith("queue org holds 2 of the 2 GPUs that it deserves")


@pytest.mark.parametrize(
    "labels",
    [
        pytest.param({"gpu.scheduling/preemptible": "false"}, id="ours"),
        pytest.param({"kai.scheduler/preemptibility": "non-preemptible"}, id="KAI's"),
    ],
)
def test_labels_of_what_is_not_preemptible(labels: dict[str, str]) -> None:
    """QUEUE-3 such a pod stays where a preemptible one would go."""
    held = pod("held", queue="a", on="n1:0")
    taker = pod("taker", queue="b")
    queues = [queue("a", quota(0)), queue("b", quota(1))]
    assert set(placed(run(nodes=[node("n1", 1)], queues=queues, pods=[held, taker]))) == {"taker"}
    held["metadata"]["labels"] |= labels
    assert placed(run(nodes=[node("n1", 1)], queues=queues, pods=[held, taker])) == {}


PAST_DESERVED = (
    "queue a holds 2 of the 2 GPUs that it deserves with pods that are not preemptible, and 1 more are asked for"
)


def member(number: int, **about: Any) -> Manifest:
    """A pod of the gang `ring` that runs."""
    return pod(f"r-{number}", gang="ring", queue="a", on=f"n1:{number}", **about)


@pytest.mark.parametrize(
    ("members", "want"),
    [
        pytest.param(
            [member(0, preemptible=False), member(1)],
            {"fixed": PAST_DESERVED},
            id="a gang with one such pod",
        ),
        pytest.param(
            [member(0), member(1), member(2, preemptible=False)],
            {},
            id="a pod above minMember is a workload of its own",
        ),
        pytest.param(
            [member(0, preemptible=False, leaving=True), member(1)],
            {},
            id="one that leaves counts no more",
        ),
    ],
)
def test_a_gang_that_runs_counts_as_it_was_admitted(members: list[Manifest], want: dict[str, str]) -> None:
    """QUEUE-1 one pod that is not preemptible makes its gang so: what the queue deserves is not passed by pieces."""
    result = run(
        nodes=[node("n1", 8)],
        gangs=[gang("ring", 2)],
        queues=[queue("a", quota(2))],
        pods=[*members, pod("fixed", queue="a", preemptible=False)],
    )
    assert why(result) == want
