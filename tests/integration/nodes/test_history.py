"""From samples through the ring to minutes, hours, and what pages are given; on both databases, through a real
Redis.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import redis
from django.utils import timezone

from agent.protocol import COLUMNS
from nodes.history import ring, rollups, series
from nodes.history.figures import unpack
from nodes.history.rollups import HOUR, MINUTE
from nodes.history.totals import Totals, mean_of
from nodes.live.samples import SAMPLES_KEY, SampleView
from nodes.models import Device, FleetRollup, Node, Rollup
from tests.factories import NodeFactory

pytestmark = pytest.mark.usefixtures("ledger_db")
MINUTES = timedelta(minutes=1)


class Backdated:
    """In place of a pipeline: the ring as it would be, had it been written at that time."""

    def __init__(self, connection: redis.Redis, at: float) -> None:
        self.connection = connection
        self.at = at

    def xadd(self, key: str, fields: dict[Any, Any], *, minid: int, approximate: bool) -> None:
        assert approximate
        assert minid == int((self.at - ring.KEPT_SECONDS) * 1000)
        tries = self.connection.xinfo_stream(key)["length"] if self.connection.exists(key) else 0
        self.connection.xadd(key, fields, id=f"{int(self.at * 1000)}-{tries + 1}")

    def expire(self, key: str, seconds: int) -> None:
        self.connection.expire(key, seconds)


class World:
    """A Redis with samples, and the time of day."""

    def __init__(self, connection: redis.Redis) -> None:
        self.connection = connection
        self.minute = timezone.now().astimezone(UTC).replace(second=0, microsecond=0) - 2 * MINUTES

    def sample(self, node: Node, second: float, **columns: tuple[int | None, ...]) -> None:
        """A sample that came so many seconds after the minute's beginning."""
        devices = tuple(node.devices.order_by("minor").values_list("uuid", flat=True))
        unknown = (None,) * len(devices)
        at = self.minute.timestamp() + second
        known = {name: columns.get(name, unknown) for name in COLUMNS}
        view = SampleView(node.name, "boot", int(second * 10), at, at, devices, **known)
        self.connection.hset(SAMPLES_KEY, node.name, msgspec.msgpack.encode(view))
        ring.append(Backdated(self.connection, at), ring.pack([view]), oldest=at - ring.KEPT_SECONDS)

    def roll_up(self, *, after: timedelta = 2 * MINUTES) -> list[datetime]:
        return rollups.roll_up(self.connection, now=self.minute + after)


@pytest.fixture
def world(redis_url: str) -> Iterator[World]:
    connection = redis.Redis.from_url(redis_url)
    yield World(connection)
    connection.close()


def gpu(node: Node, minor: int = 0) -> Device:
    return Device.objects.select_related("node").get(node=node, minor=minor)


def fleet(start: datetime, group: str = "all", seconds: int = MINUTE) -> Totals:
    return msgspec.convert(FleetRollup.objects.get(start=start, seconds=seconds).groups[group], Totals)


def test_a_minute_of_a_node(world: World) -> None:
    """VIEW-1 means and largest values of what came within the minute, once, and nothing of the minutes beside it."""
    node = NodeFactory(name="n1", gpus=2)
    world.sample(node, -0.5, utilisation_percent=(99, 99))
    for second, percent in ((0, 10), (20, 20), (59.9, 60)):
        world.sample(node, second, utilisation_percent=(percent, None), power_watts=(400 + percent, 70))
    world.sample(node, 60, utilisation_percent=(99, 99))
    assert world.roll_up(after=MINUTES) == [world.minute - MINUTES]
    assert world.roll_up() == [world.minute]
    assert world.roll_up() == []
    found = unpack(bytes(Rollup.objects.get(node=node, start=world.minute).body))
    one, other = gpu(node).uuid, gpu(node, 1).uuid
    assert found.of(one, "utilisation_percent") == (3, 30.0, 60)
    assert found.of(other, "utilisation_percent") is None
    assert found.of(other, "power_watts") == (3, 70.0, 70)
    total = fleet(world.minute)
    assert (total.gpus, total.measured, total.used, total.power) == (2, 1, 0.3, 500.0)


def test_two_workers_at_once(world: World) -> None:
    """A minute that another worker has written half is written whole, and nothing twice."""
    node, other = NodeFactory(name="n1", gpus=1), NodeFactory(name="n2", gpus=1)
    for one in (node, other):
        world.sample(one, 5, utilisation_percent=(50,))
    world.roll_up()
    FleetRollup.objects.filter(start=world.minute).delete()
    Rollup.objects.filter(node=other).delete()
    assert world.roll_up() == [world.minute]
    assert Rollup.objects.filter(start=world.minute).count() == 2


def test_devices_that_changed_within_the_minute(world: World) -> None:
    """Samples of another order of devices say nothing of those that are there now."""
    node = NodeFactory(name="n1", gpus=2)
    world.sample(node, 5, utilisation_percent=(90, 10))
    Device.objects.filter(node=node, minor=0).update(uuid="GPU-new")
    world.sample(node, 50, utilisation_percent=(20, 30))
    world.roll_up()
    found = unpack(bytes(Rollup.objects.get(node=node, start=world.minute).body))
    assert found.of("GPU-new", "utilisation_percent") == (1, 20.0, 20)
    assert found.of(gpu(node, 1).uuid, "utilisation_percent") == (1, 30.0, 30)


def test_what_cannot_be_read_is_passed_over(world: World) -> None:
    """Another version's bytes in the ring, a node that is gone: the others have their minute."""
    node = NodeFactory(name="n1", gpus=1)
    gone = NodeFactory(name="gone", gpus=1)
    world.sample(node, 5, utilisation_percent=(50,))
    world.sample(gone, 5, utilisation_percent=(50,))
    gone.delete()
    key = f"{ring.KEY}{ring.bucket_of('n1')}"
    at = int(world.minute.timestamp() * 1000) + 6000
    world.connection.xadd(key, {ring.FIELD: b"nonsense"}, id=f"{at}-1")
    world.connection.xadd(key, {b"other": b""}, id=f"{at}-2")
    world.connection.hset(SAMPLES_KEY, "broken", b"\xc1")
    world.roll_up()
    assert Rollup.objects.filter(start=world.minute).values_list("node__name", flat=True).get() == "n1"


def test_moments_and_rows_of_another_version(world: World) -> None:
    """VIEW-1 a moment with other columns, as in the middle of an update, and a row that cannot be read, hide nothing of
    other nodes.
    """
    node, other = NodeFactory(name="n1", gpus=1), NodeFactory(name="n2", gpus=1)
    for one in (node, other):
        world.sample(one, 5, utilisation_percent=(50,))
    key = f"{ring.KEY}{ring.bucket_of('n1')}"
    moment = ring.Moment("n1", 1, world.minute.timestamp() + 6, ((1,),) * 3)
    body = zlib.compress(msgspec.msgpack.encode([moment]))
    world.connection.xadd(key, {ring.FIELD: body}, id=f"{int(world.minute.timestamp() * 1000) + 6000}-9")
    assert world.roll_up() == [world.minute]
    assert Rollup.objects.filter(start=world.minute).count() == 2
    Rollup.objects.filter(node=node).update(body=b"nonsense")
    hour = world.minute.replace(minute=0)
    assert hour in rollups.roll_up_hours(now=hour + timedelta(hours=1, minutes=3))
    assert Rollup.objects.get(seconds=HOUR, start=hour).node == other


def test_idle_but_held(world: World) -> None:
    """VIEW-1 a GPU that somebody holds and nobody uses is idle from the first such minute until it works, or is given
    back.
    """
    node = NodeFactory(name="n1", gpus=4)
    Device.objects.filter(node=node, minor__in=(0, 1, 2)).update(core_used=100)
    for second in range(0, 60, 2):
        world.sample(node, second, utilisation_percent=(1, 1, 1 if second else 80, 0))
    world.roll_up()
    assert [(one.minor, one.idle_since) for one in series.idle_devices()] == [(0, world.minute), (1, world.minute)]
    assert fleet(world.minute).idle == 2
    assert fleet(world.minute).allocated == 3
    first, world.minute = world.minute, world.minute + MINUTES
    Device.objects.filter(node=node, minor=0).update(core_used=0)
    for second in range(0, 60, 2):
        world.sample(node, second, utilisation_percent=(0, None, 3, 0))
    world.roll_up()
    assert [(one.minor, one.idle_since) for one in series.idle_devices()] == [(2, world.minute)], (
        "not measured is not idle"
    )
    assert first < world.minute
    world.minute += MINUTES
    world.roll_up()
    assert series.idle_devices().count() == 1, "Redis was away: nobody is said to work"
    world.minute += MINUTES
    world.sample(node, 30, utilisation_percent=(0, 50, 50, 0))
    world.roll_up()
    assert not series.idle_devices().exists()


def test_hours_out_of_minutes(world: World) -> None:
    """VIEW-1 an hour is made of its minutes once they are there; what is newer is shown from minutes."""
    node = NodeFactory(name="n1", gpus=1)
    node.labels = {"pool": "training"}
    node.save()
    for second in (0, 30):
        world.sample(node, second, utilisation_percent=(40,))
    world.roll_up()
    body = Rollup.objects.get(node=node, start=world.minute).body
    hour = datetime(2026, 6, 1, 12, tzinfo=UTC)
    groups = FleetRollup.objects.get(start=world.minute).groups
    for minute in range(90):
        start = hour + minute * MINUTES
        Rollup.objects.create(node=node, seconds=MINUTE, start=start, body=body)
        FleetRollup.objects.create(seconds=MINUTE, start=start, groups=groups)
    assert rollups.roll_up_hours(now=hour + timedelta(hours=1, seconds=30)) == []
    assert rollups.roll_up_hours(now=hour + timedelta(hours=1, minutes=3)) == [hour]
    assert rollups.roll_up_hours(now=hour + timedelta(hours=1, minutes=3)) == []
    assert fleet(hour, "pool:training", HOUR) == fleet(world.minute)
    found = series.device_series(gpu(node), since=hour - timedelta(days=7), until=hour + timedelta(hours=2))
    assert found.step == HOUR
    assert found.times == [int(hour.timestamp()), int(hour.timestamp()) + HOUR]
    assert found.means["utilisation_percent"] == [40.0, 40.0]
    by_minute = series.device_series(gpu(node), since=hour, until=hour + timedelta(hours=2))
    assert (by_minute.step, len(by_minute.times)) == (MINUTE, 90)
    assert series.fleet_series(group="all", since=hour, until=hour + timedelta(hours=2)).means["used"] == [0.4] * 90


def test_a_gap_is_seen_as_one(world: World) -> None:
    """VIEW-1 minutes that are missing are unknown, not 0 and not joined."""
    node = NodeFactory(name="n1", gpus=1)
    world.sample(node, 5, utilisation_percent=(40,))
    world.roll_up()
    row = Rollup.objects.get(node=node, start=world.minute)
    Rollup.objects.create(node=node, seconds=MINUTE, start=world.minute + 3 * MINUTES, body=row.body)
    Rollup.objects.create(node=node, seconds=MINUTE, start=world.minute + 4 * MINUTES, body=b"nonsense")
    found = series.device_series(gpu(node), since=world.minute, until=world.minute + timedelta(hours=1))
    assert found.means["utilisation_percent"] == [40.0, None, None, 40.0]
    assert found.means["power_watts"] == [None] * 4
    lines = list(series.csv_rows(found))
    assert lines[0][:2] == ["time", "utilisation_percent"]
    assert lines[1][:3] == [world.minute.isoformat(), "40", ""]
    assert lines[2][1] == ""
    assert len(lines) == 5


def test_the_last_seconds(world: World) -> None:
    """VIEW-1 a page begins with what the ring has, before the first live picture."""
    node = NodeFactory(name="n1", gpus=2)
    for second in (1, 2, 3):
        world.sample(node, second, utilisation_percent=(second, None))
    until = world.minute.timestamp() + 4
    one, other = (gpu(node, minor).uuid for minor in (0, 1))
    found = series.last_seconds(world.connection, "n1", [one, other, "GPU-9"], until=until)
    assert found.keys() == {one, other}
    assert found[one].means["utilisation_percent"] == [1.0, 2.0, 3.0]
    assert found[other].means["utilisation_percent"] == [None] * 3
    assert series.last_seconds(world.connection, "n9", [one], until=until) == {}


def test_a_gap_of_the_last_seconds(world: World) -> None:
    """VIEW-1 no line goes over the time in which nothing came."""
    node = NodeFactory(name="n1", gpus=1)
    for second in (1, 2, 20):
        world.sample(node, second, utilisation_percent=(second,))
    uuid = gpu(node).uuid
    found = series.last_seconds(world.connection, "n1", [uuid], until=world.minute.timestamp() + 30)[uuid]
    assert found.means["utilisation_percent"] == [1.0, 2.0, None, 20.0]
    assert [time - world.minute.timestamp() for time in found.times] == [1, 2, 3, 20]


def test_means_are_over_the_minutes_that_know() -> None:
    """VIEW-1 an hour of which half was not measured has the mean of the other half; memory and power by themselves."""
    known = Totals(gpus=4, measured=2, used=1.5, memory=80, memory_measured=40, memory_used=30)
    blind = Totals(gpus=2, memory=40, power=700, power_measured=1)
    made = mean_of([known, blind])
    assert (made.gpus, made.memory) == (3, 60)
    assert (made.measured, made.used, made.memory_measured, made.memory_used) == (2, 1.5, 40, 30)
    assert (made.power, made.power_measured) == (700, 1)


def test_rows_past_their_time_are_deleted(world: World) -> None:
    """VIEW-1 minutes and hours each have their time."""
    node = NodeFactory(name="n1", gpus=1)
    now = world.minute
    for seconds, days in ((MINUTE, 1), (MINUTE, 3), (HOUR, 3), (HOUR, 100)):
        start = now - timedelta(days=days)
        Rollup.objects.create(node=node, seconds=seconds, start=start, body=b"")
        FleetRollup.objects.create(seconds=seconds, start=start, groups={})
    deleted = rollups.prune(now=now, minutes_kept=timedelta(days=2), hours_kept=timedelta(days=90))
    assert deleted == 4
    for model in (Rollup, FleetRollup):
        left = model.objects.values_list("seconds", "start")
        assert set(left) == {(MINUTE, now - timedelta(days=1)), (HOUR, now - timedelta(days=3))}
