"""One picture a second for every browser that looks at the fleet.

Called by `nodes.consumers`. Kept true: one computation for all viewers of the process and none without
viewers; a viewer that is slow skips pictures, never queues them; sequence numbers only grow, and a viewer
is sent a delta only when it has the picture before it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError, connections
from numpy.typing import NDArray

from nodes.live.fleet_frames import (
    COLUMNS,
    POWER_STEP_WATTS,
    UNKNOWN,
    Columns,
    Condition,
    Flag,
    delta_frame,
    full_frame,
    layout_message,
)
from nodes.live.fleet_rows import FleetRows, Layout
from nodes.live.flush import read_latest, redis_is_down
from nodes.live.samples import SampleView

TICK_SECONDS = 1.0
OLD_SAMPLE_SECONDS = 10.0
"""A sample older than this says nothing about now."""

log = structlog.get_logger(__name__)


class HubStopped(Exception):
    """The hub failed; the browser connects again and thereby starts it anew."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What was true at one tick, ready to be sent. `delta` None: only the full picture will do."""

    sequence: int
    layout_version: int
    layout: str
    full: bytes
    delta: bytes | None


class Viewer:
    """One browser's place in the stream."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._moment: Moment | None = None
        self._stopped = False
        self._sequence = -1
        self._layout_version = -1

    def tell(self, moment: Moment) -> None:
        """A newer picture replaces the one not yet taken."""
        self._moment = moment
        self._news.set()

    def stop(self) -> None:
        """There will be no more pictures."""
        self._stopped = True
        self._news.set()

    def forget(self) -> None:
        """The browser missed something: the next picture is sent whole, with its layout."""
        self._sequence = self._layout_version = -1

    async def next(self) -> tuple[str | None, bytes]:
        """Wait for a picture newer than the last: (layout message if it is new, frame). Raises HubStopped."""
        await self._news.wait()
        if self._stopped or self._moment is None:
            raise HubStopped
        self._news.clear()
        moment = self._moment
        layout = moment.layout if moment.layout_version != self._layout_version else None
        follows = layout is None and moment.sequence == self._sequence + 1
        frame = moment.delta if follows and moment.delta is not None else moment.full
        self._sequence, self._layout_version = moment.sequence, moment.layout_version
        return layout, frame


class Hub:
    """The process's source of pictures. Used from one event loop; the database is read in a thread of its own."""

    def __init__(
        self,
        *,
        read_samples: Callable[[], Mapping[str, SampleView]] = read_latest,
        redis_down: Callable[[], bool] = redis_is_down,
        clock: Callable[[], float] = time.time,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self._read_samples = read_samples
        self._redis_down = redis_down
        self._clock = clock
        self._tick_seconds = tick_seconds
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._sequence = 0
        self._layout_version = 0
        self._layout = ""
        self._rows = FleetRows()
        self._previous: Columns | None = None
        self._moment: Moment | None = None

    @property
    def viewers(self) -> int:
        """How many browsers look."""
        return len(self._viewers)

    def join(self) -> Viewer:
        """A new viewer; the first one starts the ticking."""
        viewer = Viewer()
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="fleet-hub")
        elif self._moment is not None:
            viewer.tell(self._moment)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """The last one out stops the ticking."""
        self._viewers.discard(viewer)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None
            self._moment = None

    async def _run(self) -> None:
        task = asyncio.current_task()
        executor = ThreadPoolExecutor(1, thread_name_prefix="fleet-hub")
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while True:
                await self._tick(executor)
                due = max(due + self._tick_seconds, loop.time() + self._tick_seconds / 10)
                await asyncio.sleep(due - loop.time())
        except Exception:  # viewers are told and connect again; a later hub starts clean
            log.exception("fleet.hub.failed")
        finally:
            executor.submit(connections.close_all)
            executor.shutdown(wait=False)
            if self._task is task:  # failed, not left: a later hub has other viewers
                for viewer in self._viewers:
                    viewer.stop()
                self._viewers.clear()
                self._task = self._moment = None

    async def _tick(self, executor: ThreadPoolExecutor) -> None:
        conditions = Condition(0)
        rows = self._rows
        try:
            refresh = database_sync_to_async(rows.refresh, thread_sensitive=False, executor=executor)
            if await refresh() or not self._layout:
                self._layout_version += 1
                self._layout = layout_message(rows.layout, version=self._layout_version)
                self._previous = None
        except DatabaseError as error:
            log.warning("fleet.hub.database", error=str(error))
            conditions |= Condition.DATABASE_DOWN
            if not self._layout:
                return
        now = self._clock()
        samples = self._read_samples()  # here: the table belongs to the event loop
        if self._redis_down():
            conditions |= Condition.REDIS_DOWN
        loop = asyncio.get_running_loop()
        columns = await loop.run_in_executor(executor, partial(columns_of, rows, samples, now=now))
        self._sequence += 1
        about = {"sequence": self._sequence, "layout": self._layout_version}
        delta = None
        if self._previous is not None:
            delta = delta_frame(columns, self._previous, **about, time=now, conditions=conditions)
        full = full_frame(columns, **about, time=now, conditions=conditions)
        self._previous = columns
        self._moment = Moment(self._sequence, self._layout_version, self._layout, full, delta)
        for viewer in self._viewers:
            viewer.tell(self._moment)


def columns_of(rows: FleetRows, samples: Mapping[str, SampleView], *, now: float) -> Columns:
    """The columns of one frame from the ledger's rows and the agents' samples; `now` in seconds since 1970."""
    layout = rows.layout
    columns = np.full((len(COLUMNS), layout.device_count), UNKNOWN, np.uint8)
    columns[0] = rows.core
    columns[1] = rows.memory
    columns[6] = (
        rows.healthy * Flag.HEALTHY
        + rows.present * Flag.PRESENT
        + rows.stranger * Flag.STRANGER
        + rows.held * Flag.HELD
        + rows.node_ready * Flag.NODE_READY
    )
    utilisation, memory, temperature, power = _measured(layout, samples, now)
    columns[2] = _bytes(utilisation)
    with np.errstate(invalid="ignore", divide="ignore"):
        columns[3] = _bytes(100 * memory / rows.size)
    columns[4] = _bytes(temperature)
    columns[5] = _bytes(power / POWER_STEP_WATTS)
    return columns


def _measured(layout: Layout, samples: Mapping[str, SampleView], now: float) -> tuple[NDArray[np.float64], ...]:
    """Four columns of what agents said last, NaN where unknown. Whole nodes at a time where the order is the layout's."""
    said: tuple[list[int | None], ...] = ([], [], [], [])
    for node in layout.nodes:
        sample = samples.get(node.name)
        if sample is None or sample.age_seconds(now=now) > OLD_SAMPLE_SECONDS:
            for column in said:
                column.extend([None] * len(node.devices))
            continue
        values = (
            sample.utilisation_percent,
            sample.memory_used_bytes,
            sample.temperature_celsius,
            sample.power_watts,
        )
        if sample.devices == node.gpus:
            others = [None] * (len(node.devices) - len(node.gpus))
            for column, known in zip(said, values, strict=True):
                column.extend(known)
                column.extend(others)
        else:
            places = [sample.row_of.get(device.uuid) for device in node.devices]
            for column, known in zip(said, values, strict=True):
                column.extend(None if place is None else known[place] for place in places)
    return tuple(np.array(column, np.float64) for column in said)


def _bytes(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    known = np.isfinite(values)
    return np.where(known, np.clip(np.where(known, values, 0), 0, UNKNOWN - 1), UNKNOWN).astype(np.uint8)


HUB = Hub()
"""This process's hub."""
