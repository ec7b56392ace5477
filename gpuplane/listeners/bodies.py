"""Reads request bodies, for the plain ASGI applications and in front of Django.

`body_limits` says how large a body may be, and how much all bodies of its kind may take together.

Invariants:
- No request makes the process keep more than its limit, whatever its Content-Length says.
- All bodies that are being read or answered stay within the budget of their kind; a request beyond it is refused (503).
- Django gets a body whole and from memory: nothing of a body is ever written to a file.
- What Django answers is complete before its first byte is sent, so a client that reads slowly holds no thread and no
  connection to the database.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final, Self

import structlog

from gpuplane.listeners import App, Message, Receive, Scope, Send, header
from gpuplane.listeners.answers import CLOSE, RETRY_SOON, Refused, send_problem
from gpuplane.listeners.body_limits import Bound, Budget, RequestKind, credential_key
from gpuplane.listeners.rate_limits import Rate, RateLimit
from gpuplane.listeners.threads import Slots

SMALL_BYTES: Final = 64 * 1024

log = structlog.get_logger(__name__)


class BodyTooLarge(Refused):
    """The body is larger than `limit` bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            413, f"the body is larger than {limit} bytes, the limit of this address for this caller", CLOSE
        )


class NoRoom(Refused):
    """The bodies in memory leave no room for this one."""

    def __init__(self) -> None:
        super().__init__(503, "too many large request bodies at once; retry later", RETRY_SOON, CLOSE)


class ClientGone(Exception):
    """The client hung up before the body was complete."""


class BudgetHold:
    """What one request takes of a budget; a context manager that gives it back."""

    __slots__ = ("_budget", "_bytes", "_reader", "ended")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._bytes = 0
        self._reader: asyncio.Task[object] | None = None
        self.ended = False
        """Whether the upload was ended to make room."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def check(self, size_bytes: int) -> None:
        """Raises NoRoom unless `size_bytes` more fit."""
        if not self._budget.has_room(size_bytes, keep=self._end):
            log.warning("body.no_room", budget=self._budget.name, taken_bytes=self._budget.taken_bytes)
            raise NoRoom

    def take(self, size_bytes: int) -> None:
        """Count received bytes. Raises NoRoom."""
        self.check(size_bytes)
        self._budget.taken_bytes += size_bytes
        self._bytes += size_bytes

    @contextlib.contextmanager
    def unfinished(self) -> Iterator[None]:
        """While the current task reads the rest of an upload. Raises NoRoom if the upload is ended to make room."""
        self._reader = asyncio.current_task()
        self._budget.begin(self._end)
        try:
            yield
        except asyncio.CancelledError:
            if not self.ended or self._reader is None or self._reader.uncancel():
                raise
            raise NoRoom from None
        finally:
            self._budget.unfinished.pop(self._end, None)

    def release(self) -> None:
        """Give it back before the request ends: its body is not kept any more."""
        self._budget.taken_bytes -= self._bytes
        self._bytes = 0

    def _end(self) -> None:
        self.ended = True
        self.release()
        log.warning("body.ended", budget=self._budget.name)
        if self._reader is not None:
            self._reader.cancel()


async def read_body(scope: Scope, receive: Receive, *, limit: int, held: BudgetHold) -> bytes:
    """The whole body, counted by `held`. Raises BodyTooLarge, NoRoom, ClientGone."""
    length = header(scope, b"content-length")
    declared = int(length) if length.isdigit() else 0
    if declared > limit:
        raise BodyTooLarge(limit)
    if declared > SMALL_BYTES:
        held.check(declared)  # before any of it is read
    body, more = await _piece(receive)
    if len(body) > limit:
        raise BodyTooLarge(limit)
    held.take(len(body))
    if not more:
        return body
    pieces, size = [body], len(body)
    with held.unfinished():
        while more:
            piece, more = await _piece(receive)
            size += len(piece)
            if size > limit:
                raise BodyTooLarge(limit)
            held.take(len(piece))
            pieces.append(piece)
    return b"".join(pieces)


async def _piece(receive: Receive) -> tuple[bytes, bool]:
    """(the next bytes of a body, whether more follow). Raises ClientGone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


REFUSED_SECONDS = 1.0
"""How long a refusal by rate is delayed, so that repeating the request at once costs less than answering it."""
RUNS: Final = Rate(burst=10.0, a_second=1.0)
"""What-if runs of one credential, whatever becomes of them."""
LARGE_EACH_SECONDS: Final = 30
"""Large inventories of one credential: a machine of that size is wired once."""


def guarded(app: App, *, bound_of: Callable[[Scope], Bound], slots: dict[RequestKind, Slots]) -> App:
    """Django behind a guard.

    The body is read first, then the request waits for a slot of its kind, then the response is sent. Scenarios have a
    rate, checked before any of the body is read, since megabytes of it slow all requests down. Large inventories have
    one, too, checked once the size is known.
    """
    runs = RateLimit(RUNS)
    large = RateLimit(Rate(burst=1.0, a_second=1 / LARGE_EACH_SECONDS))

    async def respond(scope: Scope, receive: Receive) -> list[Message]:
        bound = bound_of(scope)
        if bound.kind is RequestKind.SIMULATIONS and not runs.take(credential_key(scope)):
            detail = f"more than one scenario a second, or {RUNS.burst:.0f} at once; retry later"
            raise Refused(429, detail, RETRY_SOON, CLOSE)
        with BudgetHold(bound.budget) as held:
            body = await read_body(scope, receive, limit=bound.limit_bytes, held=held)
            is_large = bound.paced_bytes is not None and len(body) >= bound.paced_bytes
            if is_large and not large.take(credential_key(scope)):
                detail = f"more than one inventory of this size in {LARGE_EACH_SECONDS} s; retry later"
                raise Refused(429, detail, (b"retry-after", b"%d" % LARGE_EACH_SECONDS))
            async with slots[bound.kind]:
                return await complete_response(app, scope, body, receive)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await respond(scope, receive)
        except Refused as refused:
            if refused.status == 429:
                await asyncio.sleep(REFUSED_SECONDS)
            await send_problem(send, refused.status, refused.detail, refused.headers)
        except ClientGone:
            return
        else:
            for message in response:
                await send(message)

    return served


async def complete_response(app: App, scope: Scope, body: bytes, receive: Receive) -> list[Message]:
    """All that the application answers to a request whose body was read already."""
    response: list[Message] = []
    unread = True

    async def replay() -> Message:
        nonlocal unread
        if not unread:
            return await receive()
        unread = False
        return {"type": "http.request", "body": body, "more_body": False}

    async def collect(message: Message) -> None:
        response.append(message)

    await app(scope, replay, collect)
    return response
