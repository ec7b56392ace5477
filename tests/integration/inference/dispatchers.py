"""Flights of a dispatcher whose clock may jump, and what the database says of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from uuid import uuid4

from gpuplane.listeners.gateway.flights import Flight
from inference.models import Request


class Clock:
    """The monotonic clock, which may jump."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def flight(clock: Clock) -> Flight:
    return Flight(request_id=uuid4(), model="chat", lora="", priority=0, user="", token="t", arrived=clock())


async def until(condition: Callable[[], bool]) -> None:
    """The dispatcher writes in the background."""
    async with asyncio.timeout(10):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - it is written by other threads
            await asyncio.sleep(0.02)


def states() -> list[str]:
    """Of all requests, sorted: which of two that came within microseconds is the earlier one may be read either way."""
    return sorted(Request.objects.exclude(token="").values_list("state", flat=True))
