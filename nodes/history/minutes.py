"""A minute of a bucket of the ring as figures: columns of bytes in, figures of each node out.

Called by `rollups`. Pure. Invariants: samples that list other devices than the node's newest do not count; the result
is that of `figures.of_moments` over the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from nodes.history.figures import Figures, Spans, figures_of_spans
from nodes.history.ring_seconds import LOWEST, Second, stored_of

Orders = Mapping[str, tuple[int, tuple[str, ...]]]
"""Node → checksum of its devices' UUIDs, and these UUIDs."""
_NONE: Final = np.zeros(0, np.int64)


def figures_of(seconds: Sequence[Second], orders: Orders, *, since: float, until: float) -> dict[str, Figures]:
    """Figures of each node over its samples received in [since, until), seconds since 1970; without nodes of which
    nothing was measured.
    """
    chosen = _choose(seconds, orders, since=since, until=until)
    if not chosen.nodes:
        return {}
    starts = np.flatnonzero(np.diff(chosen.group, prepend=-1))
    tables = [second.table for second in seconds]
    stored = stored_of(np.concatenate(tables, axis=1)[:, chosen.columns])  # [columns, GPUs of all samples, by GPU]
    counts = np.add.reduceat(stored != 0, starts, axis=1, dtype=np.int64)
    sums = np.add.reduceat(stored, starts, axis=1) + counts * (LOWEST - 1)
    largest = np.where(counts > 0, np.maximum.reduceat(stored, starts, axis=1) + (LOWEST - 1), 0)
    devices = [orders[node][1] for node in chosen.nodes]
    found = figures_of_spans(devices, Spans(counts, sums, largest))
    return {node: one for node, one in zip(chosen.nodes, found, strict=True) if one is not None}


@dataclass(frozen=True, slots=True)
class _Chosen:
    """`columns`: which GPUs of all seconds, one after the other, count, by GPU; `group`: the GPU's number among those
    of `nodes`, one after the other.
    """

    nodes: Sequence[str]
    columns: NDArray[np.int64]
    group: NDArray[np.int64]


def _choose(seconds: Sequence[Second], orders: Orders, *, since: float, until: float) -> _Chosen:
    gpus = np.array([count for second in seconds for count in second.gpus], np.int64)
    received = np.array([at for second in seconds for at in second.received_at])
    names = [name for second in seconds for name in second.nodes]
    checksums = [order for second in seconds for order in second.orders]
    place: dict[str, int] = {}
    owner = np.fromiter(
        (
            place.setdefault(name, len(place)) if name in orders and orders[name][0] == order else -1
            for name, order in zip(names, checksums, strict=True)
        ),
        np.int64,
        len(names),
    )
    sizes = np.array([len(orders[name][1]) for name in place], np.int64)
    if not len(sizes):
        return _Chosen([], _NONE, _NONE)
    kept = np.flatnonzero((owner >= 0) & (since <= received) & (received < until) & (gpus == sizes[owner]) & (gpus > 0))
    present = np.zeros(len(sizes), bool)
    present[owner[kept]] = True
    nodes = [name for name, is_there in zip(place, present.tolist(), strict=True) if is_there]
    first = np.cumsum(np.where(present, sizes, 0)) - np.where(present, sizes, 0)
    counts = gpus[kept]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = np.repeat((np.cumsum(gpus) - gpus)[kept], counts) + within
    group = np.repeat(first[owner[kept]], counts) + within
    by_gpu = np.argsort(group, kind="stable")
    return _Chosen(nodes, columns[by_gpu], group[by_gpu])
