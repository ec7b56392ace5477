"""The row by which others know that this process passes requests on (`inference.dispatch.gateways`).

Part of `dispatcher`. Invariants: `held` returns only while nobody else may end the row; once that is over `lost` is
called, whether or not the database answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from datetime import datetime
from typing import Final

import structlog
from django.db import DatabaseError, InterfaceError

from gpuplane.listeners.answers import Refused
from gpuplane.listeners.gateway.replies import DatabaseAway
from gpuplane.listeners.threads import Lane
from inference.dispatch import gateways
from storage.clock import RunningClock, database_now
from storage.task_end import end_tasks

FIRST_SECONDS: Final = 5.0
"""How long requests wait for a row of this process."""
AGAIN_SECONDS: Final = 1.0
CHECK_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


class Registration:
    """`lost` is called with the reason when the row is not ours any more."""

    def __init__(self, *, clock: Callable[[], float], lost: Callable[[str], None]) -> None:
        self._clock = clock
        self._lost = lost
        self._until = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self.gateway = ""
        """Id of the row; empty before there is one."""
        self._time: RunningClock | None = None

    def start(self) -> None:
        """Begin, in the running loop."""
        self._lane = Lane("gateway-row", threads=1, waiting=4)
        self._has_row = asyncio.Event()
        self._tasks = [asyncio.create_task(self._renew()), asyncio.create_task(self._watch())]

    async def stop(self) -> None:
        """End the row."""
        await end_tasks(*self._tasks)
        if self.gateway:
            try:
                await self._lane.run(_end, self.gateway)
            except (DatabaseError, InterfaceError, Refused) as error:
                log.warning("gateway.row_not_ended", why=str(error))
        self._until, self.gateway = 0.0, ""
        self._lane.shutdown()

    def now(self) -> datetime:
        """The database's time, as it was read with the last renewal. From a thread with a connection."""
        return self._time.now if self._time is not None else database_now()

    async def held(self) -> None:
        """Wait for a row. Raises DatabaseAway where there is none, or it was not renewed."""
        if not self._has_row.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_SECONDS):
                    await self._has_row.wait()
        if self._clock() >= self._until:
            raise DatabaseAway

    async def _renew(self) -> None:
        while True:
            began = self._clock()
            try:
                if not self.gateway:
                    self.gateway = await self._lane.run(_register)
                elif not await self._lane.run(_renewed, self.gateway):
                    self.gateway, self._until = "", 0.0
                    self._has_row.clear()  # requests wait a moment for the new one
                    self._lost("others took the web process for dead")
                    continue
                self._time = await self._lane.run(_read_clock)
            except (DatabaseError, InterfaceError, Refused) as error:
                log.warning("gateway.row_not_renewed", why=str(error))
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            self._until = began + gateways.VALID_SECONDS
            self._has_row.set()
            await asyncio.sleep(gateways.RENEW_SECONDS)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._until and self._clock() >= self._until:
                self._until = 0.0
                self._lost("the database has not answered for too long")


def _register() -> str:
    return gateways.register(host=socket.gethostname(), now=database_now())


def _renewed(gateway_id: str) -> bool:
    return gateways.renew(gateway_id, now=database_now())


def _read_clock() -> RunningClock:
    return RunningClock(database_now())


def _end(gateway_id: str) -> None:
    gateways.end(gateway_id, now=database_now())
