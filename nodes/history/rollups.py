"""Rollups of a minute from the ring, rollups of an hour from those of its minutes, and their expiry.

Run by periodic tasks (`nodes.tasks`). Invariants: a span is written once, also by two workers at once; the fleet's row
is written last, and so says that the span is complete; a minute that cannot be read any more (Redis was down, no worker
ran) stays missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
import structlog
from django.db.models import Q

from nodes.history import figures, fleet_count, minutes, ring, totals
from nodes.history.figures import Figures
from nodes.history.totals import Totals
from nodes.models import FleetRollup, Node, Rollup
from storage.redis_client import Redis

MINUTE: Final = 60
HOUR: Final = 3600
SETTLED: Final = timedelta(seconds=4)
"""How long after the end of a minute all its samples are in the ring."""
MINUTES_BACK: Final = 2
"""Older ones may have left the ring in part."""
HOURS_BACK: Final = 24
NODES_AT_ONCE: Final = 100
ROWS_AT_ONCE: Final = 500
"""Rows a statement and transaction, for which the ledger's own writes may wait."""

log = structlog.get_logger(__name__)


def roll_up(connection: Redis, *, now: datetime) -> list[datetime]:
    """Write the minutes that are complete and not written yet; when they start. Raises RedisError."""
    this = now.replace(second=0, microsecond=0)
    wanted = [this - timedelta(minutes=back) for back in range(MINUTES_BACK, 0, -1)]
    done = set(FleetRollup.objects.filter(seconds=MINUTE, start__in=wanted).values_list("start", flat=True))
    todo = [start for start in wanted if start not in done and start + timedelta(minutes=1) + SETTLED <= now]
    for start in todo:
        _write_minute(connection, start)
    return todo


def _write_minute(connection: Redis, start: datetime) -> None:
    orders = ring.orders_of_all(connection)
    pks = dict(Node.objects.order_by().values_list("name", "pk"))
    measured: dict[str, Figures] = {}
    since = start.timestamp()
    for bucket in range(ring.BUCKETS):
        seconds = ring.read_bucket(connection, bucket, since=since, until=since + MINUTE)
        found = minutes.figures_of(seconds, orders, since=since, until=since + MINUTE)
        _store(start, MINUTE, {pks[name]: one for name, one in found.items() if name in pks})
        measured |= found
    _store_totals(start, MINUTE, fleet_count.count(measured, start, at_once=ROWS_AT_ONCE))
    log.info("history.minute", start=start.isoformat(), nodes=len(measured))


def _store(start: datetime, seconds: int, found: Mapping[int, Figures]) -> None:
    """`found`: node's id → figures."""
    rows = [Rollup(node_id=pk, seconds=seconds, start=start, body=figures.pack(one)) for pk, one in found.items()]
    Rollup.objects.bulk_create(rows, ignore_conflicts=True)


def _store_totals(start: datetime, seconds: int, groups: Mapping[str, Totals]) -> None:
    row = FleetRollup(seconds=seconds, start=start, groups=msgspec.to_builtins(groups))
    FleetRollup.objects.bulk_create([row], ignore_conflicts=True)


def roll_up_hours(*, now: datetime) -> list[datetime]:
    """Write the hours whose last minute is written, and that are not written yet; when they start."""
    this = now.replace(minute=0, second=0, microsecond=0)
    wanted = [this - timedelta(hours=back) for back in range(HOURS_BACK, 0, -1)]
    done = set(FleetRollup.objects.filter(seconds=HOUR, start__in=wanted).values_list("start", flat=True))
    settled = this + timedelta(seconds=MINUTES_BACK * MINUTE) + SETTLED <= now
    return [start for start in wanted if start not in done and (settled or start != wanted[-1]) and _write_hour(start)]


def _write_hour(start: datetime) -> bool:
    """Write one hour; False without any minute of it."""
    within = Q(seconds=MINUTE, start__gte=start, start__lt=start + timedelta(hours=1))
    minutes = [
        msgspec.convert(groups, dict[str, Totals])
        for groups in FleetRollup.objects.filter(within).values_list("groups", flat=True)
    ]
    if not minutes:
        return False
    nodes = sorted(Rollup.objects.filter(within).order_by().values_list("node_id", flat=True).distinct())
    for at in range(0, len(nodes), NODES_AT_ONCE):
        parts: dict[int, list[Figures]] = {}
        some = Rollup.objects.filter(within, node_id__in=nodes[at : at + NODES_AT_ONCE]).order_by()
        for pk, body in some.values_list("node_id", "body"):
            try:
                parts.setdefault(pk, []).append(figures.unpack(bytes(body)))
            except figures.Unreadable as error:
                log.warning("history.unreadable", node=pk, why=str(error))
        whole = {pk: found for pk, each in parts.items() if (found := figures.combined(each)) is not None}
        _store(start, HOUR, whole)
    groups = {
        name: totals.mean_of([minute.get(name, Totals()) for minute in minutes])
        for name in dict.fromkeys(name for minute in minutes for name in minute)
    }
    _store_totals(start, HOUR, groups)
    log.info("history.hour", start=start.isoformat(), nodes=len(nodes))
    return True


def prune(*, now: datetime, minutes_kept: timedelta, hours_kept: timedelta) -> int:
    """Delete expired rows; how many."""
    deleted = 0
    for model in (Rollup, FleetRollup):
        for seconds, kept in ((MINUTE, minutes_kept), (HOUR, hours_kept)):
            old = model.objects.filter(seconds=seconds, start__lt=now - kept).order_by().values_list("pk", flat=True)
            while pks := list(old[:ROWS_AT_ONCE]):
                deleted += model.objects.filter(pk__in=pks).delete()[0]
    return deleted
