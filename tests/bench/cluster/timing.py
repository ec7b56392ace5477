"""How long each request of the extender's took: an ASGI application around another, the same for the constant extender
and for gpuplane.

Invariants: every request counts, from its head to the last byte of its answer; other paths take the application's way
after one comparison. `POST /bench/begin` forgets, `GET /bench/times` tells: seconds by path, and lines of a profile
where one is made.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import orjson

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

BEGIN = "/bench/begin"
TIMES = "/bench/times"
TIMED = "/extender/"


class Profile(Protocol):
    """What can be asked for where the time went."""

    def begin(self) -> None:
        """Forget what was seen so far."""

    def lines(self) -> Sequence[str]:
        """What was seen, for people."""


class Timed:
    """The application with its extender requests timed."""

    def __init__(self, application: App, profile: Profile | None = None) -> None:
        self._application = application
        self._profile = profile
        self._seconds: dict[str, list[float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or anything else that ASGI knows."""
        path = scope.get("path", "")
        if path.startswith(TIMED):
            began = time.perf_counter()
            try:
                await self._application(scope, receive, send)
            finally:
                self._seconds.setdefault(path, []).append(time.perf_counter() - began)
        elif path == BEGIN:
            self._seconds.clear()
            if self._profile is not None:
                self._profile.begin()
            await answer(send, b"{}")
        elif path == TIMES:
            told = [] if self._profile is None else self._profile.lines()
            await answer(send, orjson.dumps({"seconds": self._seconds, "profile": list(told)}))
        else:
            await self._application(scope, receive, send)


async def answer(send: Send, body: bytes) -> None:
    """200 with JSON."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
