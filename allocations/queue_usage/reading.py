"""Reads what queues held, used, borrowed and lent, in GPU-hours.

Invariant: figures of namespaces that the actor does not see are in one row a model, without the namespace's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from django.db.models import Sum

from access.actors import Actor
from access.errors import NotFound
from allocations.models import QueueUsage
from allocations.queue_usage.amounts import Use
from claims.queues import stored_queues

HOUR: Final = timedelta(hours=1)
COLUMNS: Final = Use.__struct_fields__
HEADINGS: Final = ("queue", "namespace", "model", *(f"{name} (GPU-hours)" for name in COLUMNS))
HIDDEN: Final = "(other namespaces)"


class UsageRow(msgspec.Struct, frozen=True):
    """GPU-hours. `namespace`: empty for what was lent, None for all that the actor does not see."""

    queue: str
    namespace: str | None
    model: str
    use: Use

    @property
    def share_used(self) -> float | None:
        """Percent of the measured hours that were used; None without any."""
        return 100 * self.use.used / self.use.measured if self.use.measured else None

    def cells(self) -> list[object]:
        """A line of HEADINGS."""
        amounts = (round(getattr(self.use, name), 4) for name in COLUMNS)
        return [self.queue, HIDDEN if self.namespace is None else self.namespace, self.model, *amounts]


class UsageReport(msgspec.Struct, frozen=True):
    """Whole hours `since` to `until`. `rows` by queue, namespace and model."""

    since: datetime
    until: datetime
    rows: Sequence[UsageRow]

    @property
    def total(self) -> Use:
        """Of all rows, which have to be of one queue."""
        return _sum(row.use for row in self.rows)

    def by_queue(self) -> dict[str, UsageRow]:
        """Each queue's own total."""
        names = dict.fromkeys(row.queue for row in self.rows)
        return {name: UsageRow(name, "", "", _sum(one.use for one in self.rows if one.queue == name)) for name in names}


def usage_report(*, since: datetime, until: datetime, actor: Actor, queue: str = "") -> UsageReport:
    """The use of one queue, of all without a name. Raises NotFound for a queue that never was."""
    first = since.replace(minute=0, second=0, microsecond=0)
    last = until.replace(minute=0, second=0, microsecond=0)
    end = last if last == until else last + HOUR
    found = QueueUsage.objects.filter(start__gte=first, start__lt=end).order_by()
    if queue:
        found = found.filter(queue=queue)
        if queue not in stored_queues().tree.queues and not QueueUsage.objects.filter(queue=queue).exists():
            raise NotFound(f"there is no queue {queue}")
    summed: dict[tuple[str, str | None, str], Use] = {}
    for row in found.values("queue", "namespace", "model").annotate(**{f"all_{name}": Sum(name) for name in COLUMNS}):
        namespace = row["namespace"]
        key = (row["queue"], namespace if not namespace or actor.sees(namespace) else None, row["model"])
        summed[key] = _sum([summed.get(key, Use()), _hours(row)])
    rows = [UsageRow(*key, use) for key, use in sorted(summed.items(), key=_order)]
    return UsageReport(first, end, rows)


def _hours(row: Mapping[str, Any]) -> Use:
    return Use(*(row[f"all_{name}"] / 3600 for name in COLUMNS))


def _order(entry: tuple[tuple[str, str | None, str], Use]) -> tuple[object, ...]:
    (queue, namespace, model), _ = entry
    return queue, namespace is None, namespace or "", model


def _sum(parts: Iterable[Use]) -> Use:
    total = Use()
    for part in parts:
        for name in COLUMNS:
            setattr(total, name, getattr(total, name) + getattr(part, name))
    return total
