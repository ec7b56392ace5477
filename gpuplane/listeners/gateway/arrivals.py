"""Places of requests that arrive while their model has room, taken from the event loop. On PostgreSQL alone.

Used by `dispatcher`, whose rounds decide about all others. Invariants: a request that gets no place here has left
nothing in the database; statements are one after the other, each for all requests that came during the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from django.db import DatabaseError

from allocations.scheduling.batcher import Batcher
from gpuplane.listeners.gateway.registration import Registration
from inference.dispatch.endings import moments_before
from inference.dispatch.immediate_places import placed_on_loop
from inference.dispatch.records import Arrival, Place
from storage.cursors import on_postgresql

if TYPE_CHECKING:
    from storage.loop_connection import LoopConnection

IDLE_SECONDS: Final = 60.0
"""The connection is closed after that. It notices by itself when the server closes it."""


class Arrivals:
    """Of one process. `lease`: its row among gateways."""

    def __init__(self, *, registration: Registration, clock: Callable[[], float]) -> None:
        self._registration = registration
        self._clock = clock
        self._connection: LoopConnection | None = None

    async def start(self) -> None:
        """Begin, in the running loop."""
        self._connection = await asyncio.to_thread(_loop_connection)
        self._batcher: Batcher[Arrival | None, Place | None] = Batcher(self._placed)

    async def place(self, arrival: Arrival) -> Place | None:
        """Its place; None where a round has to decide.

        Raises DatabaseError where the connection broke meanwhile, and the request may be written nevertheless.
        """
        return None if self._connection is None else await self._batcher.do(arrival)

    async def written(self) -> None:
        """Returns once no arrival is under way that came before, also of those that nobody waits for any more."""
        with contextlib.suppress(DatabaseError):  # of somebody else's arrival
            await self._batcher.do(None)

    async def rest(self) -> None:
        """Close a connection that is not used."""
        if self._connection is not None:
            await self._connection.rest(IDLE_SECONDS)

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()

    async def _placed(self, steps: Sequence[Arrival | None]) -> Sequence[Place | None]:
        arrivals = [step for step in steps if step is not None]
        gateway = self._registration.gateway
        if self._connection is None or not arrivals or not gateway:
            return [None] * len(steps)
        now = self._registration.now()
        moments = moments_before(now, self._clock())
        placed = await placed_on_loop(self._connection.rows, arrivals, moments, gateway=gateway, now=now)
        by_request = {arrivals[place].id: found for place, found in placed.items()}
        return [None if step is None else by_request.get(step.id) for step in steps]


def _loop_connection() -> LoopConnection | None:
    """In a thread: the module imports psycopg, which SQLite does without."""
    if not on_postgresql():
        return None
    from storage.loop_connection import LoopConnection

    return LoopConnection()
