"""Sockets whose data waits to be parsed, in the order in which it came; some of them in each iteration of the loop.

Used by `bounded_sockets`. An event loop reads all sockets that are ready before it runs anything else. When it was kept
from running for a while, that is the data of thousands of agents, and parsing it took up to half a second in one
piece. Invariants: one iteration parses for SLICE_SECONDS of CPU time, and finishes the socket that it is at; timers,
requests and the tasks of the sockets run in between; an error of one socket does not stop the others.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, Protocol
from weakref import WeakKeyDictionary

SLICE_SECONDS: Final = 0.005
"""CPU time of the loop's thread. By the clock, a loop that waits for a core or for the interpreter would parse next to
nothing in each iteration, and fall behind."""


class Waiting(Protocol):
    """A socket with data that is not parsed yet."""

    def parse_waiting(self) -> None:
        """Parse it."""


class ParsingTurns:
    """The sockets of one event loop that wait."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Waiting] = deque()
        self._scheduled = False

    def add(self, socket: Waiting) -> None:
        """Have `parse_waiting` called once, soon."""
        self._waiting.append(socket)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        until = time.thread_time() + SLICE_SECONDS
        waiting = self._waiting
        try:
            while waiting:
                waiting.popleft().parse_waiting()
                if time.thread_time() >= until:
                    break
        finally:
            self._scheduled = bool(waiting)
            if waiting:
                self._loop.call_soon(self._run)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, ParsingTurns] = WeakKeyDictionary()


def turns_of(loop: asyncio.AbstractEventLoop) -> ParsingTurns:
    """The turns of this event loop."""
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = ParsingTurns(loop)
    return found
