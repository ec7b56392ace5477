"""The plan of growth: exact for few pods, near the bound for many, and its invariants on any input."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocations.engine.growth import ComingNode, Demand, Growth, GrowthInput, Need, Pool, grow
from allocations.engine.growth.shapes import Shape
from allocations.engine.queueing.workloads import Age, Member
from claims.dialects.request import DeviceRequest, Policy
from tests.builders import GI, H100_BYTES, fleet, node, request, share, whole


def need(place: int, asked: DeviceRequest, **about: Any) -> Need:
    """A pod `p<place>`."""
    return Need(Member(f"p{place}", asked, Age(True, "", place)), **about)


def lone(place: int, asked: DeviceRequest, **about: Any) -> Demand:
    """It alone."""
    return Demand(f"p{place}", (need(place, asked, **about),))


def asked_of(requests: list[DeviceRequest], *pools: Pool, coming: tuple[ComingNode, ...] = ()) -> Growth:
    """The plan for lone pods from no node."""
    demands = tuple(lone(place, one) for place, one in enumerate(requests))
    return grow(GrowthInput(fleet(), [], pools, demands, coming))


def pool(name: str = "a", gpus: int = 8, **about: Any) -> Pool:
    """A pool of H100 nodes."""
    return Pool(name, node(name, gpus=gpus), **about)


def fewest_nodes(sizes: tuple[int, ...], capacity: int) -> int:
    """Bins by trying every subset for the bin of the first item."""

    @cache
    def bins(left: tuple[int, ...]) -> int:
        if not left:
            return 0
        first, others = left[0], left[1:]
        best = len(left)
        for count in range(len(others) + 1):
            for chosen in combinations(range(len(others)), count):
                if first + sum(others[at] for at in chosen) <= capacity:
                    rest = tuple(size for at, size in enumerate(others) if at not in chosen)
                    best = min(best, 1 + bins(rest))
        return best

    return bins(tuple(sorted(sizes, reverse=True)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=9))
def test_whole_gpus_are_packed_exactly(sizes: list[int]) -> None:
    """SCALE-5 As few nodes as the best of all packings."""
    assert len(asked_of([whole(size) for size in sizes], pool()).new) == fewest_nodes(tuple(sizes), 8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([10, 20, 25, 30, 40, 50, 60, 70]), min_size=1, max_size=8))
def test_shares_are_packed_exactly(shares: list[int]) -> None:
    """On nodes of one GPU shares fill GPUs like bins."""
    plan = asked_of([share(core=one, ratio=one) for one in shares], pool(gpus=1))
    assert len(plan.new) == fewest_nodes(tuple(shares), 100)


def test_shares_that_best_fit_would_spread() -> None:
    """SCALE-5 40, 40 and four of 30 fill two GPUs only if no two of 40 share one."""
    plan = asked_of([share(core=one, ratio=one) for one in (40, 40, 30, 30, 30, 30)], pool(gpus=2))
    assert [one.gpus for one in plan.new] == [2]


def test_many_pods_are_within_one_node_of_the_bound() -> None:
    """SCALE-5 Random sizes, and those on which first fit is known to lose."""
    chance = random.Random(7)
    mixed = [chance.choice([1, 1, 2, 3, 4, 5, 6, 8]) for _ in range(400)]
    for sizes in (mixed, [4] * 30 + [3] * 60 + [2] * 90, [5] * 40 + [3] * 40 + [2] * 20 + [6] * 20):
        plan = asked_of([whole(size) for size in sizes], pool())
        assert len(plan.new) <= -(-sum(sizes) // 8) + 1
        assert sum(one.gpus for one in plan.new) == sum(sizes)


def test_coming_nodes_are_filled_before_any_is_made() -> None:
    coming = (ComingNode("x", 0), ComingNode("y", 0))
    plan = asked_of([whole(8), whole(4), whole(4)], pool(), coming=coming)
    assert [(one.coming, one.pods) for one in plan.nodes] == [("x", ("p0",)), ("y", ("p1", "p2"))]
    plan = asked_of([whole(2)], pool(), coming=coming)
    assert [(one.coming, one.pods) for one in plan.nodes] == [("x", ("p0",)), ("y", ())]
    assert plan.pool_of == {"p0": 0}


def test_pods_that_karpenter_sees_take_nodes_of_their_own_first() -> None:
    """They open none; a node of ours they get only as far as others leave it."""
    coming = (ComingNode("ours", 0), ComingNode("theirs", 0, ours=False))
    demands = (lone(0, whole(8), by_itself=True), lone(1, whole(6)), lone(2, whole(2), by_itself=True))
    plan = grow(GrowthInput(fleet(), [], (pool(),), demands, coming))
    assert [one.pods for one in plan.nodes] == [("p1", "p2"), ("p0",)]
    plan = grow(GrowthInput(fleet(), [], (pool(),), demands[:1]))
    assert (plan.nodes, plan.reasons) == ((), {"p0": "Karpenter makes a node for it without a trigger pod"})


def test_the_fleet_serves_first() -> None:
    fleet_ = fleet(node("n1", gpus=8, taken=range(4)))
    demands = (lone(0, whole(4)), lone(1, whole(4)))
    plan = grow(GrowthInput(fleet_, [{}], (pool(),), demands))
    assert (plan.on_fleet, [one.pods for one in plan.new]) == ({"p0": "n1"}, [("p1",)])


_REQUESTS = st.sampled_from(
    [
        whole(1),
        whole(2),
        whole(3),
        whole(4, policy=Policy.CONTIGUOUS),
        whole(8),
        share(core=50, ratio=50),
        share(core=30, memory=20 * GI),
        share(memory=H100_BYTES // 4),
        request(*whole(1).asks, policy=Policy.SPREAD),
        whole(2, models=("A100",)),
    ]
)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_invariants(data: st.DataObject) -> None:
    """Nothing twice, whole gangs, no pool above its limit, and every node's pods fit on an empty node of its shape."""
    pools = tuple(
        pool(name, gpus, weight=data.draw(st.integers(0, 1)), most=data.draw(st.sampled_from([None, 0, 1, 3])))
        for name, gpus in (("a", 8), ("b", 4), ("c", 2))
    )
    demands, place = [], 0
    for number in range(data.draw(st.integers(1, 6))):
        size = data.draw(st.sampled_from([1, 1, 2, 3]))
        needs = tuple(need(place + at, data.draw(_REQUESTS)) for at in range(size))
        demands.append(Demand(f"w{number}" if size > 1 else f"p{place}", needs))
        place += size
    there = fleet(node("n1", gpus=4, taken=range(data.draw(st.integers(0, 4)))))
    coming = (ComingNode("x", 0),) * data.draw(st.integers(0, 1))
    inputs = GrowthInput(there, [{}], pools, tuple(demands), coming)
    plan = grow(inputs)
    assert grow(inputs) == plan
    seated = [pod for one in plan.nodes for pod in one.pods]
    assert len(seated) == len(set(seated))
    everybody = {need.member.name for one in demands for need in one.needs}
    assert set(plan.pool_of) | set(plan.on_fleet) | set(plan.reasons) == everybody
    assert not set(plan.reasons) & (set(plan.pool_of) | set(plan.on_fleet))
    for one in demands:
        left = [need.member.name for need in one.needs if need.member.name in plan.reasons]
        assert len(left) in (0, len(one.needs))
    for at, limited in enumerate(pools):
        made = sum(new.pool == at for new in plan.new)
        assert limited.most is None or made <= limited.most
    assert all(new.pods for new in plan.new)
    sizes = {need.member.name: need.member.request for one in demands for need in one.needs}
    for filled in plan.nodes:
        shape = Shape(pools[filled.pool].node)
        amounts = [shape.demand(sizes[pod]) for pod in filled.pods]
        for asked, capacity in zip(zip(*amounts, strict=True), shape.capacity, strict=False):
            assert sum(asked) <= capacity


@pytest.mark.parametrize("most", [0, 1, 2])
def test_limits_of_pools(most: int) -> None:
    plan = asked_of([whole(8)] * 4, pool("a", most=most, weight=1), pool("b", most=1))
    assert [one.pool for one in plan.new] == [0] * most + [1]
    assert len(plan.reasons) == 3 - most
    assert set(plan.reasons.values()) == {"pools a, b may make no more nodes"}
