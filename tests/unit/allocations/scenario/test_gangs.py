"""Gangs in scenarios: all or none, topology, fewest nodes, and what evictions do to them."""

from __future__ import annotations

import pytest

from access.errors import BadInput
from allocations.scenario import parse_scenario
from tests.unit.allocations.scenario.queues import evicted, gang, node, placed, pod, pods, queue, quota, run, waits, why

RACK = {"topology": {"required": "rack"}}
NEAR = {"topology": {"preferred": "rack"}}


def test_a_gang_waits_until_its_members_are_there() -> None:
    result = run(nodes=[node("n1")], gangs=[gang("ring", 3)], pods=pods(2, "r", gang="ring"))
    assert why(result) == dict.fromkeys(["r-0", "r-1"], "gang ring: 2 of 3 pods are there")
    assert all(not devices.core_used for devices in result.fleet["n1"])


def test_a_gang_that_does_not_exist() -> None:
    assert why(run(nodes=[node("n1")], pods=[pod("p", gang="ring")])) == {"p": "GpuGang ring does not exist"}


def test_all_of_a_gang_or_none() -> None:
    """Three pods of four GPUs do not fit on eight; what they leave is for others."""
    result = run(nodes=[node("n1")], gangs=[gang("ring", 3)], pods=[*pods(3, "r", 4, gang="ring"), pod("lone", 8)])
    assert placed(result) == {"lone": "n1"}
    assert why(result)["r-0"] == "room for 2 of 3 pods of ring"


def test_a_gang_is_decided_when_its_last_needed_pod_comes() -> None:
    """Without queues pods go in the order of the file."""
    result = run(
        nodes=[node("n1", 4)],
        gangs=[gang("ring", 2)],
        pods=[pod("r-0", 2, gang="ring"), pod("between", 2), pod("r-1", 2, gang="ring"), pod("after", 2)],
    )
    assert set(placed(result)) == {"between", "after"}


def test_members_above_the_least_come_one_by_one() -> None:
    result = run(nodes=[node("n1", 3)], gangs=[gang("ring", 2)], pods=pods(4, "r", gang="ring"))
    assert set(placed(result)) == {"r-0", "r-1", "r-2"}


def test_a_claim_names_the_gang() -> None:
    claim = {"metadata": {"name": "c"}, "spec": {"devices": {"count": 1}, "gangRef": "ring"}}
    some = [pod(f"r-{number}", claim="c") for number in range(2)]
    assert len(placed(run(nodes=[node("n1")], claims=[claim], gangs=[gang("ring", 2)], pods=some))) == 2
    assert placed(run(nodes=[node("n1")], claims=[claim], gangs=[gang("ring", 3)], pods=some)) == {}


def test_running_members_count() -> None:
    result = run(
        nodes=[node("n1", 2)],
        gangs=[gang("ring", 2)],
        pods=[pod("r-0", gang="ring", on="n1:0"), pod("r-1", gang="ring")],
    )
    assert set(placed(result)) == {"r-1"}


def test_equal_pods_stand_on_the_fewest_nodes() -> None:
    """Eight pods of two on nodes with 8, 6, 4 and 2 free: the first three would do, so would 8, 6 and 2."""
    nodes = [node("a", 2), node("b", 4), node("c", 6), node("d", 8)]
    result = run(nodes=nodes, gangs=[gang("ring", 8)], pods=pods(8, "r", 2, gang="ring"))
    assert set(placed(result).values()) == {"a", "c", "d"}


def test_unequal_pods_stand_on_the_fewest_nodes() -> None:
    """Five, three, four and four of eight: two nodes, if the five stand with the three."""
    some = [pod(f"r-{number}", count, gang="ring") for number, count in enumerate((3, 4, 5, 4))]
    result = run(nodes=[node("n1"), node("n2"), node("n3")], gangs=[gang("ring", 4)], pods=some)
    assert len(set(placed(result).values())) == 2


def test_a_required_topology() -> None:
    nodes = [node("a1", rack="a"), node("a2", rack="a"), node("b1", rack="b"), node("none")]
    result = run(nodes=nodes, gangs=[gang("ring", 2, **RACK)], pods=pods(2, "r", 8, gang="ring"))
    assert set(placed(result).values()) == {"a1", "a2"}


def test_no_value_of_a_required_topology_has_room() -> None:
    nodes = [node("n1", rack="a01"), node("n2", rack="b01"), node("n3")]
    result = run(nodes=nodes, gangs=[gang("ring", 2, **RACK)], pods=pods(2, "r", 8, gang="ring"))
    assert set(why(result).values()) == {"no 2 nodes of one rack with 8 free H100; best: rack a01 with 1"}


def test_members_join_those_that_run() -> None:
    nodes = [node("a1", 1, rack="a"), node("b1", 8, rack="b"), node("b2", 8, rack="b")]
    some = [pod("r-0", 8, gang="ring", on="b1:0,1,2,3,4,5,6,7"), pod("r-1", gang="ring")]
    assert placed(run(nodes=nodes, gangs=[gang("ring", 2, **RACK)], pods=some)) == {"r-1": "b2"}


def test_a_preferred_topology_takes_few_values() -> None:
    nodes = [
        node(f"{rack}{number}", 1, rack=rack)
        for rack, count in (("a", 2), ("b", 3), ("c", 1))
        for number in range(count)
    ]
    three = run(nodes=nodes, gangs=[gang("ring", 3, **NEAR)], pods=pods(3, "r", gang="ring"))
    assert {name[0] for name in placed(three).values()} == {"b"}
    five = run(nodes=nodes, gangs=[gang("ring", 5, **NEAR)], pods=pods(5, "r", gang="ring"))
    assert {name[0] for name in placed(five).values()} == {"a", "b"}


def test_a_node_without_the_label_is_a_value_of_its_own() -> None:
    nodes = [node("a", 1), node("b", 1), node("c", 1, rack="r"), node("d", 1, rack="r")]
    result = run(nodes=nodes, gangs=[gang("ring", 2, **NEAR)], pods=pods(2, "r", gang="ring"))
    assert set(placed(result).values()) == {"c", "d"}


def test_rules_of_the_pods_hold_in_gangs() -> None:
    nodes = [node("n1", zone="x"), node("n2", zone="y")]
    some = pods(2, "r", 4, gang="ring", selector={"zone": "y"})
    assert set(placed(run(nodes=nodes, gangs=[gang("ring", 2)], pods=some)).values()) == {"n2"}


def test_two_gangs_do_not_block_each_other() -> None:
    """Each wants both nodes; one gets them."""
    some = [pod(f"{name}-{number}", 8, gang=name, queue="q") for number in range(2) for name in ("a", "b")]
    result = run(nodes=[node("n1"), node("n2")], gangs=[gang("a", 2), gang("b", 2)], queues=[queue("q")], pods=some)
    assert set(placed(result)) == {"a-0", "a-1"}


def test_a_gang_in_a_queue_is_one_workload() -> None:
    result = run(
        nodes=[node("n1")],
        gangs=[gang("ring", 3)],
        queues=[queue("q", quota(0, limit=2))],
        pods=pods(3, "r", gang="ring", queue="q"),
    )
    assert set(why(result).values()) == {"queue q holds 0 of its limit of 2 GPUs, and 3 are asked for"}


def test_each_gang_has_its_own_reason() -> None:
    """Also where another has just been refused for the same."""
    some = [pod(f"{name}-{number}", 8, gang=name, queue="q") for name in ("a", "b") for number in range(2)]
    result = run(nodes=[node("n1")], gangs=[gang("a", 2), gang("b", 2)], queues=[queue("q", quota())], pods=some)
    assert why(result) == {
        one["metadata"]["name"]: f"room for 1 of 2 pods of {one['metadata']['name'][0]}" for one in some
    }


def test_a_gang_below_its_least_asks_its_queue_for_nothing() -> None:
    result = run(
        nodes=[node("n1", 4)],
        gangs=[gang("ring", 3)],
        queues=[queue("a", quota()), queue("b", quota())],
        pods=[*pods(2, "r", gang="ring", queue="a"), *pods(4, "b", queue="b")],
    )
    assert result.queues["a"][0].fair_share == 0
    assert len(placed(result)) == 4


def test_members_above_the_least_wait_behind_the_gang() -> None:
    """A third pod that alone would fit does not go while the gang cannot."""
    result = run(
        nodes=[node("n1", 3)],
        gangs=[gang("ring", 2)],
        queues=[queue("q")],
        pods=[*pods(2, "r", 2, gang="ring", queue="q"), pod("r-2", 1, gang="ring", queue="q")],
    )
    assert placed(result) == {}
    assert why(result)["r-2"] == why(result)["r-0"] == "room for 1 of 2 pods of ring"


def test_members_above_the_least_are_evicted_first() -> None:
    result = run(
        nodes=[node("n1", 3)],
        gangs=[gang("ring", 2)],
        queues=[queue("a", quota(0)), queue("b", quota(3))],
        pods=[*[pod(f"r-{n}", gang="ring", queue="a", on=f"n1:{n}") for n in range(3)], pod("b", queue="b")],
    )
    assert evicted(result) == [("r-2", "b", "reclaim")]


def test_the_rest_of_a_gang_goes_whole() -> None:
    result = run(
        nodes=[node("n1", 3)],
        gangs=[gang("ring", 2)],
        queues=[queue("a", quota(0)), queue("b", quota(3))],
        pods=[*[pod(f"r-{n}", gang="ring", queue="a", on=f"n1:{n}") for n in range(3)], pod("b", 2, queue="b")],
    )
    assert sorted(evicted(result)) == [(f"r-{number}", "b", "reclaim") for number in range(3)]


def test_a_gang_takes_from_others_as_one() -> None:
    result = run(
        nodes=[node("n1", 2)],
        gangs=[gang("ring", 2)],
        queues=[queue("a", quota(0)), queue("b", quota(2))],
        pods=[
            pod("a-0", queue="a", on="n1:0"),
            pod("a-1", queue="a", on="n1:1"),
            *pods(2, "r", gang="ring", queue="b"),
        ],
    )
    assert sorted(evicted(result)) == [("a-0", "ring", "reclaim"), ("a-1", "ring", "reclaim")]
    assert waits(result) == {"r-0": ("a-0", "a-1"), "r-1": ("a-0", "a-1")}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({}, "gangs[0].spec", id="no minMember"),
        pytest.param({"minMember": 0}, "gangs[0].spec.minMember", id="too few"),
        pytest.param({"minMember": "2"}, "gangs[0].spec.minMember", id="text"),
        pytest.param({"minMember": 1, "topology": {}}, "gangs[0].spec.topology", id="empty topology"),
        pytest.param({"minMember": 1, "timeoutSeconds": 0}, "gangs[0].spec.timeoutSeconds", id="no time"),
        pytest.param({"minMember": 1, "onMemberFailure": "x"}, "gangs[0].spec.onMemberFailure", id="no such answer"),
    ],
)
def test_malformed_gangs(spec: dict[str, object], field: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_scenario({"gangs": [{"metadata": {"name": "g"}, "spec": spec}]})
    assert refused.value.field == field
