"""One picture a second for every browser that looks at the fleet.

Called by `nodes.consumers`. Kept true: one computation for all viewers of the process and none without
viewers, one encoding for all who look at the same; a viewer that is slow skips pictures, never queues them;
sequence numbers only grow, and a viewer is sent what changed only in columns that it has as of the tick before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError, connections

from nodes.live.fleet_columns import Columns, Figures, columns_of, figures_of
from nodes.live.fleet_frames import ALL, Condition, Picture, layout_message
from nodes.live.fleet_rows import FleetRows
from nodes.live.flush import read_latest, redis_is_down
from nodes.live.samples import SampleView

TICK_SECONDS = 1.0

log = structlog.get_logger(__name__)


class HubStopped(Exception):
    """The hub failed; the browser connects again and thereby starts it anew."""


@dataclass(frozen=True, slots=True)
class Moment:
    """What was true at one tick, ready to be sent."""

    sequence: int
    layout_version: int
    layout: str
    picture: Picture


class Viewer:
    """One browser's place in the stream. It keeps one moment, the newest, which it shares with every other viewer.

    `columns`: the set it looks at (`fleet_frames.column_set`).
    """

    def __init__(self, columns: int = ALL) -> None:
        self._columns = columns
        self._news = asyncio.Event()
        self._moment: Moment | None = None
        self._stopped = False
        self._sequence = -1
        self._layout_version = -1
        self._held = 0

    def tell(self, moment: Moment) -> None:
        """A newer picture replaces the one not yet taken."""
        self._moment = moment
        self._news.set()

    def stop(self) -> None:
        """There will be no more pictures."""
        self._stopped = True
        self._news.set()

    def look_at(self, columns: int) -> None:
        """Other columns from now on: at once, as of the last tick, where there is one that the browser has not got."""
        missing = columns & ~self._held
        self._columns = columns
        self._held &= columns
        if missing and self._moment is not None:
            self._news.set()

    def forget(self) -> None:
        """The browser missed something: the next picture is sent whole, with its layout."""
        self._sequence = self._layout_version = -1

    async def next(self) -> tuple[str | None, bytes]:
        """Wait for a picture not sent yet: (layout message if it is new, frame). Raises HubStopped."""
        await self._news.wait()
        if self._stopped or self._moment is None:
            raise HubStopped
        self._news.clear()
        moment = self._moment
        layout = moment.layout if moment.layout_version != self._layout_version else None
        follows = layout is None and moment.sequence == self._sequence + 1
        frame = moment.picture.frame(self._columns, self._held if follows else 0)
        self._sequence, self._layout_version, self._held = moment.sequence, moment.layout_version, self._columns
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

    def join(self, columns: int = ALL) -> Viewer:
        """A new viewer of a set of columns; the first one starts the ticking."""
        viewer = Viewer(columns)
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
        self._rows = FleetRows()  # a run that was left may still be reading the rows of before
        self._previous, self._layout = None, ""
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
        loop = asyncio.get_running_loop()
        try:
            refresh = database_sync_to_async(rows.refresh, thread_sensitive=False, executor=executor)
            if await refresh() or not self._layout:
                self._layout_version += 1
                told = partial(layout_message, rows.layout, version=self._layout_version)
                self._layout = await loop.run_in_executor(executor, told)
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
        columns, figures = await loop.run_in_executor(executor, partial(_look, rows, samples, now=now))
        self._sequence += 1
        picture = Picture(
            columns,
            self._previous,
            sequence=self._sequence,
            layout=self._layout_version,
            time=now,
            conditions=conditions,
            figures=figures,
        )
        self._previous = columns
        self._moment = Moment(self._sequence, self._layout_version, self._layout, picture)
        for viewer in self._viewers:
            viewer.tell(self._moment)


def _look(rows: FleetRows, samples: Mapping[str, SampleView], *, now: float) -> tuple[Columns, Figures]:
    columns = columns_of(rows, samples, now=now)
    return columns, figures_of(rows, columns)


HUB = Hub()
"""This process's hub."""
