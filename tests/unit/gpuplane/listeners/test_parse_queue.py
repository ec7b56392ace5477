"""Sockets that wait to be parsed, on a real event loop."""

from __future__ import annotations

import asyncio
import itertools
import time

from gpuplane.listeners.parse_queue import SLICE_SECONDS, ParsingTurns, turns_of


class Busy:
    """A socket that takes a while to parse, and notes that it was."""

    def __init__(self, name: int, parsed: list[int], *, error: Exception | None = None) -> None:
        self.name = name
        self._parsed = parsed
        self._error = error

    def parse_waiting(self) -> None:
        until = time.thread_time() + SLICE_SECONDS / 2
        while time.thread_time() < until:
            pass
        self._parsed.append(self.name)
        if self._error is not None:
            raise self._error


async def test_other_work_is_done_in_between() -> None:
    """NODE-2 of many sockets at once some are parsed in each iteration, in the order in which they came."""
    parsed: list[int] = []
    turns = ParsingTurns(asyncio.get_running_loop())
    for name in range(20):
        turns.add(Busy(name, parsed))
    progress = []
    while len(parsed) < 20:
        await asyncio.sleep(0)
        progress.append(len(parsed))
    assert parsed == list(range(20))
    assert max(later - earlier for earlier, later in itertools.pairwise(progress)) <= 3
    turns.add(Busy(20, parsed))
    await asyncio.sleep(0)
    assert parsed[-1] == 20, "after all have had their turn the next one is scheduled anew"


async def test_an_error_of_one_stops_no_other() -> None:
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context.get("exception")))
    parsed: list[int] = []
    turns = ParsingTurns(loop)
    error = ValueError("not parsed")
    for name in range(3):
        turns.add(Busy(name, parsed, error=error if name == 1 else None))
    for _ in range(5):
        await asyncio.sleep(0)
    assert parsed == [0, 1, 2]
    assert errors == [error]


async def test_a_loop_has_one() -> None:
    loop = asyncio.get_running_loop()
    assert turns_of(loop) is turns_of(loop)
    other = asyncio.new_event_loop()
    try:
        assert turns_of(other) is not turns_of(loop)
    finally:
        other.close()
