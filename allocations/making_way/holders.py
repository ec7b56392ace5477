"""Who holds what on which node, and could be evicted: read from the ledger, once for every state that it is in.

Called by the other modules of this package. Kept true: holders over REST, and pods that kube-scheduler does not count, have no
priority in the ledger and are never among them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from django.db.models import Min

from allocations.choices import State
from allocations.engine.picture import Picture
from allocations.engine.victims import Held, Holding
from allocations.models import Allocation, AllocationDevice

_PLACED = (State.HELD, State.RESERVED, State.BOUND)
"""Of what is placed and not bound yet only the pods of the node, as the API server has them, tell whether it can go."""


class _Latest:
    """What was read for a picture. A picture is another one as soon as any device was taken or came back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._lowest: int | None = None
        self._holdings: dict[int, tuple[Holding, ...]] | None = None

    def lowest(self, picture: Picture) -> int | None:
        """See `lowest`."""
        with self._lock:
            self._look(picture)
            return self._lowest

    def holdings(self, picture: Picture) -> Mapping[int, tuple[Holding, ...]]:
        """Node row → what pods hold there."""
        with self._lock:
            self._look(picture)
            if self._holdings is None:
                self._holdings = _read(picture)
            return self._holdings

    def _look(self, picture: Picture) -> None:
        if self._picture is not picture:
            self._lowest = _lowest()
            self._picture, self._holdings = picture, None


_LATEST = _Latest()


def lowest(picture: Picture) -> int | None:
    """The lowest priority of anybody who could be evicted, None where there is nobody. At most one query a picture."""
    return _LATEST.lowest(picture)


def holdings(
    picture: Picture, *, below: int, nodes: Collection[int] | None = None, but: Collection[str] = ()
) -> dict[int, Sequence[Holding]]:
    """Node row → what pods of a priority below hold there, those of `but` (UIDs) left out; nodes without any are left out."""
    found: dict[int, Sequence[Holding]] = {}
    for node, some in _LATEST.holdings(picture).items():
        if nodes is not None and node not in nodes:
            continue
        chosen = [one for one in some if one.priority < below and one.pod_uid not in but]
        if chosen:
            found[node] = chosen
    return found


def _lowest() -> int | None:
    found: int | None = Allocation.objects.filter(state__in=_PLACED).aggregate(lowest=Min("priority"))["lowest"]
    return found


def _read(picture: Picture) -> dict[int, tuple[Holding, ...]]:
    rows = AllocationDevice.objects.filter(live=True, allocation__state__in=_PLACED, allocation__priority__isnull=False)
    held: dict[tuple[str, str, int, float], list[Held]] = defaultdict(list)
    for node, uid, priority, since, device_id, core, memory in rows.order_by("allocation", "device").values_list(
        "allocation__node__name",
        "allocation__pod_uid",
        "allocation__priority",
        "allocation__created_at",
        "device_id",
        "core_percent",
        "memory_bytes",
    ):
        if priority is not None and device_id is not None:
            held[node, uid, priority, since.timestamp()].append((device_id, core, memory))
    found: dict[int, list[Holding]] = defaultdict(list)
    for (node, uid, priority, age), amounts in held.items():
        row = picture.node_index.get(node)
        if row is not None:
            found[row].append(Holding(uid, priority, age, tuple(amounts)))
    return {row: tuple(some) for row, some in found.items()}
