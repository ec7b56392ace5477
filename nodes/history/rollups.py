"""Minutes out of the ring, hours out of minutes, and the end of both.

Run by the beat through `nodes.tasks`. Kept true: a span is written once, also by two workers at once; the fleet's row is written last, so that where it
is, the span is complete; a minute that cannot be had any more (Redis was away, no worker ran) is missing and not made up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
import redis
import structlog
from django.db.models import Q

from kube.device_types import GPU
from nodes.choices import Presence
from nodes.history import figures, ring, totals
from nodes.history.figures import Figures
from nodes.history.totals import Totals
from nodes.models import Device, FleetRollup, Node, Rollup

MINUTE: Final = 60
HOUR: Final = 3600
SETTLED: Final = timedelta(seconds=4)
"""So long after its end all samples of a minute are in the ring."""
MINUTES_BACK: Final = 2
"""Older ones may have left the ring in part."""
HOURS_BACK: Final = 24
NODES_AT_ONCE: Final = 100
ROWS_AT_ONCE: Final = 500
"""In one statement and transaction: the ledger's own writes wait no longer than for these. Minutes are written by bucket of the ring."""
OFTEN_ENOUGH: Final = 20
"""Times measured in a minute, below which nobody is called idle."""

log = structlog.get_logger(__name__)

Measured = Mapping[str, Figures]
"""Node's name → figures."""


def roll_up(connection: redis.Redis, *, now: datetime) -> list[datetime]:
    """Write the minutes that are complete and not written yet; their beginnings. Raises redis.RedisError."""
    this = now.replace(second=0, microsecond=0)
    wanted = [this - timedelta(minutes=back) for back in range(MINUTES_BACK, 0, -1)]
    done = set(FleetRollup.objects.filter(seconds=MINUTE, start__in=wanted).values_list("start", flat=True))
    todo = [start for start in wanted if start not in done and start + timedelta(minutes=1) + SETTLED <= now]
    for start in todo:
        _write_minute(connection, start)
    return todo


def _write_minute(connection: redis.Redis, start: datetime) -> None:
    orders = ring.orders_of_all(connection)
    pks = dict(Node.objects.order_by().values_list("name", "pk"))
    measured: dict[str, Figures] = {}
    for bucket in range(ring.BUCKETS):
        found = dict(_figures_of(connection, bucket, start, orders))
        _store(start, MINUTE, {pks[name]: one for name, one in found.items() if name in pks})
        measured |= found
    groups = _count(measured, start)
    FleetRollup.objects.bulk_create(
        [FleetRollup(seconds=MINUTE, start=start, groups=msgspec.to_builtins(groups))], ignore_conflicts=True
    )
    log.info("history.minute", start=start.isoformat(), nodes=len(measured))


def _figures_of(
    connection: redis.Redis, bucket: int, start: datetime, orders: Mapping[str, tuple[int, tuple[str, ...]]]
) -> Iterator[tuple[str, Figures]]:
    """Of each of the bucket's nodes that was measured. Samples from before its devices were others are left out."""
    since = start.timestamp()
    moments: dict[str, list[ring.Moment]] = {}
    for moment in ring.read_bucket(connection, bucket, since=since, until=since + MINUTE):
        if moment.node in orders and moment.order == orders[moment.node][0]:
            moments.setdefault(moment.node, []).append(moment)
    for node, some in moments.items():
        found = figures.of_moments(orders[node][1], some)
        if found is not None:
            yield node, found


def _store(start: datetime, seconds: int, found: Mapping[int, Figures]) -> None:
    """`found`: node's id → figures."""
    rows = [Rollup(node_id=pk, seconds=seconds, start=start, body=figures.pack(one)) for pk, one in found.items()]
    Rollup.objects.bulk_create(rows, ignore_conflicts=True)


def _count(measured: Measured, start: datetime) -> dict[str, Totals]:
    """The fleet's totals, and who is idle from now on, or no more."""
    groups: dict[str, Totals] = {}
    fell_idle, woke = [], []
    nodes = Node.objects.only("name", "labels").in_bulk()  # once each: labels are JSON, and a node has many GPUs
    gpus = Device.objects.filter(type=GPU).exclude(presence=Presence.REMOVED).order_by()
    for device in gpus.only(*_COUNTED).iterator(chunk_size=2000):
        if device.node_id not in nodes:
            continue  # came since
        device.node = nodes[device.node_id]
        told = measured.get(device.node.name)
        values = {name: None if told is None else told.of(device.uuid, name) for name in _MEASURED}
        for group in totals.groups_of(device):
            totals.add(groups.setdefault(group, Totals()), device, values)
        utilisation = values["utilisation_percent"]
        idle = totals.is_idle(device, utilisation)
        if idle and device.idle_since is None and utilisation is not None and utilisation[0] >= OFTEN_ENOUGH:
            fell_idle.append(device.pk)
        elif device.idle_since is not None and not idle and measured:
            woke.append(device.pk)  # with nothing measured at all Redis was away, and not all GPUs at work
    for pks, since in ((fell_idle, start), (woke, None)):
        for at in range(0, len(pks), ROWS_AT_ONCE):
            Device.objects.filter(pk__in=pks[at : at + ROWS_AT_ONCE]).update(idle_since=since)
    return groups


_MEASURED: Final = ("utilisation_percent", "memory_used_bytes", "power_watts")
_COUNTED: Final = (
    "uuid",
    "parent",
    "model",
    "healthy",
    "memory_bytes",
    "core_used",
    "memory_used",
    "idle_since",
    "node_id",
)


def roll_up_hours(*, now: datetime) -> list[datetime]:
    """Write the hours whose last minute is written, and that are not written yet; their beginnings."""
    this = now.replace(minute=0, second=0, microsecond=0)
    wanted = [this - timedelta(hours=back) for back in range(HOURS_BACK, 0, -1)]
    done = set(FleetRollup.objects.filter(seconds=HOUR, start__in=wanted).values_list("start", flat=True))
    settled = this + timedelta(seconds=MINUTES_BACK * MINUTE) + SETTLED <= now
    return [start for start in wanted if start not in done and (settled or start != wanted[-1]) and _write_hour(start)]


def _write_hour(start: datetime) -> bool:
    """False where no minute of it is there."""
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
    FleetRollup.objects.bulk_create(
        [FleetRollup(seconds=HOUR, start=start, groups=msgspec.to_builtins(groups))], ignore_conflicts=True
    )
    log.info("history.hour", start=start.isoformat(), nodes=len(nodes))
    return True


def prune(*, now: datetime, minutes_kept: timedelta, hours_kept: timedelta) -> int:
    """Delete what is older; returns how many rows."""
    deleted = 0
    for model in (Rollup, FleetRollup):
        for seconds, kept in ((MINUTE, minutes_kept), (HOUR, hours_kept)):
            old = model.objects.filter(seconds=seconds, start__lt=now - kept).order_by().values_list("pk", flat=True)
            while pks := list(old[:ROWS_AT_ONCE]):
                deleted += model.objects.filter(pk__in=pks).delete()[0]
    return deleted
