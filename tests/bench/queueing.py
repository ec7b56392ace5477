"""Decisions of queues and gangs, without a server or a database.

Called by `run`. The floor is sorting the workloads once by priority and age, which any queue has to.
"""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from functools import partial

import msgspec

from allocations.engine.patch import take
from allocations.engine.queueing.rounds import DecisionInput, decide
from allocations.engine.queueing.workloads import Age, Gang, Member, Running, Workload
from allocations.engine.snapshot import Snapshot
from allocations.scheduling.queueing.round_input import MOST
from claims.queue_tree import Queue, QueueTree, Quota
from tests.bench.figures import Aim, Figure, Report, timed_figure
from tests.bench.fleets import eights
from tests.bench.in_process import timed
from tests.bench.wire import Rounds
from tests.builders import H100_BYTES, whole

NODES = 5_000
WAITING = 10_000
GANG = 512
RECLAIMS = 50
ONE = whole(1)
"""Equal requests of waiting pods are one object: `waiting_rows.Members` sees to that."""


def measure_queueing(report: Report, *, rounds: int) -> None:
    """10,000 workloads in 200 queues of three levels on 5,000 × 8, free and full; a gang of 512 on 500 × 8."""
    tree = three_levels(NODES * 8)
    free = eights(NODES)
    waiting = tuple(lone(number, tree) for number in range(WAITING))
    full, running = filled(free, tree)
    gang = Gang("bench/ring", GANG)
    members = tuple(member(number) for number in range(GANG))
    ring = (Workload("bench/ring", "default", members, 0, members[0].age),)
    small = eights(500)
    alone = QueueTree(())
    going = msgspec.structs.replace(decision_input(tree, free, waiting), most=MOST)
    cases = (
        (f"queues, a round of {MOST} of 10,000 workloads, 5,000 × 8", going, 250),
        ("queues, 10,000 workloads, none can go", decision_input(tree, full, waiting, running), 50),
        ("a gang of 512 on 500 × 8", decision_input(alone, small, ring, gangs={gang.name: gang}), 100),
        (f"queues, {RECLAIMS} reclaims among 40,000 running pods", reclaims(full, running), None),
    )
    for name, asked, most in cases:
        measured = Rounds()
        for _ in range(rounds):
            measured.floor.append([timed(partial(sorted, asked.waiting, key=_age)) for _ in range(3)])
            measured.product.append([timed(partial(decide, asked))])
        figure = timed_figure(name, measured)
        report.add(figure if most is None else replace(figure, aims=[Aim(f"median ≤ {most} ms", figure.value, most)]))
        report.add(Figure(f"{name}: memory of the decision", "", "MiB", _memory(asked)))


def reclaims(full: Snapshot, running: tuple[Running, ...]) -> DecisionInput:
    """One queue holds everything, and another wants back some of its half."""
    tree = QueueTree([Queue(name, quotas=(Quota(deserved=NODES * 4),)) for name in ("borrower", "owner")])
    holding = tuple(msgspec.structs.replace(one, queue="borrower") for one in running)
    waiting = tuple(Workload(one.name, "owner", (one,), 0, one.age) for one in map(member, range(RECLAIMS)))
    return decision_input(tree, full, waiting, holding)


def _memory(asked: DecisionInput) -> float:
    """Most that a decision has at once, beside the picture."""
    gc.collect()
    tracemalloc.start()
    decide(asked)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 2**20


def decision_input(
    tree: QueueTree,
    snapshot: Snapshot,
    waiting: tuple[Workload, ...],
    running: tuple[Running, ...] = (),
    gangs: dict[str, Gang] | None = None,
) -> DecisionInput:
    """The picture. Nodes have no labels."""
    labels: list[dict[str, str]] = [{} for _ in snapshot.node_names]
    return DecisionInput(tree, snapshot, running, waiting, gangs or {}, labels)


def three_levels(gpus: int) -> QueueTree:
    """4 queues at the top, 4 × 7 below them, 168 leaves: 200 in all. Each leaf deserves its part."""
    queues = []
    for one in range(4):
        queues.append(Queue(f"top-{one}", quotas=(Quota(deserved=Fraction(gpus, 4)),)))
        for two in range(7):
            middle = Queue(f"mid-{one}-{two}", f"top-{one}", quotas=(Quota(deserved=Fraction(gpus, 28)),))
            queues.append(middle)
            queues += [
                Queue(f"leaf-{one}-{two}-{three}", middle.name, quotas=(Quota(deserved=Fraction(gpus, 168)),))
                for three in range(6)
            ]
    return QueueTree(queues)


def leaves(tree: QueueTree) -> list[str]:
    """Queues that take pods, without `default`."""
    return [name for name in tree.queues if tree.is_leaf(name) and name != "default"]


def member(number: int) -> Member:
    """A pod of one whole GPU."""
    age = Age(undated=False, created=f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:00Z", place=number)
    return Member(f"bench/p{number}/u{number}", ONE, age)


def lone(number: int, tree: QueueTree) -> Workload:
    """A pod of a queue; five priorities."""
    made, names = member(number), leaves(tree)
    return Workload(made.name, names[number % len(names)], (made,), number % 5, made.age)


def filled(snapshot: Snapshot, tree: QueueTree) -> tuple[Snapshot, tuple[Running, ...]]:
    """Every GPU held by a pod of its own, spread evenly over the queues; pods of the highest priority."""
    names = leaves(tree)
    running = tuple(
        Running(
            f"bench/r{place}/u{place}",
            names[place % len(names)],
            ((device, 100, H100_BYTES),),
            row,
            5,
            Age(undated=False, created="2025-01-01T00:00:00Z", place=place),
        )
        for place, (device, row) in enumerate(
            zip(snapshot.device_id.tolist(), snapshot.device_node.tolist(), strict=True)
        )
    )
    return take(snapshot, [held for one in running for held in one.held]), running


def _age(workload: Workload) -> tuple[int, Age]:
    return -workload.priority, workload.age
