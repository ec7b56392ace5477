"""One frame a second for every browser that shows the fleet.

Called by `nodes.consumers`. Invariants: one computation a tick for all viewers of the process and none without viewers,
one encoding for all who show the same columns; a slow viewer skips frames, they never queue; sequence numbers only
grow, and changes are sent only of columns that the viewer has as of the tick before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError, InterfaceError, connections

from nodes.live.fleet_columns import Columns, Figures, Samples, columns_of, figures_of
from nodes.live.fleet_frames import ALL, Condition, FrameSet, layout_message
from nodes.live.fleet_rows import FleetRows
from nodes.live.flush import read_latest_kept, redis_is_down

TICK_SECONDS = 1.0

log = structlog.get_logger(__name__)


class HubStopped(Exception):
    """The hub failed; a browser that connects again starts it anew."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The layout and the frames of one tick."""

    sequence: int
    layout_version: int
    layout: str
    frames: FrameSet


class Viewer:
    """One browser's place in the stream. `columns`: the set that it shows (`fleet_frames.column_set`)."""

    def __init__(self, columns: int = ALL) -> None:
        self._columns = columns
        self._arrived = asyncio.Event()
        self._tick: Tick | None = None
        self._stopped = False
        self._sequence = -1
        self._layout_version = -1
        self._held = 0

    def put(self, tick: Tick) -> None:
        """Replace the tick that was not sent yet."""
        self._tick = tick
        self._arrived.set()

    def stop(self) -> None:
        """End the stream: `next` raises HubStopped."""
        self._stopped = True
        self._arrived.set()

    def show(self, columns: int) -> None:
        """Send these columns from now on; those that the browser lacks at once, as of the last tick."""
        missing = columns & ~self._held
        self._columns = columns
        self._held &= columns
        if missing and self._tick is not None:
            self._arrived.set()

    def reset(self) -> None:
        """Send the next frame whole, with its layout."""
        self._sequence = self._layout_version = -1

    async def next(self) -> tuple[str | None, bytes]:
        """Wait for a tick not sent yet: (layout message if it is new, frame). Raises HubStopped."""
        await self._arrived.wait()
        if self._stopped or self._tick is None:
            raise HubStopped
        self._arrived.clear()
        tick = self._tick
        layout = tick.layout if tick.layout_version != self._layout_version else None
        follows = layout is None and tick.sequence == self._sequence + 1
        frame = tick.frames.frame(self._columns, self._held if follows else 0)
        self._sequence, self._layout_version, self._held = tick.sequence, tick.layout_version, self._columns
        return layout, frame


class Hub:
    """Computes the ticks of a process. Used from one event loop; the database is read in a thread of its own.

    `held_devices`: see `FleetRows`.
    """

    def __init__(
        self,
        *,
        held_devices: Callable[[], Collection[int]],
        read_samples: Callable[[], Samples] = read_latest_kept,
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
        self._held_devices = held_devices
        self._rows = FleetRows(held_devices)
        self._previous: Columns | None = None
        self._last: Tick | None = None

    def join(self, columns: int = ALL) -> Viewer:
        """Add a viewer of a set of columns; the first one starts the hub."""
        viewer = Viewer(columns)
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="fleet-hub")
        elif self._last is not None:
            viewer.put(self._last)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer; the last one stops the hub."""
        self._viewers.discard(viewer)
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = self._last = None

    async def _run(self) -> None:
        task = asyncio.current_task()
        executor = ThreadPoolExecutor(1, thread_name_prefix="fleet-hub")
        self._rows = FleetRows(self._held_devices)  # a run before may still be reading its own
        self._previous, self._layout = None, ""
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while True:
                await self._compute(executor)
                due = max(due + self._tick_seconds, loop.time() + self._tick_seconds / 10)
                await asyncio.sleep(due - loop.time())
        except Exception:  # viewers connect again, which starts the hub anew
            log.exception("fleet.hub.failed")
        finally:
            executor.submit(connections.close_all)
            executor.shutdown(wait=False)
            if self._task is task:  # failed, not cancelled: a later run has other viewers
                for viewer in self._viewers:
                    viewer.stop()
                self._viewers.clear()
                self._task = self._last = None

    async def _compute(self, executor: ThreadPoolExecutor) -> None:
        """Compute one tick, and hand it to the viewers."""
        conditions = Condition(0)
        rows = self._rows
        loop = asyncio.get_running_loop()
        try:
            refresh = database_sync_to_async(rows.refresh, thread_sensitive=False, executor=executor)
            if await refresh() or not self._layout:
                self._layout_version += 1
                message = partial(layout_message, rows.layout, version=self._layout_version)
                self._layout = await loop.run_in_executor(executor, message)
                self._previous = None
        except (DatabaseError, InterfaceError) as error:
            log.warning("fleet.hub.database", error=str(error))
            conditions |= Condition.DATABASE_DOWN
            if not self._layout:
                return
        now = self._clock()
        samples = self._read_samples()  # not in the thread: the table belongs to the event loop
        if self._redis_down():
            conditions |= Condition.REDIS_DOWN
        columns, figures = await loop.run_in_executor(executor, partial(_columns_and_figures, rows, samples, now=now))
        self._sequence += 1
        frames = FrameSet(
            columns,
            self._previous,
            sequence=self._sequence,
            layout=self._layout_version,
            time=now,
            conditions=conditions,
            figures=figures,
        )
        self._previous = columns
        self._last = Tick(self._sequence, self._layout_version, self._layout, frames)
        for viewer in self._viewers:
            viewer.put(self._last)


def _columns_and_figures(rows: FleetRows, samples: Samples, *, now: float) -> tuple[Columns, Figures]:
    columns = columns_of(rows, samples, now=now)
    return columns, figures_of(rows, columns)
