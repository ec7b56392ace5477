"""The engine's decisions are those of the rules written down a second time (`reference`), on random small worlds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allocations.scenario import Result
from tests.unit.allocations.engine.queueing.reference import P, Q, World
from tests.unit.allocations.scenario.queues import evicted, node, placed, pod, queue, quota, run


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to ten GPUs; a parent of two leaves, and two leaves more; pods that run and pods that wait."""
    gpus = draw(st.integers(1, 10))

    def leaf(name: str, parent: str, most: int) -> Q:
        deserved = draw(st.integers(0, most))
        return Q(
            name,
            parent,
            deserved,
            draw(st.none() | st.integers(deserved, deserved + 4)),
            draw(st.integers(0, 3)),
            draw(st.sampled_from([100, 100, 200])),
            strict=draw(st.integers(0, 3)) == 0,
        )

    top = leaf("org", "", 5)
    top.strict = False
    queues = [top, leaf("a", "org", top.deserved), leaf("b", "org", top.deserved), leaf("c", "", 4), leaf("d", "", 4)]
    queues.append(Q("default"))

    def one(name: str, age: int, most: int) -> P:
        return P(
            name,
            draw(st.sampled_from(["a", "b", "c", "d"])),
            draw(st.integers(1, most)),
            draw(st.integers(0, 2)),
            age,
            draw(st.integers(0, 3)) > 0,
        )

    running: list[P] = []
    free = gpus
    while free and draw(st.integers(0, 5)):
        running.append(one(f"run-{len(running)}", len(running), min(free, 3)))
        free -= running[-1].gpus
    waiting = [one(f"new-{number}", 100 + number, 3) for number in range(draw(st.integers(1, 6)))]
    return World(gpus, queues, running, waiting)


def decided(world: World) -> Result:
    """What the engine makes of it."""
    manifests: list[dict[str, Any]] = []
    at = 0
    for one in world.running:
        minors = ",".join(str(at + number) for number in range(one.gpus))
        at += one.gpus
        manifests.append(
            pod(one.name, queue=one.queue, on=f"n1:{minors}", priority=one.priority, preemptible=one.preemptible)
        )
    manifests += [
        pod(one.name, one.gpus, queue=one.queue, priority=one.priority, preemptible=one.preemptible)
        for one in world.waiting
    ]
    queues = [
        queue(
            one.name,
            quota(one.deserved, one.limit, one.weight),
            parent=one.parent,
            priority=one.priority,
            queueingStrategy="StrictFIFO" if one.strict else "BestEffortFIFO",
        )
        for one in world.queues
    ]
    return run(nodes=[node("n1", world.gpus)], queues=queues, pods=manifests)


@given(world=worlds())
def test_the_engine_decides_by_the_rules(world: World) -> None:
    """QUEUE-2 QUEUE-3 fair shares, who goes, who is evicted for whom and by what."""
    result = decided(world)
    world.run()
    assert {name: entries[0].fair_share for name, entries in result.queues.items()} == world.shares
    assert set(placed(result)) == set(world.admitted)
    assert evicted(result) == world.evicted
    for one in world.queues:
        assert result.queues[one.name][0].allocated == world.holds(one.name)


@given(world=worlds())
def test_the_same_input_has_the_same_answer(world: World) -> None:
    """QUEUE-2 twice, and so whatever order a process happens to keep its sets in."""
    assert decided(world) == decided(world)
