"""The fleet stream: bytes and time of a tick, what fifty browsers cost, and what painting costs in a real Chromium.

Called by `run`. All utilisations of the fleet move each second, the worst that a stream of them can do. Invariants: the
hub, its viewers, the page and every byte are the product's own; only the agents and the sockets are missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from access.actors import SYSTEM
from agent.protocol import COLUMNS as COLUMNS_MEASURED
from allocations.fleet_holders import HolderKey, fleet_holders
from allocations.models import AllocationDevice
from allocations.selectors import held_devices
from nodes.live.fleet_columns import COLUMNS, columns_of, figures_of
from nodes.live.fleet_frames import ALL, ALWAYS, column_set
from nodes.live.fleet_rows import FleetRows
from nodes.live.hub import Hub, HubStopped, Viewer
from nodes.live.samples import SampleView
from tests.bench import fleets, painting
from tests.bench.figures import Figure, Report, timed_figure
from tests.bench.in_process import timed
from tests.bench.wire import Rounds
from tests.databases import connected
from tests.fleet_feed import Feed

ONE = column_set(["utilisation"])
VIEWERS = 50
TICKS = 30


def measure_frames(report: Report, folder: Path, *, rounds: int, nodes: int) -> None:
    """All of it."""
    feed = Feed(nodes)
    _measure_bytes(report, feed)
    _measure_encoding(report, feed, rounds=rounds)
    with connected("sqlite", folder):
        fleets.register(nodes)
        _measure_ticks(report, rounds=min(rounds, 10))
        _measure_viewers(report)
        _measure_holders(report, rounds=min(rounds, 10))
    painting.measure_painting(report, folder, nodes=nodes, frames=2 * rounds)


def _measure_bytes(report: Report, feed: Feed) -> None:
    chance = np.random.default_rng(5)
    measured = {name: chance.integers(1, 100, feed.rows, dtype=np.uint8) for name in COLUMNS[3:7]}
    for name, wanted, moving in (
        ("utilisation, looked at", ONE, {}),
        ("utilisation, with all measures looked at", ALL, {}),
        ("all that is measured, all looked at", ALL, measured),
    ):
        picture = feed.tick(**moving)
        report.add(
            Figure(
                f"fleet stream, {feed.rows:,} GPUs, a second: {name}",
                "",
                "kB",
                len(picture.frame(wanted, wanted)) / 1000,
                floor=feed.rows * (1 + len(moving)) / 1000,
                note=f"whole {len(picture.frame(wanted, 0)) / 1000:,.1f} kB; the floor is a byte a value that moved",
            )
        )


def _measure_encoding(report: Report, feed: Feed, *, rounds: int) -> None:
    for name, wanted in (("one measure", ONE), ("all", ALL)):
        found = Rounds()
        at = [bit for bit in range(len(COLUMNS)) if wanted >> bit & 1]
        for _ in range(rounds):
            feed.tick()
            found.product.append([timed(partial(_encoded, feed, wanted)) for _ in range(20)])
            found.floor.append([timed(partial(_copied, feed, at)) for _ in range(20)])
        report.add(timed_figure(f"fleet frame, {feed.rows:,} GPUs, {name}", found, note="the floor copies the columns"))


def _encoded(feed: Feed, wanted: int) -> object:
    return feed.picture().frame(wanted, wanted)


def _copied(feed: Feed, at: Sequence[int]) -> object:
    return [feed.columns[one].tobytes() for one in at]


def _figured(rows: FleetRows, samples: Mapping[str, SampleView]) -> object:
    return figures_of(rows, columns_of(rows, samples, now=1.0))


def _measure_ticks(report: Report, *, rounds: int) -> None:
    rows = FleetRows(held_devices)
    rows.refresh()
    columns, refreshed = Rounds(), Rounds()
    for number in range(rounds):
        samples = samples_of(rows, number)
        made = columns_of(rows, samples, now=1.0)
        floor = [timed(made.copy) for _ in range(5)]
        columns.floor.append(floor)
        refreshed.floor.append(floor)
        columns.product.append([timed(partial(_figured, rows, samples)) for _ in range(3)])
        refreshed.product.append([timed(rows.refresh) for _ in range(3)])
    report.add(timed_figure("fleet tick: samples to columns and figures", columns, note="the floor copies the columns"))
    report.add(timed_figure("fleet tick: the ledger asked what changed", refreshed, database="sqlite"))


def samples_of(rows: FleetRows, turn: int) -> Mapping[str, SampleView]:
    """A sample of every node, other than that of the turn before."""
    chance = np.random.default_rng(turn)
    found = {}
    for node in rows.layout.nodes:
        count = len(node.gpus)
        values = dict(
            zip(COLUMNS_MEASURED, chance.integers(1, 100, (len(COLUMNS_MEASURED), count)).tolist(), strict=True)
        )
        said = {
            name: tuple(value << 30 if name.endswith("_bytes") else value for value in column)
            for name, column in values.items()
        }
        found[node.name] = SampleView(node.name, "boot", turn, 1.0, 1.0, node.gpus, **said)
    return found


def _measure_viewers(report: Report) -> None:
    """CPU of the whole process a tick, beside the same with one viewer."""
    turns = [samples_of(_rows(), turn) for turn in range(2)]
    figures = {}
    for name, viewers in (
        ("alike", [ONE] * VIEWERS),
        ("each otherwise", [bits | ALWAYS for bits in range(VIEWERS)]),
        ("one", [ONE]),
    ):
        figures[name] = asyncio.run(_cpu_ms_a_tick(turns, viewers))
    for name in ("alike", "each otherwise"):
        report.add(
            Figure(
                f"fleet hub, {VIEWERS} viewers {name}, CPU a tick",
                "sqlite",
                "ms",
                figures[name],
                floor=figures["one"],
                samples=TICKS,
                note="the floor has one viewer; sockets are not in it",
            )
        )


def _measure_holders(report: Report, *, rounds: int) -> None:
    found = Rounds()
    for _ in range(rounds):
        found.product.append(
            [timed(lambda: fleet_holders(actor=SYSTEM, by=HolderKey.POD, team_of={})) for _ in range(3)]
        )
        found.floor.append([timed(lambda: list(AllocationDevice.objects.values_list("pk"))) for _ in range(3)])
    held = AllocationDevice.objects.filter(live=True).count()
    report.add(
        timed_figure(
            f"fleet holders by pod, {held:,} devices held", found, database="sqlite", note="the floor reads their ids"
        )
    )


def _rows() -> FleetRows:
    rows = FleetRows(held_devices)
    rows.refresh()
    return rows


async def _cpu_ms_a_tick(turns: list[Mapping[str, SampleView]], wanted: list[int]) -> float:
    enough = asyncio.Event()
    marks: list[float] = []

    def read() -> Mapping[str, SampleView]:
        marks.append(time.process_time())
        if len(marks) > TICKS + 1:
            enough.set()
        return turns[len(marks) % len(turns)]

    hub = Hub(
        held_devices=held_devices, read_samples=read, redis_down=lambda: False, clock=lambda: 1.0, tick_seconds=0.02
    )
    viewers = [hub.join(columns) for columns in wanted]
    readers = [asyncio.ensure_future(_read(viewer)) for viewer in viewers]
    await enough.wait()
    for viewer in viewers:
        hub.leave(viewer)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return 1000 * statistics.median(later - earlier for earlier, later in itertools.pairwise(marks[1:]))


async def _read(viewer: Viewer) -> None:
    with contextlib.suppress(HubStopped):
        while True:
            await viewer.next()
