"""What pages and REST show of the past: one device's columns over a range, the fleet's totals over a range, who is idle.

Called by views. Kept true: a range of days is answered by hours and of hours by minutes, so no answer has more points than 90 days have hours; the newest hours, not
rolled up yet, are made of their minutes; where nothing was measured there is a gap (None), never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import msgspec
import redis
import structlog
from django.db.models import Q, QuerySet
from django.db.models.fields.json import KeyTransform

from agent.protocol import COLUMNS
from nodes.history import figures, ring, totals
from nodes.history.figures import Figures
from nodes.history.rollups import HOUR, MINUTE
from nodes.history.totals import Totals
from nodes.models import Device, FleetRollup, Node, Rollup

BY_MINUTE_UP_TO: Final = timedelta(hours=25)
LONGEST: Final = timedelta(days=90)
GAP_SECONDS: Final = 3.5
"""Seconds without a sample, from which on the ring's series has a gap."""

Part = TypeVar("Part", Figures, Totals)
Row = TypeVar("Row", Rollup, FleetRollup)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Series:
    """Points at `times` (beginnings, seconds since 1970, ascending), `step` seconds long each. Column → one value a point, None: unknown."""

    step: int
    times: Sequence[float]
    means: dict[str, list[float | None]]
    largest: dict[str, list[float | None]]

    @classmethod
    def empty(cls) -> Series:
        """No points of any column."""
        return cls(1, [], {name: [] for name in COLUMNS}, {name: [] for name in COLUMNS})


def device_series(device: Device, *, since: datetime, until: datetime) -> Series:
    """Every column of one GPU; its node is loaded."""
    return node_series(device.node, [device.uuid], since=since, until=until)[device.uuid]


def node_series(node: Node, uuids: Sequence[str], *, since: datetime, until: datetime) -> dict[str, Series]:
    """Every column of these GPUs of a node, all over the same times."""
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


def last_seconds(connection: redis.Redis, node: str, uuids: Sequence[str], *, until: float) -> dict[str, Series]:
    """The ring's part: these GPUs of a node, second by second, over the last minutes. Empty where nobody knows the node. Raises redis.RedisError."""
    order, devices = ring.order_of(connection, node)
    found = ring.read_node(connection, node, since=until - ring.KEPT_SECONDS, until=until)
    moments = [moment for moment in found if moment.order == order]
    times: list[float] = []
    shown: list[ring.Moment | None] = []
    for moment in moments:
        if times and moment.received_at - times[-1] > GAP_SECONDS:
            times.append(times[-1] + 1)  # nothing came meanwhile: a point that is unknown
            shown.append(None)
        times.append(round(moment.received_at, 2))
        shown.append(moment)
    made = {}
    for place, uuid in enumerate(devices):
        if uuid in uuids:
            values = {
                name: [None if one is None else _known(one.columns[row][place]) for one in shown]
                for row, name in enumerate(COLUMNS)
            }
            made[uuid] = Series(1, times, values, values)
    return made


def _known(value: int | None) -> float | None:
    return None if value is None else float(value)


def _spans(node: Node, since: datetime, until: datetime, step: int) -> Iterator[tuple[datetime, Figures]]:
    """(beginning, figures) ascending."""

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
    """What `read` gives of each step, ascending; the newest hours, where they are not rolled up yet, made of their minutes by `whole`."""
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
    """A group's totals (`Totals`; `means` only)."""
    step = MINUTE if until - since <= BY_MINUTE_UP_TO else HOUR
    read = partial(_totals, group)
    found = {int(start.timestamp()): one for start, one in _with_newest(read, totals.mean_of, since, until, step)}
    times = _filled(found, step)
    means = {name: [_total(found.get(time), name) for time in times] for name in Totals.__struct_fields__}
    return Series(step, times, means, {})


def _totals(group: str, since: datetime, until: datetime, step: int) -> Iterator[tuple[datetime, Totals]]:
    """(beginning, totals of the group) ascending; the database takes the group out of each row."""
    if group != totals.EVERYTHING and ":" not in group:
        return  # no group has such a name, and to a database a number is a place in a list
    rows = _rows(FleetRollup.objects.all(), since, until, step).annotate(group=KeyTransform(group, "groups"))
    for start, found in rows.values_list("start", "group"):
        if found is not None:
            yield start, msgspec.convert(found, Totals)


def _total(found: Totals | None, name: str) -> float | None:
    """None where there is no such minute, or nobody measured."""
    if found is None or (name in totals.MEASURED and not getattr(found, totals.MEASURED[name])):
        return None
    return float(getattr(found, name))


def groups_known() -> list[str]:
    """Groups of the newest minute: `all` first."""
    newest = FleetRollup.objects.filter(seconds=MINUTE).order_by("-start").values_list("groups", flat=True).first()
    return sorted(newest or {}, key=lambda name: (name != totals.EVERYTHING, name))


def idle_devices() -> QuerySet[Device]:
    """GPUs that somebody holds and nobody uses, the longest first, with their nodes."""
    held = Q(core_used__gt=0) | Q(memory_used__gt=0)
    return (
        Device.objects.filter(held, idle_since__isnull=False)
        .select_related("node")
        .defer("node__links", "node__disputed")
        .order_by("idle_since", "pk")
    )


def csv_rows(series: Series) -> Iterator[list[str]]:
    """A header, then a line a point: time (ISO 8601, UTC), each column's mean and largest; an empty field: unknown."""
    yield ["time", *series.means, *(f"{name}_max" for name in series.largest)]
    for at, time in enumerate(series.times):
        values = [column[at] for column in (*series.means.values(), *series.largest.values())]
        yield [datetime.fromtimestamp(time, UTC).isoformat(), *("" if one is None else f"{one:.15g}" for one in values)]


def _rows(rows: QuerySet[Row], since: datetime, until: datetime, step: int) -> QuerySet[Row]:
    return rows.filter(seconds=step, start__gte=since, start__lt=until).order_by("start")


def _filled(known: Collection[int], step: int) -> list[int]:
    """Every step from the first to the last, so that a gap is seen as one."""
    return list(range(min(known), max(known) + 1, step)) if known else []
