"""Where gangs stand: compared with every possible choice of nodes, on small fleets."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.allocations.scenario.queues import gang, node, placed, pod, pods, run, why

KINDS = ("none", "required", "preferred")
Node = tuple[str, int, str]
"""Name, free GPUs, rack (empty: without the label)."""


def seen(fleet: list[Node], kind: str, gpus: int, count: int, runs: list[str]) -> dict[str, str]:
    """Pod → node; `runs`: nodes on which a member runs already."""
    nodes = [node(name, free + runs.count(name), **({"rack": rack} if rack else {})) for name, free, rack in fleet]
    members: list[dict[str, Any]] = []
    for number, name in enumerate(runs):
        minor = {one: free for one, free, _ in fleet}[name] + runs[:number].count(name)
        members.append(pod(f"runs-{number}", gang="ring", on=f"{name}:{minor}"))
    spec = {} if kind == "none" else {"topology": {kind: "rack"}}
    made = gang("ring", count + len(runs), **spec)
    return placed(run(nodes=nodes, gangs=[made], pods=[*members, *pods(count, "r", gpus, gang="ring")]))


def best(fleet: list[Node], kind: str, gpus: int, count: int, runs: list[str]) -> tuple[int, int] | None:
    """(values, nodes) of the best choice, those of running members included; None where there is none."""
    rack_of = {name: rack for name, _, rack in fleet}

    def value(name: str) -> str:
        return rack_of[name] or ("" if kind == "required" else f"node {name}")

    found = []
    subsets = chain.from_iterable(combinations(fleet, size) for size in range(len(fleet) + 1))
    for some in subsets:
        names = {name for name, _, _ in some}
        if sum(free // gpus for _, free, _ in some) < count:
            continue
        values = {value(name) for name in names | set(runs)}
        if kind == "required" and (len(values) > 1 or "" in values):
            continue
        found.append((len(values) if kind != "none" else 0, len(names | set(runs))))
    return min(found, default=None)


@given(
    fleet=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["x", "y", "z", ""])), min_size=1, max_size=6),
    kind=st.sampled_from(KINDS),
    gpus=st.integers(1, 2),
    count=st.integers(1, 7),
    where=st.none() | st.integers(0, 5),
)
def test_equal_pods_stand_as_near_as_can_be(
    fleet: list[tuple[int, str]], kind: str, gpus: int, count: int, where: int | None
) -> None:
    """QUEUE-4 CLAIM-8 as few values of the label as possible, then as few nodes; all or none."""
    nodes = [(f"n{number}", free, rack) for number, (free, rack) in enumerate(fleet)]
    runs = [] if where is None else [nodes[where % len(nodes)][0]]
    got, want = seen(nodes, kind, gpus, count, runs), best(nodes, kind, gpus, count, runs)
    assert len(got) == (0 if want is None else count)
    if want is None:
        return
    rack_of = {name: rack for name, _, rack in nodes}
    names = {*got.values(), *runs}
    values = {rack_of[name] or f"node {name}" for name in names}
    assert (0 if kind == "none" else len(values), len(names)) == want


def test_one_node_when_asked() -> None:
    """DEV-10b a topology by hostname: the pods of a group stand on one node, and not on two that have room together."""
    nodes = [node("n1", 1), node("n2", 2), node("n3", 1)]
    near = gang("ring", 2, topology={"required": "kubernetes.io/hostname"})
    assert placed(run(nodes=nodes, gangs=[near], pods=pods(2, "r", gang="ring"))) == {"r-0": "n2", "r-1": "n2"}
    result = run(
        nodes=nodes,
        gangs=[near],
        pods=[pod("lone", 1, selector={"kubernetes.io/hostname": "n2"}), *pods(2, "r", gang="ring")],
    )
    assert set(placed(result)) == {"lone"}
    assert why(result)["r-0"] == "no room for 2 pods on nodes of one hostname; best: hostname n1 with 1"


def test_pods_that_differ_stand_kind_by_kind_where_they_are_many() -> None:
    """QUEUE-4 a launcher and 199 workers: far more than a search could try."""
    some = [pod("launcher", 4, gang="ring"), *pods(199, "worker", 1, gang="ring")]
    result = run(nodes=[node(f"n{number:02}") for number in range(40)], gangs=[gang("ring", 200)], pods=some)
    assert len(placed(result)) == 200
    assert len(set(placed(result).values())) == 26  # 203 of 8


def test_shares_of_gpus_are_counted_device_by_device() -> None:
    """QUEUE-4 four shares of 30 GiB on GPUs of 80: two each, so that two GPUs of one node hold them."""
    small = [pod(f"r-{number}", memory="30Gi", gang="ring") for number in range(4)]
    result = run(nodes=[node("n1", 1), node("n2", 2), node("n3", 1)], gangs=[gang("ring", 4)], pods=small)
    assert set(placed(result).values()) == {"n2"}
