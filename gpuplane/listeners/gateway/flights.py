"""One request on its way: what is known of it, and how others end it.

`dispatcher` and `app` share it. Invariants: whoever cuts a flight cancels its task, and the task meets the error that
was given, never a bare cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from typing import Final
from uuid import UUID

from inference.dispatch.records import Place

_USAGE: Final = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,9})')
_TAIL_BYTES: Final = 4096
_EVENT: Final = b"data: "


class Cut(Exception):
    """The request ends before its answer is complete. The text says why."""


class ClientLeft(Cut):
    """The client has closed the connection."""


class SlotLost(Cut):
    """The slot that serves it is gone, does not answer, or does not take it."""


class GatewayEnded(Cut):
    """The process may not serve it any more."""


class Flight:
    """A request. `arrived`, `first_byte_at`: by the dispatcher's clock. `written`: the database may know of it."""

    __slots__ = (
        "_error", "_events", "_tail", "_task", "arrived", "begun", "broken", "first_byte_at", "id", "known", "lora",
        "model", "place", "priority", "reason", "sending_since", "started", "status", "token", "tried", "tries", "user",
        "waited", "written",
    )  # fmt: skip

    def __init__(
        self, *, request_id: UUID, model: str, lora: str, priority: int, user: str, token: str, arrived: float
    ) -> None:
        self.id = request_id
        self.model = model
        self.lora = lora
        self.priority = priority
        self.user = user
        self.token = token
        self.arrived = arrived
        self.first_byte_at: float | None = None
        self.place: Place | None = None
        self.started: asyncio.Future[Place] | None = None
        self.reason = ""  # why it waits
        self.known = False  # whether a model of that name exists
        self.status = 0  # of the answer
        self.begun = False  # whether the client has the answer's head
        self.broken = ""  # why the answer ended short
        self.sending_since: float | None = None  # while the client is to read a piece, by the dispatcher's clock
        self.waited = 0.0
        self.tried: dict[str, float] = {}  # slot → when it did not take it
        self.tries = 0
        self.written = False
        self._error: Cut | None = None
        self._task = asyncio.current_task()
        self._events = 0
        self._tail = b""

    def cut(self, error: Cut) -> None:
        """End it, from another task."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()

    @contextlib.contextmanager
    def cuts(self) -> Iterator[None]:
        """Where the flight's task meets the error of a cut. May be nested: the inner one takes it."""
        try:
            yield
        except asyncio.CancelledError:
            error, self._error = self._error, None
            if error is None or self._task is None or self._task.uncancel():
                raise
            raise error from None

    def passed(self, piece: bytes) -> None:
        """Note a piece of the answer."""
        self._events += (self._tail[1 - len(_EVENT) :] + piece).count(_EVENT)
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]

    @property
    def is_between_events(self) -> bool:
        """Whether what was passed on ends with an event, or nothing was."""
        return not self._tail or self._tail.endswith((b"\n\n", b"\r\n\r\n"))

    @property
    def tokens(self) -> int:
        """Tokens of the answer: as its end says, else the number of its events."""
        said = _USAGE.findall(self._tail)
        return int(said[-1]) if said else max(self._events - self._tail.count(b"data: [DONE]"), 0)
