"""Batches: the work of many coroutines in one call; items that come during a call are in the next.

Used by binds and inference requests on the event loop. Invariants: each item gets its own outcome, after the call has
returned; an error of a call is raised for each of its items, and no others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

MOST = 64
"""Items in one call."""


class Batcher(Generic[Item, Outcome]):
    """`handle` returns the outcomes of a batch, in order. `pause`: seconds to wait for more items."""

    def __init__(
        self,
        handle: Callable[[Sequence[Item]], Awaitable[Sequence[Outcome]]],
        *,
        pause: Callable[[], float] = lambda: 0.0,
        most: int = MOST,
    ) -> None:
        self._handle = handle
        self._pause = pause
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Outcome]]] = []
        self._running: asyncio.Task[None] | None = None

    async def do(self, item: Item) -> Outcome:
        """The outcome of the item, handled alone or with others. Raises what `handle` raised."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                if (seconds := self._pause()) > 0 and len(self._waiting) < self._most:
                    await asyncio.sleep(seconds)
                batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._serve(batch)
        finally:
            self._running = None

    async def _serve(self, batch: list[tuple[Item, asyncio.Future[Outcome]]]) -> None:
        try:
            outcomes = await self._handle([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - raised again in every coroutine of the batch
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if not future.done():  # a coroutine may have been cancelled meanwhile
                future.set_result(outcome)
