"""Who has to go: a table of cases, and what holds for any fleet."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocations.engine.plan import plan
from allocations.engine.victims import EvictionQuery, Holding, best_eviction, eviction_on
from claims.dialects.request import DeviceRequest, Policy
from tests.builders import H100_BYTES, HALF, device_id, fleet, full_mesh, halves, node, request, share, whole

FULL = (100, H100_BYTES)


def holding(
    name: str, priority: int, node_name: str, minors: list[int], *, since: float = 0.0, amount: Any = FULL
) -> Holding:
    held = tuple((device_id(node_name, "gpu", minor), *amount) for minor in minors)
    return Holding(name, priority, since, held)


def names(way: Any) -> list[str]:
    return [victim.pod_uid for victim in way.victims]


def machine(name: str, gpus: int, holdings: list[Holding], **about: Any) -> Any:
    used: dict[int, tuple[int, int]] = {}
    ids = {device_id(name, "gpu", minor): minor for minor in range(gpus)}
    for one in holdings:
        for device, core, memory in one.held:
            if device in ids:
                before = used.get(ids[device], (0, 0))
                used[ids[device]] = (before[0] + core, before[1] + memory)
    return node(name, gpus=gpus, used=used, **about)


@pytest.mark.parametrize(
    ("asked", "holders", "want"),
    [
        pytest.param(whole(1), [("a", 5, [0]), ("b", 1, [1])], ["b"], id="the lowest"),
        pytest.param(whole(1), [("a", 1, [0]), ("b", 1, [1])], ["b"], id="of equals the youngest"),
        pytest.param(whole(2), [("a", 1, [0]), ("b", 1, [1])], ["a", "b"], id="both, the most important first"),
        pytest.param(
            whole(2), [("a", 1, [0, 1]), ("b", 1, [2]), ("c", 1, [3])], ["a"], id="one that holds two, not two"
        ),
        pytest.param(
            whole(2),
            [("a", 9, [0, 1]), ("b", 1, [2]), ("c", 1, [3])],
            ["b", "c"],
            id="rather two low ones than a high one",
        ),
        pytest.param(whole(1), [("a", 1, [0, 1, 2])], ["a"], id="all that one holds"),
        pytest.param(whole(5), [("a", 1, [0])], None, id="more than there are"),
        pytest.param(whole(1), [("a", 1, [])], None, id="nobody who holds anything"),
    ],
)
def test_who_goes(asked: DeviceRequest, holders: list[tuple[str, int, list[int]]], want: list[str] | None) -> None:
    """The fewest and the least important; the others of the four GPUs are held by somebody who cannot go."""
    some = [
        holding(name, priority, "n1", minors, since=place) for place, (name, priority, minors) in enumerate(holders)
    ]
    taken = {minor for _, _, minors in holders for minor in minors}
    fixed = [holding("fixed", 99, "n1", [minor for minor in range(4) if minor not in taken])]
    question = EvictionQuery(fleet(machine("n1", 4, some + fixed, links=full_mesh(4))), asked)
    way = eviction_on(question, 0, some)
    assert (None if way is None else names(way)) == want
    best = best_eviction(question, {0: some})
    assert (None if best is None else names(best)) == want


def test_of_several_shares_that_one_whose_end_helps() -> None:
    """Of three sharers of two GPUs the one goes whose GPU then has room enough."""
    a = holding("a", 1, "n1", [0], amount=(60, H100_BYTES // 2), since=1)
    b = holding("b", 2, "n1", [1], amount=(60, H100_BYTES // 2), since=2)
    c = holding("c", 0, "n1", [1], amount=(40, H100_BYTES // 2), since=3)
    question = EvictionQuery(fleet(machine("n1", 2, [a, b, c])), share(core=60, ratio=50))
    way = best_eviction(question, {0: [a, b, c]})
    assert way is not None
    assert names(way) == ["a"]


def test_one_island_only() -> None:
    """CLAIM-5 who sits on the island without important neighbours goes, all of them, and nobody else."""
    some = [holding(f"p{minor}", 9 if minor == 1 else 1, "n1", [minor]) for minor in range(8)]
    strict = request(*whole(4).asks, policy=Policy.CONTIGUOUS, policy_strict=True)
    question = EvictionQuery(fleet(machine("n1", 8, some, links=halves(8))), strict)
    way = eviction_on(question, 0, some)
    assert way is not None
    assert sorted(names(way)) == ["p4", "p5", "p6", "p7"]


def test_the_node_where_the_least_goes() -> None:
    """First the lowest highest priority, then the fewest, then the lowest sum."""
    held = {
        "n1": [holding("a", 5, "n1", [0, 1])],
        "n2": [holding("b", 1, "n2", [0]), holding("c", 1, "n2", [1])],
        "n3": [holding("d", 1, "n3", [0, 1])],
        "n4": [holding("e", 2, "n4", [0]), holding("f", 0, "n4", [1])],
    }
    question = EvictionQuery(fleet(*[machine(name, 2, some) for name, some in held.items()]), whole(2))
    way = best_eviction(question, dict(enumerate(held.values())))
    assert way is not None
    assert names(way) == ["d"]


def test_what_is_freed_blocked_and_preferred() -> None:
    """Who leaves anyway is no victim; promised devices count as taken; the ones offered go before their equals."""
    some = [holding(name, 1, "n1", [minor], since=minor) for minor, name in enumerate("abc")]
    picture = fleet(machine("n1", 3, some))
    leaving = EvictionQuery(picture, whole(1), freed=some[0].held)
    way = eviction_on(leaving, 0, some[1:])
    assert way is not None
    assert way.victims == ()
    assert way.devices == (device_id("n1", "gpu", 0),)
    blocked = EvictionQuery(picture, whole(1), blocked=frozenset({device_id("n1", "gpu", 2)}))
    assert names(eviction_on(blocked, 0, some)) == ["b"]
    assert names(eviction_on(EvictionQuery(picture, whole(1)), 0, some, rather={"a"})) == ["a"]
    assert names(eviction_on(EvictionQuery(picture, whole(1)), 0, some, surely={"a", "b"})) == ["a", "b"]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Any, dict[int, list[Holding]], DeviceRequest]:
    nodes, held = [], {}
    for row in range(draw(st.integers(1, 3))):
        name = f"h{row}"
        some: list[Holding] = []
        gpus = draw(st.integers(1, 4))
        for minor in range(gpus):
            for part in range(draw(st.integers(0, 2))):
                whole_one = part == 0 and draw(st.booleans())
                if whole_one or not any(
                    device_id(name, "gpu", minor) == h.held[0][0] and h.held[0][1] == 100 for h in some
                ):
                    uid = f"{name}-{minor}-{part}"
                    some.append(
                        holding(
                            uid,
                            draw(st.integers(-2, 3)),
                            name,
                            [minor],
                            since=len(some),
                            amount=FULL if whole_one else HALF,
                        )
                    )
                if whole_one:
                    break
        sick = draw(st.sampled_from([(), (0,)]))
        nodes.append(machine(name, gpus, some, sick=sick) if sick else machine(name, gpus, some))
        held[row] = some
    asked = draw(st.sampled_from([whole(1), whole(2), whole(3), share(core=50, ratio=50), share(core=100, ratio=30)]))
    return fleet(*nodes), held, asked


@given(worlds(), st.integers(-1, 4))
@settings(max_examples=150, deadline=None)
def test_the_chosen_are_enough_and_none_can_be_spared(world: Any, priority: int) -> None:
    """Nobody of equal or higher priority goes, those who go suffice, and without any one of them it would not do."""
    picture, held, asked = world
    could = {row: [one for one in some if one.priority < priority] for row, some in held.items()}
    could = {row: some for row, some in could.items() if some}
    way = best_eviction(EvictionQuery(picture, asked), could)
    question = EvictionQuery(picture, asked)
    if way is None:
        for row, some in could.items():
            assert question.without(some, [row]).node is None
        return
    assert all(one.priority < priority and one in could[way.node] for one in way.victims)
    assert question.without(way.victims, [way.node]).node is not None
    for one in way.victims:
        assert question.without([other for other in way.victims if other is not one], [way.node]).node is None
    # nowhere would it do with less important ones alone
    highest = max((one.priority for one in way.victims), default=-9)
    if plan(picture, asked, candidates=sorted(could)).node is None:
        for row, some in could.items():
            assert question.without([one for one in some if one.priority < highest], [row]).node is None
