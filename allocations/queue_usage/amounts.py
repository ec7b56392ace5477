"""Adds up one span of allocations by queue, namespace and model, in GPU-seconds.

Borrowed is what a queue holds above what it deserves, on average over the span. Lent is what its siblings hold of what
it deserves: they borrow first what nobody deserves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from claims.queue_tree import TOP, Amount, Group, QueueTree


class Holding(msgspec.Struct, frozen=True):
    """A GPU, or `amount` of it, that a pod held. `utilisation`: 0..1 of the GPU over the span, None: not measured."""

    queue: str
    namespace: str
    model: str
    amount: float
    since: datetime
    until: datetime | None
    utilisation: float | None = None


class UsageKey(NamedTuple):
    """`namespace`: empty for what was lent."""

    queue: str
    namespace: str
    model: str


class Use(msgspec.Struct):
    """GPU-seconds. `measured`: held while the GPU's utilisation was known; `used`: that times the utilisation."""

    held: float = 0
    measured: float = 0
    used: float = 0
    borrowed: float = 0
    lent: float = 0


def add_up(
    tree: QueueTree, pools: Mapping[Group, Amount], holdings: Iterable[Holding], *, since: datetime, until: datetime
) -> dict[UsageKey, Use]:
    """The use of every queue over the span. `pools`: GPUs by group."""
    uses: defaultdict[UsageKey, Use] = defaultdict(Use)
    for one in holdings:
        end = until if one.until is None else min(one.until, until)
        held = one.amount * max((end - max(one.since, since)).total_seconds(), 0)
        for queue in tree.paths[one.queue] if held else ():
            use = uses[UsageKey(queue, one.namespace, one.model)]
            use.held += held
            if one.utilisation is not None:
                use.measured += held
                use.used += held * one.utilisation
    seconds = (until - since).total_seconds()
    for group in tree.groups:
        parts: defaultdict[str, dict[UsageKey, Use]] = defaultdict(dict)
        for key, use in uses.items():
            if tree.group_of(key.model) == group:
                parts[key.queue][key] = use
        held_by = {queue: sum(use.held for use in some.values()) for queue, some in parts.items()}
        lent: dict[UsageKey, float] = {}
        for parent in (TOP, *tree.queues):
            there = float(pools.get(group, 0)) if parent == TOP else _due(tree, parent, group)
            there = max(there * seconds, held_by.get(parent, 0))
            lent |= _level(tree, tree.below(parent), group, parts, held_by, there=there, seconds=seconds)
        for key, amount in lent.items():
            uses[key].lent += amount
    return dict(uses)


def _level(
    tree: QueueTree,
    queues: Sequence[str],
    group: Group,
    parts: Mapping[str, Mapping[UsageKey, Use]],
    held_by: Mapping[str, float],
    *,
    there: float,
    seconds: float,
) -> dict[UsageKey, float]:
    """Sets what each of these siblings borrowed; what each lent. `there`: GPU-seconds among them all."""
    due = {queue: _due(tree, queue, group) * seconds for queue in queues}
    borrowed = {queue: max(held_by.get(queue, 0) - due[queue], 0) for queue in queues}
    unused = {queue: max(due[queue] - held_by.get(queue, 0), 0) for queue in queues}
    by_model: defaultdict[str, float] = defaultdict(float)
    for queue, amount in borrowed.items():
        for key, use in parts.get(queue, {}).items() if amount else ():
            use.borrowed += amount * use.held / held_by[queue]
            by_model[key.model] += amount * use.held / held_by[queue]
    all_borrowed, all_unused = sum(borrowed.values()), sum(unused.values())
    nobodys = max(there - sum(due.values()), 0)
    lent = min(max(all_borrowed - nobodys, 0), all_unused)
    return {
        UsageKey(queue, "", model): lent * amount / all_unused * part / all_borrowed
        for queue, amount in unused.items()
        for model, part in by_model.items()
        if lent and amount
    }


def _due(tree: QueueTree, queue: str, group: Group) -> float:
    return float(tree.quota(queue, group).deserved)
