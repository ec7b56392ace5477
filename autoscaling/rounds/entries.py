"""Entries of the plan: a pool once for each set of label values that its pods select or exclude.

Called by `autoscaling.rounds.round_input`. Invariants: a node of an entry has its picks and none of its excluded
values, since the trigger pod says both; pods whose rules differ in them never share a node, unless the node of one
serves the other too. So a trigger pod excludes no more than one of its pods does, and Karpenter can serve it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from autoscaling.models import Pool, Trigger
from autoscaling.pools import Excluded, Picks, Verdict
from kube.keys import NODEPOOL_LABEL
from kube.node_rules import NodeTraits, refusal_of
from kube.objects import PodSpec


class Entry(NamedTuple):
    """A pool as the plan sees it: with the values of labels that pods pick, and with those that they exclude."""

    row: Pool
    picks: Picks
    excluded: Excluded

    @property
    def is_plain(self) -> bool:
        """Whether its nodes are any nodes of the pool."""
        return not self.picks and not self.excluded


def entries_of(
    rows: Sequence[Pool], verdicts: Iterable[Mapping[int, Verdict]], triggers: Iterable[Trigger]
) -> list[Entry]:
    """Every pool as it is, then as pods and triggers narrow it. `verdicts`: of each pod, by row."""
    entries = [Entry(row, {}, {}) for row in rows]
    for of_pod in verdicts:
        entries += [Entry(rows[at], one.picks, one.excluded) for at, one in of_pod.items() if not one.why]
    row_of = {row.name: row for row in rows}
    entries += [entry_for(one, row_of[one.request.pool]) for one in triggers if one.request.pool in row_of]
    found: dict[object, Entry] = {}
    for entry in entries:
        excluded = ((key, tuple(values)) for key, values in entry.excluded.items())
        found.setdefault((entry.row.name, frozenset(entry.picks.items()), frozenset(excluded)), entry)
    return list(found.values())


def entry_for(trigger: Trigger, row: Pool) -> Entry:
    """The entry that the trigger pod asks a node of."""
    need = trigger.request.need
    selector: Mapping[str, str] = need.get("selector", {})
    excluded: dict[str, list[str]] = {}
    for key, values in need.get("excluded", ()):
        excluded[key] = sorted({*excluded.get(key, ()), *values})
    picks = {key: value for key, value in selector.items() if key not in row.labels and key != NODEPOOL_LABEL}
    return Entry(row, picks, excluded)


def serves(entry: Entry, spec: PodSpec, verdict: Verdict) -> bool:
    """Whether each node of the entry takes the pod, for which the pool's verdict is this one."""
    for key, values in verdict.excluded.items():
        if key not in entry.picks and not set(values) <= set(entry.excluded.get(key, ())):
            return False
    if verdict.picks:
        return verdict.picks == entry.picks
    return not entry.picks or not refusal_of(spec, NodeTraits("", {**entry.row.labels, **entry.picks}))
