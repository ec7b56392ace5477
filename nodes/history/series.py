"""Reads of history: the columns of devices and the totals of the fleet over a range, and idle devices.

Called by views. Invariants: a range of days is read from hours, one of hours from minutes; the newest hours, not rolled
up yet, are computed from their minutes; a point without a measurement is None, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import msgspec
import structlog
from django.db.models import QuerySet
from django.db.models.fields.json import KeyTransform

from agent.protocol import COLUMNS
from nodes.history import figures, ring, totals
from nodes.history.figures import Figures
from nodes.history.rollups import HOUR, MINUTE
from nodes.history.totals import Totals
from nodes.models import Device, FleetRollup, Node, Rollup
from nodes.selectors import device_list
from storage.redis_client import Redis

BY_MINUTE_UP_TO: Final = timedelta(hours=25)
LONGEST: Final = timedelta(days=90)
GAP_SECONDS: Final = 3.5
"""Seconds without a sample that make a gap in the ring's series."""

Part = TypeVar("Part", Figures, Totals)
Row = TypeVar("Row", Rollup, FleetRollup)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Series:
    """Points of `step` seconds that start at `times` (seconds since 1970, ascending); column → one value a point, None:
    unknown.
    """

    step: int
    times: Sequence[float]
    means: dict[str, list[float | None]]
    largest: dict[str, list[float | None]]

    @classmethod
    def empty(cls) -> Series:
        """A series without points."""
        return cls(1, [], {name: [] for name in COLUMNS}, {name: [] for name in COLUMNS})


def device_series(device: Device, *, since: datetime, until: datetime) -> Series:
    """Every column of one GPU."""
    return node_series(device.node, [device.uuid], since=since, until=until)[device.uuid]


def node_series(node: Node, uuids: Sequence[str], *, since: datetime, until: datetime) -> dict[str, Series]:
    """Every column of these GPUs of a node, over the same times."""
    step = MINUTE if until - since <= BY_MINUTE_UP_TO else HOUR
    of = {int(start.timestamp()): found for start, found in _spans(node, since, until, step)}
    times = _filled(of, step)
    return {uuid: _series(uuid, of, times, step) for uuid in uuids}


def _series(uuid: str, of: Mapping[int, Figures], times: list[int], step: int) -> Series:
    means: dict[str, list[float | None]] = {name: [] for name in COLUMNS}
    largest: dict[str, list[float | None]] = {name: [] for name in COLUMNS}
    for time in times:
        found = of.get(time)
        for name in COLUMNS:
            one = None if found is None else found.of(uuid, name)
            means[name].append(None if one is None else one[1])
            largest[name].append(None if one is None else float(one[2]))
    return Series(step, times, means, largest)


def last_seconds(connection: Redis, node: str, uuids: Sequence[str], *, until: float) -> dict[str, Series]:
    """The samples in the ring of these GPUs of a node; empty for an unknown node. Raises RedisError."""
    order, devices = ring.order_of(connection, node)
    found = ring.read_node(connection, node, since=until - ring.KEPT_SECONDS, until=until)
    moments = [moment for moment in found if moment.order == order]
    times: list[float] = []
    shown: list[ring.Moment | None] = []
    for moment in moments:
        if times and moment.received_at - times[-1] > GAP_SECONDS:
            times.append(times[-1] + 1)  # the gap, as an unknown point
            shown.append(None)
        times.append(round(moment.received_at, 2))
        shown.append(moment)
    made = {}
    for place, uuid in enumerate(devices):
        if uuid in uuids:
            values: dict[str, list[float | None]] = {
                name: [None if one is None else one.columns[row][place] for one in shown]
                for row, name in enumerate(COLUMNS)
            }
            made[uuid] = Series(1, times, values, values)
    return made


def _spans(node: Node, since: datetime, until: datetime, step: int) -> Iterator[tuple[datetime, Figures]]:
    """(start, figures), ascending."""

    def read(since: datetime, until: datetime, step: int) -> Iterator[tuple[datetime, Figures]]:
        for start, body in _rows(Rollup.objects.filter(node=node), since, until, step).values_list("start", "body"):
            found = _unpacked(node, start, bytes(body))
            if found is not None:
                yield start, found

    return _with_newest(read, figures.combined, since, until, step)


def _with_newest(
    read: Callable[[datetime, datetime, int], Iterable[tuple[datetime, Part]]],
    whole: Callable[[list[Part]], Part | None],
    since: datetime,
    until: datetime,
    step: int,
) -> Iterator[tuple[datetime, Part]]:
    """What `read` gives, ascending; the newest hours, if not rolled up yet, combined from their minutes by `whole`."""
    newest = since
    for start, found in read(since, until, step):
        newest = start + timedelta(seconds=step)
        yield start, found
    if step == MINUTE:
        return
    hours: dict[datetime, list[Part]] = {}
    for start, found in read(max(newest, until - BY_MINUTE_UP_TO), until, MINUTE):
        hours.setdefault(start.replace(minute=0), []).append(found)
    for start, parts in hours.items():
        made = whole(parts)
        if made is not None:
            yield start, made


def _unpacked(node: Node, start: datetime, body: bytes) -> Figures | None:
    try:
        return figures.unpack(body)
    except figures.Unreadable as error:
        log.warning("history.unreadable", node=node.name, start=start.isoformat(), why=str(error))
        return None


def fleet_series(*, group: str, since: datetime, until: datetime) -> Series:
    """The totals of a group: columns are the fields of `Totals`, in `means` alone."""
    step = MINUTE if until - since <= BY_MINUTE_UP_TO else HOUR
    read = partial(_totals, group)
    found = {int(start.timestamp()): one for start, one in _with_newest(read, totals.mean_of, since, until, step)}
    times = _filled(found, step)
    means = {name: [_total(found.get(time), name) for time in times] for name in Totals.__struct_fields__}
    return Series(step, times, means, {})


def _totals(group: str, since: datetime, until: datetime, step: int) -> Iterator[tuple[datetime, Totals]]:
    """(start, totals of the group), ascending; the database extracts the group from each row."""
    if group != totals.EVERYTHING and ":" not in group:
        return  # not the name of a group; a database reads a number as an index
    rows = _rows(FleetRollup.objects.all(), since, until, step).annotate(group=KeyTransform(group, "groups"))
    for start, found in rows.values_list("start", "group"):
        if found is not None:
            yield start, msgspec.convert(found, Totals)


def _total(found: Totals | None, name: str) -> float | None:
    """A total; None where there is no row, or nothing was measured."""
    if found is None or (name in totals.MEASURED and not getattr(found, totals.MEASURED[name])):
        return None
    return float(getattr(found, name))


def groups_known() -> list[str]:
    """Groups of the newest minute, `all` first."""
    newest = FleetRollup.objects.filter(seconds=MINUTE).order_by("-start").values_list("groups", flat=True).first()
    return sorted(newest or {}, key=lambda name: (name != totals.EVERYTHING, name))


def idle_devices() -> QuerySet[Device]:
    """GPUs that are held and idle, the longest first, with their nodes."""
    return device_list(held=True).filter(idle_since__isnull=False).order_by("idle_since", "pk")


def csv_rows(series: Series) -> Iterator[list[str]]:
    """A header, then a row a point: time (ISO 8601, UTC), each column's mean and maximum; an empty field: unknown."""
    yield ["time", *series.means, *(f"{name}_max" for name in series.largest)]
    for at, time in enumerate(series.times):
        values = [column[at] for column in (*series.means.values(), *series.largest.values())]
        yield [datetime.fromtimestamp(time, UTC).isoformat(), *("" if one is None else f"{one:.15g}" for one in values)]


def _rows(rows: QuerySet[Row], since: datetime, until: datetime, step: int) -> QuerySet[Row]:
    return rows.filter(seconds=step, start__gte=since, start__lt=until).order_by("start")


def _filled(known: Collection[int], step: int) -> list[int]:
    """Every step from the first to the last, gaps included."""
    return list(range(min(known), max(known) + 1, step)) if known else []
