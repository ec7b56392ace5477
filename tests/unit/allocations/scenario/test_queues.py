"""Queues in scenarios: order, fair shares, limits, reclaim and preemption."""

from __future__ import annotations

import json

import msgspec
import pytest

from access.errors import BadInput
from allocations.scenario import parse_scenario
from tests.unit.allocations.scenario.queues import evicted, node, placed, pod, pods, queue, quota, run, waits, why

TWO = [queue("a", quota(4)), queue("b", quota(4))]


def test_all_pods_are_there_from_the_start() -> None:
    """VIEW-4 the queue below its share goes first, wherever its pods stand in the file."""
    result = run(
        nodes=[node("n1", 2)],
        queues=[queue("a", quota(1)), queue("b", quota(1))],
        pods=[*pods(2, "a", queue="a"), pod("b", queue="b")],
    )
    assert set(placed(result)) == {"a-0", "b"}


def test_the_answer_has_the_shape_of_the_contract() -> None:
    """VIEW-4 evictions, queues and waits_for, as JSON."""
    result = run(
        nodes=[node("n1", 1)],
        queues=[queue("a", quota(0)), queue("b", quota(1, limit=1.5, models=()))],
        pods=[pod("old", queue="a", on="n1:0"), pod("new", queue="b")],
    )
    answer = msgspec.json.decode(msgspec.json.encode(result))
    assert answer["evictions"] == [{"pod": "default/old", "for": "default/new", "by": "reclaim"}]
    assert answer["queues"] == {
        "a": [{"models": [], "deserved": 0, "limit": None, "fair_share": 0, "allocated": 0}],
        "b": [{"models": [], "deserved": 1, "limit": 1.5, "fair_share": 1, "allocated": 1}],
        "default": [{"models": [], "deserved": 0, "limit": None, "fair_share": 0, "allocated": 0}],
    }
    (decision,) = answer["decisions"]
    assert decision["waits_for"] == ["default/old"]
    assert decision["devices"][0]["uuid"] == "GPU-n1-0"
    assert decision["summary"].endswith("; waits for 1 pod that is being evicted")
    assert answer["fleet"]["n1"] == [{"uuid": "GPU-n1-0", "core_used": 100, "memory_used": 80 << 30}]


def test_a_limit_is_named() -> None:
    """One reason, before any of a node."""
    result = run(
        nodes=[node("n1", 8)],
        queues=[queue("research", quota(0, limit=2, models=("H100",)))],
        pods=[*pods(2, "r", queue="research"), pod("third", queue="research"), pod("big", 2, queue="research")],
    )
    assert why(result) == {
        "third": "queue research holds 2 of its limit of 2 H100",
        "big": "queue research holds 2 of its limit of 2 H100",
    }


def test_a_limit_that_leaves_too_little() -> None:
    result = run(
        nodes=[node("n1", 8)],
        queues=[queue("research", quota(0, limit=2))],
        pods=[pod("one", queue="research"), pod("two", 2, queue="research")],
    )
    assert why(result) == {"two": "queue research holds 1 of its limit of 2 GPUs, and 2 are asked for"}


def test_a_parents_limit_bounds_its_children() -> None:
    result = run(
        nodes=[node("n1", 8)],
        queues=[
            queue("org", quota(0, limit=3)),
            queue("a", quota(0), parent="org"),
            queue("b", quota(0), parent="org"),
        ],
        pods=[*pods(2, "a", queue="a"), *pods(2, "b", queue="b")],
    )
    assert len(placed(result)) == 3
    assert list(why(result).values()) == ["queue org holds 3 of its limit of 3 GPUs"]


def test_what_is_not_preemptible_stays_within_deserved() -> None:
    result = run(
        nodes=[node("n1", 8)],
        queues=[queue("a", quota(1))],
        pods=[*pods(2, "fixed", queue="a", preemptible=False), pod("free", queue="a")],
    )
    assert set(placed(result)) == {"fixed-0", "free"}
    assert why(result)["fixed-1"].startswith("queue a holds 1 of the 1 GPUs that it deserves with pods that are not")


def test_a_limit_below_deserved_holds() -> None:
    """QUEUE-1 of four deserved the queue gets the two of its limit, and its share is no more."""
    result = run(nodes=[node("n1", 8)], queues=[queue("a", quota(4, limit=2))], pods=pods(4, "a", queue="a"))
    assert len(placed(result)) == 2
    assert (result.queues["a"][0].fair_share, result.queues["a"][0].allocated) == (2, 2)


def test_shares_count_by_their_larger_part() -> None:
    """A share by memory counts what it takes of the device; RDMA would count nothing."""
    result = run(
        nodes=[node("n1", 2)],
        queues=[queue("a", quota(0, limit=0.75))],
        pods=[pod("half", memory="40Gi", queue="a"), pod("more", memory="40Gi", queue="a")],
    )
    assert set(placed(result)) == {"half"}
    assert result.queues["a"][0].allocated == 0.5


def test_a_share_of_which_the_annotation_alone_tells() -> None:
    """QUEUE-1 half a GPU counts a half, whatever the running pod's spec says of it."""
    half = pod("half", 0, queue="a", on="n1:0")
    given = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
    told = {"gpu": [{"minor": 0, "resources": given}]}
    half["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-allocated": json.dumps(told)}
    result = run(nodes=[node("n1", 1)], queues=[queue("a", quota(0))], pods=[half])
    assert result.queues["a"][0].allocated == 0.5


def test_a_head_that_waits_for_one_model_holds_back_nothing_of_another() -> None:
    models = [node("n1", 1), node("n2", 1, model="A100")]
    claims = [
        {"metadata": {"name": name}, "spec": {"devices": {"count": count, "model": [name.upper()]}}}
        for name, count in (("h100", 2), ("a100", 1))
    ]
    quotas = (quota(1, models=("H100",)), quota(1, models=("A100",)))
    result = run(
        nodes=models,
        claims=claims,
        queues=[queue("a", *quotas, queueingStrategy="StrictFIFO")],
        pods=[pod("first", queue="a", claim="h100"), pod("second", queue="a", claim="a100")],
    )
    assert set(placed(result)) == {"second"}


def test_strict_fifo_ends_the_turn_of_its_queue() -> None:
    result = run(
        nodes=[node("n1", 2)],
        queues=[queue("a", quota(2), queueingStrategy="StrictFIFO")],
        pods=[pod("big", 4, queue="a"), pod("small", queue="a"), pod("next", queue="a")],
    )
    assert placed(result) == {}
    assert why(result)["small"] == "second in queue a"
    assert why(result)["next"] == "third in queue a"


def test_best_effort_goes_on_behind_a_head_that_cannot() -> None:
    result = run(
        nodes=[node("n1", 2)],
        queues=[queue("a", quota(2))],
        pods=[pod("big", 4, queue="a"), pod("small", queue="a")],
    )
    assert set(placed(result)) == {"small"}


def test_in_a_queue_priority_goes_before_age() -> None:
    result = run(
        nodes=[node("n1", 1)],
        queues=[queue("a", quota(1))],
        pods=[pod("early", queue="a"), pod("urgent", queue="a", priority=10)],
    )
    assert set(placed(result)) == {"urgent"}


def test_dated_pods_are_older_than_those_without_a_date() -> None:
    result = run(
        nodes=[node("n1", 1)],
        queues=[queue("a", quota(1))],
        pods=[pod("undated", queue="a"), pod("dated", queue="a", created="2026-01-01T00:00:00Z")],
    )
    assert set(placed(result)) == {"dated"}


def test_of_queues_beyond_their_share_the_one_with_less_goes_first() -> None:
    """Three to one by weight: of eight GPUs six and two."""
    result = run(
        nodes=[node("n1", 8)],
        queues=[queue("a", quota(0, weight=3)), queue("b", quota(0, weight=1))],
        pods=[*pods(8, "a", queue="a"), *pods(8, "b", queue="b")],
    )
    assert sum(name.startswith("a") for name in placed(result)) == 6
    assert result.queues["a"][0].fair_share == 6


def test_priority_of_queues_decides_over_what_is_left() -> None:
    result = run(
        nodes=[node("n1", 4)],
        queues=[queue("a", quota(1)), queue("b", quota(1), priority=200)],
        pods=[*pods(4, "a", queue="a"), *pods(4, "b", queue="b")],
    )
    assert sum(name.startswith("b") for name in placed(result)) == 3


def test_reclaim_takes_from_a_queue_above_its_fair_share() -> None:
    """Only as many as are needed, the newest first."""
    result = run(
        nodes=[node("n1", 4)],
        queues=[queue("a", quota(2)), queue("b", quota(2))],
        pods=[*[pod(f"a-{n}", queue="a", on=f"n1:{n}") for n in range(4)], *pods(3, "b", queue="b")],
    )
    assert evicted(result) == [("a-3", "b-0", "reclaim"), ("a-2", "b-1", "reclaim")]
    assert set(placed(result)) == {"b-0", "b-1"}
    assert waits(result) == {"b-0": ("a-3",), "b-1": ("a-2",)}


def test_nothing_is_reclaimed_from_a_queue_within_its_share() -> None:
    result = run(
        nodes=[node("n1", 2)],
        queues=TWO,
        pods=[pod("a-0", queue="a", on="n1:0"), pod("a-1", queue="a", on="n1:1"), pod("b", queue="b")],
    )
    assert result.evictions == ()
    assert placed(result) == {}


def test_within_deserved_takes_from_above_deserved() -> None:
    """Also where the other stays within its fair share."""
    result = run(
        nodes=[node("n1", 3)],
        queues=[queue("a", quota(1), priority=200), queue("b", quota(1))],
        pods=[*[pod(f"a-{n}", queue="a", on=f"n1:{n}") for n in range(3)], pod("b", queue="b")],
    )
    assert evicted(result) == [("a-2", "b", "reclaim")]


def test_a_taker_beyond_its_fair_share_takes_nothing() -> None:
    result = run(
        nodes=[node("n1", 4)],
        queues=[queue("a", quota(2)), queue("b", quota(2))],
        pods=[*[pod(f"a-{n}", queue="a", on=f"n1:{n}") for n in range(4)], pod("b", 3, queue="b")],
    )
    assert result.evictions == ()


def test_what_is_not_preemptible_stays() -> None:
    result = run(
        nodes=[node("n1", 2)],
        queues=[queue("a", quota(0)), queue("b", quota(2))],
        pods=[
            pod("fixed", queue="a", on="n1:0", preemptible=False),
            pod("free", queue="a", on="n1:1"),
            *pods(2, "b", queue="b"),
        ],
    )
    assert evicted(result) == [("free", "b-0", "reclaim")]


def test_nobody_goes_where_that_would_not_suffice() -> None:
    """Two GPUs on one node are needed, and one of each is reclaimable."""
    result = run(
        nodes=[node("n1", 2), node("n2", 2)],
        queues=[queue("a", quota(2)), queue("b", quota(2))],
        pods=[
            pod("keeps-1", queue="a", on="n1:0", preemptible=False),
            pod("goes-1", queue="a", on="n1:1"),
            pod("keeps-2", queue="a", on="n2:0", preemptible=False),
            pod("goes-2", queue="a", on="n2:1"),
            pod("b", 2, queue="b"),
        ],
    )
    assert result.evictions == ()
    assert placed(result) == {}


def test_preemption_in_a_queue_takes_lower_priority_alone() -> None:
    result = run(
        nodes=[node("n1", 2)],
        queues=[queue("a", quota(2))],
        pods=[
            pod("low", queue="a", on="n1:0", priority=1),
            pod("even", queue="a", on="n1:1", priority=5),
            *pods(2, "new", queue="a", priority=5),
        ],
    )
    assert evicted(result) == [("low", "new-0", "preempt")]
    assert set(placed(result)) == {"new-0"}


def test_reclaim_comes_before_preemption() -> None:
    result = run(
        nodes=[node("n1", 2)],
        queues=[queue("a", quota(2)), queue("b", quota(0))],
        pods=[
            pod("own", queue="a", on="n1:0", priority=1),
            pod("other", queue="b", on="n1:1", priority=3),
            pod("new", queue="a", priority=5),
        ],
    )
    assert evicted(result) == [("other", "new", "reclaim")]


def test_both_together_where_neither_suffices() -> None:
    result = run(
        nodes=[node("n1", 2)],
        queues=[queue("a", quota(2)), queue("b", quota(0))],
        pods=[
            pod("own", queue="a", on="n1:0", priority=1),
            pod("other", queue="b", on="n1:1", priority=3),
            pod("new", 2, queue="a", priority=5),
        ],
    )
    assert sorted(evicted(result)) == [("other", "new", "reclaim"), ("own", "new", "preempt")]


def test_preemption_brings_a_limit_down() -> None:
    """There is room on the nodes; the queue's limit is what stands in the way."""
    result = run(
        nodes=[node("n1", 8)],
        queues=[queue("a", quota(0, limit=1))],
        pods=[pod("low", queue="a", on="n1:0"), pod("new", queue="a", priority=5)],
    )
    assert evicted(result) == [("low", "new", "preempt")]
    assert waits(result) == {"new": ("low",)}


def test_a_limit_is_brought_down_on_a_node_where_the_taker_may_not_be() -> None:
    """QUEUE-3 the victim's device helps nobody; its going lets the other have one that is free."""
    result = run(
        nodes=[node("n1", 1, zone="x"), node("n2", 1, zone="y")],
        queues=[queue("a", quota(0, limit=1))],
        pods=[pod("low", queue="a", on="n1:0"), pod("new", queue="a", priority=5, selector={"zone": "y"})],
    )
    assert evicted(result) == [("low", "new", "preempt")]
    assert placed(result) == {"new": "n2"}


def test_a_limit_and_a_lack_of_devices_at_once() -> None:
    """The one below the limit is evicted for it, on the wrong node; the other for its devices."""
    result = run(
        nodes=[node("n1", 1, zone="x"), node("n2", 1, zone="y")],
        queues=[queue("a", quota(1, limit=1)), queue("b", quota(0))],
        pods=[
            pod("own", queue="a", on="n1:0"),
            pod("other", queue="b", on="n2:0"),
            pod("new", queue="a", priority=5, selector={"zone": "y"}),
        ],
    )
    assert sorted(evicted(result)) == [("other", "new", "reclaim"), ("own", "new", "preempt")]


def test_who_fits_beside_a_pod_that_leaves_waits_for_nobody() -> None:
    """Half a GPU is free now; the other half is held by a pod that is being deleted."""
    result = run(
        nodes=[node("n1", 1)],
        queues=[queue("a", quota(1))],
        pods=[
            pod("leaves", memory="40Gi", queue="a", on="n1:0", leaving=True),
            pod("new", memory="40Gi", queue="a"),
        ],
    )
    assert set(placed(result)) == {"new"}
    assert waits(result) == {}


def test_pods_that_leave_already_come_free_before_anybody_is_evicted() -> None:
    result = run(
        nodes=[node("n1", 2)],
        queues=[queue("a", quota(0)), queue("b", quota(2))],
        pods=[
            pod("leaves", queue="a", on="n1:0", leaving=True),
            pod("stays", queue="a", on="n1:1"),
            pod("b", queue="b"),
        ],
    )
    assert result.evictions == ()
    assert waits(result) == {"b": ("leaves",)}


def test_whoever_need_not_go_stays() -> None:
    """The newest is chosen first and helps nothing: its node has room for one, and two are asked for."""
    result = run(
        nodes=[node("n1", 2), node("n2", 1)],
        queues=[queue("a", quota(0)), queue("b", quota(3))],
        pods=[
            pod("a-0", queue="a", on="n1:0"),
            pod("a-1", queue="a", on="n1:1"),
            pod("a-2", queue="a", on="n2:0"),
            pod("b", 2, queue="b"),
        ],
    )
    assert sorted(evicted(result)) == [("a-0", "b", "reclaim"), ("a-1", "b", "reclaim")]


def test_a_queue_by_namespace() -> None:
    result = run(
        nodes=[node("n1", 8)],
        queues=[queue("a", quota(0, limit=0), namespaces=["team"]), queue("b", quota(0, limit=0))],
        pods=[pod("theirs", namespace="team"), pod("labelled", namespace="team", queue="b"), pod("nobodys")],
    )
    assert set(placed(result)) == {"nobodys"}
    assert why(result)["team/theirs"].startswith("queue a ")
    assert why(result)["team/labelled"].startswith("queue b ")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("none", "queue none does not exist", id="unknown"),
        pytest.param("org", "queue org has queues below it; only those take pods", id="not a leaf"),
    ],
)
def test_a_queue_that_takes_no_pods(name: str, reason: str) -> None:
    queues = [queue("org", quota(1)), queue("team", quota(1), parent="org")]
    assert why(run(nodes=[node("n1")], queues=queues, pods=[pod("p", queue=name)])) == {"p": reason}


@pytest.mark.parametrize(
    ("queues", "field", "rule"),
    [
        pytest.param([queue("a", parent="x")], "queues[0]", "parent", id="unknown parent"),
        pytest.param([queue("a", parent="b"), queue("b", parent="a")], "queues[0]", "cycle", id="cycle"),
        pytest.param(
            [queue("a", namespaces=["x"]), queue("b", namespaces=["x"])], "queues[1]", "namespace", id="namespace twice"
        ),
        pytest.param(
            [queue("a", quota(1)), queue("b", quota(2), parent="a")], "queues[1]", "deserved", id="above its parent"
        ),
        pytest.param([queue("a"), queue("a")], "queues[1].metadata.name", "duplicate", id="name twice"),
        pytest.param(
            [queue("a", quota(models=("H100",))), queue("b", quota(models=("H100", "A100")))],
            "queues[1]",
            "models",
            id="other groups of models",
        ),
        pytest.param([queue("a", quota(-1))], "queues[0].spec.quotas[0].deserved", "schema", id="negative"),
        pytest.param([queue("a", queueingStrategy="x")], "queues[0].spec.queueingStrategy", "schema", id="strategy"),
        pytest.param([queue("A b")], "queues[0].metadata.name", "dns-subdomain", id="name"),
        pytest.param([{"metadata": {}}], "queues[0].metadata.name", "dns-subdomain", id="no name"),
    ],
)
def test_malformed_queues(queues: list[object], field: str, rule: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_scenario({"queues": queues})
    assert (refused.value.field, refused.value.rule) == (field, rule)
