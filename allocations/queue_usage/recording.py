"""Adds the minutes that are over to the hours of each queue.

Invariants: a minute is added in the transaction that moves the mark, so it counts once; a worker that was away makes
good what it missed, a part of it each time. What the GPUs did is unknown for minutes whose history has expired.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.db.models import Q

from allocations import fleet
from allocations.choices import LIVE
from allocations.engine.queueing.workloads import Counting
from allocations.gang_queues import counts_in, read_gang_queues
from allocations.models import Allocation, AllocationDevice, QueueUsage, QueueUsageMark
from allocations.queue_usage.amounts import Holding, UsageKey, Use, add_up
from claims.dialects.request import CORE_WHOLE
from claims.membership import Membership
from claims.queues import StoredQueues, stored_queues
from kube.device_types import GPU
from nodes.history import figures
from nodes.history.rollups import MINUTE
from nodes.models import FleetRollup, Rollup
from storage.cursors import write_rows
from storage.transactions import atomic_retry

_ONLY: Final = 1
MINUTES_A_TURN: Final = 60
SETTLED: Final = timedelta(minutes=3)
"""A minute whose history is not written by then is added without it."""
SPAN: Final = timedelta(seconds=MINUTE)

log = structlog.get_logger(__name__)


def record_usage(*, now: datetime) -> int:
    """Add the minutes that are over, at most MINUTES_A_TURN; how many."""
    mark, _ = QueueUsageMark.objects.get_or_create(pk=_ONLY, defaults={"until": now.replace(second=0, microsecond=0)})
    start = mark.until
    for done in range(MINUTES_A_TURN):
        if start + SPAN > now or not _is_settled(start, now) or not _add(start):
            return done
        start += SPAN
    return MINUTES_A_TURN


def _is_settled(start: datetime, now: datetime) -> bool:
    return start + SPAN + SETTLED <= now or FleetRollup.objects.filter(seconds=MINUTE, start=start).exists()


def _add(start: datetime) -> bool:
    """Add one minute; False where another worker has."""
    queues = stored_queues()
    pools = Counting(queues.tree, fleet.current().snapshot).pools
    holdings = _holdings(start, queues, _utilisation(start))
    return _write(start, add_up(queues.tree, pools, holdings, since=start, until=start + SPAN))


@atomic_retry
def _write(start: datetime, uses: Mapping[UsageKey, Use]) -> bool:
    if not QueueUsageMark.objects.filter(pk=_ONLY, until=start).update(until=start + SPAN):
        return False
    hour = start.replace(minute=0)
    there = {
        UsageKey(row.queue, row.namespace, row.model): row for row in QueueUsage.objects.filter(start=hour).order_by()
    }
    new: list[QueueUsage] = []
    changed: list[QueueUsage] = []
    for key, use in uses.items():
        row = there.get(key)
        (new if row is None else changed).append(row := row or QueueUsage(start=hour, **key._asdict()))
        for column in Use.__struct_fields__:
            setattr(row, column, getattr(row, column) + getattr(use, column))
    QueueUsage.objects.bulk_create(new)
    write_rows(changed, Use.__struct_fields__)
    return True


def _utilisation(start: datetime) -> dict[str, float]:
    """UUID → mean utilisation of the minute, 0..1."""
    found: dict[str, float] = {}
    for node, body in Rollup.objects.filter(seconds=MINUTE, start=start).order_by().values_list("node_id", "body"):
        try:
            read = figures.unpack(bytes(body))
        except figures.Unreadable as error:
            log.warning("queue_usage.unreadable", node=node, why=str(error))
            continue
        column = read.columns.get("utilisation_percent")
        if column is not None:
            unit = 100 * figures.unit_of("utilisation_percent")
            measured = zip(read.devices, column.counts, column.means, strict=True)
            found |= {uuid: min(mean / unit, 1.0) for uuid, count, mean in measured if count}
    return found


def _holdings(start: datetime, queues: StoredQueues, utilisation: Mapping[str, float]) -> Iterator[Holding]:
    """The GPUs that were held in this minute."""
    held = Allocation.objects.filter(Q(state__in=LIVE) | Q(ended_at__gt=start), created_at__lt=start + SPAN)
    by_gang = read_gang_queues(queues, held=held)
    rows = AllocationDevice.objects.filter(
        Q(allocation__state__in=LIVE) | Q(allocation__ended_at__gt=start),
        type=GPU,
        allocation__created_at__lt=start + SPAN,
    ).order_by()
    columns = (
        "allocation__queue",
        "allocation__gang",
        "allocation__namespace",
        "device__model",
        "device__memory_bytes",
        "uuid",
        "core_percent",
        "memory_bytes",
        "whole",
        "allocation__created_at",
        "allocation__ended_at",
    )
    for queue, gang, namespace, model, total, uuid, core, memory, whole, since, until in rows.values_list(
        *columns
    ).iterator(chunk_size=2000):
        yield Holding(
            queue=counts_in(Membership(queue, gang), namespace, queues, by_gang),
            namespace=namespace,
            model=model or "",
            amount=1.0 if whole else max(core / CORE_WHOLE, memory / total if total else 0.0),
            since=since,
            until=until,
            utilisation=utilisation.get(uuid),
        )
