"""Reads request bodies, for the plain doors and in front of Django.

How large a body may be, and how much all bodies of its kind may take together, says `body_limits`.

Invariants:
- No request makes the process keep more than its limit, whatever its Content-Length says.
- All bodies that are being read or answered stay within the budget of their kind; whoever comes beyond is told to come
  again (503).
- Django gets a body whole and from memory: nothing of a body is ever written to a file.
- What Django answers is complete before its first byte is sent, so a client that reads slowly holds no thread and no
  connection to the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import structlog

from gpuplane.doors import App, Message, Receive, Scope, Send
from gpuplane.doors.answers import send_problem
from gpuplane.doors.body_limits import Bound, Budget, Kind, credential_key
from gpuplane.doors.pace import Allowance
from gpuplane.doors.threads import Busy, Turns

COME_AGAIN = (b"retry-after", b"1")
CLOSE = (b"connection", b"close")
SMALL_BYTES = 64 * 1024

log = structlog.get_logger(__name__)


class BodyTooLarge(Exception):
    """More bytes than the limit."""


class NoRoom(Exception):
    """The bodies that are in memory already leave no room for this one."""


class ClientGone(Exception):
    """The client hung up before the body was complete; nobody waits for an answer."""


class Held:
    """What one request takes of a budget, given back at the end of the `with`."""

    __slots__ = ("_budget", "_bytes", "_reader", "ended")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._bytes = 0
        self._reader: asyncio.Task[object] | None = None
        self.ended = False
        """Whether the upload was ended, to make room."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def check(self, size_bytes: int) -> None:
        """Raises NoRoom where so many bytes more do not fit."""
        if not self._budget.has_room(size_bytes, asked_by=self._end):
            log.warning("body.no_room", budget=self._budget.name, taken_bytes=self._budget.taken_bytes)
            raise NoRoom

    def take(self, size_bytes: int) -> None:
        """Count bytes that have come. Raises NoRoom."""
        self.check(size_bytes)
        self._budget.taken_bytes += size_bytes
        self._bytes += size_bytes

    @contextlib.contextmanager
    def unfinished(self) -> Iterator[None]:
        """While the current task reads an upload of which more is to come. Raises NoRoom where it was ended."""
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

    def _end(self) -> None:
        self.ended = True
        self._give_back()
        log.warning("body.ended", budget=self._budget.name)
        if self._reader is not None:
            self._reader.cancel()

    def _give_back(self) -> None:
        self._budget.taken_bytes -= self._bytes
        self._bytes = 0


def declared_length(scope: Scope) -> int:
    """Content-Length in bytes, 0 when absent or not a number (the bytes are counted anyway)."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0


async def read_body(scope: Scope, receive: Receive, *, limit: int, held: Held) -> bytes:
    """The whole body; `held` keeps its place in memory. Raises BodyTooLarge, NoRoom, ClientGone."""
    declared = declared_length(scope)
    if declared > limit:
        raise BodyTooLarge
    if declared > SMALL_BYTES:
        held.check(declared)  # before any of it is read
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    size = len(body)
    if size > limit:
        raise BodyTooLarge
    held.take(size)
    if not message.get("more_body", False):
        return body
    chunks = [body]
    with held.unfinished():
        while message.get("more_body", False):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise BodyTooLarge
            held.take(len(chunk))
            chunks.append(chunk)
    return b"".join(chunks)


def too_large(limit: int) -> str:
    """The sentence of a 413."""
    return f"the body is larger than {limit} bytes, the limit of this address for this caller"


NO_ROOM = "too many large bodies at one time; come again"
BUSY = "too many requests of this kind at one time; come again"
RUNS_BURST = 10.0
RUNS_A_SECOND = 1.0
"""What-if runs of one credential, whatever becomes of them."""
REFUSED_SECONDS = 1.0
"""How long who is too fast waits for the answer: one that asks again at once would be as much work as an answer."""
TOO_FAST = f"one scenario a second, and {RUNS_BURST:.0f} at once; come again"


def guarded(app: App, *, bound_of: Callable[[Scope], Bound], turns: dict[Kind, Turns]) -> App:
    """Django behind a guard.

    The body is read first, then the request waits for its turn among its kind, then the answer is sent. Scenarios have a pace: who
    is too fast is answered after a while, without a byte of the body being read, since megabytes of it cost everybody else.
    """
    runs = Allowance(burst=RUNS_BURST, a_second=RUNS_A_SECOND, clock=time.monotonic)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        bound = bound_of(scope)
        answer: list[Message] = []

        async def collected(message: Message) -> None:
            answer.append(message)

        if bound.kind is Kind.SIMULATIONS and not runs.take(credential_key(scope)):
            await asyncio.sleep(REFUSED_SECONDS)
            await send_problem(send, 429, TOO_FAST, [COME_AGAIN, CLOSE])
            return
        try:
            with Held(bound.budget) as held:
                body = await read_body(scope, receive, limit=bound.limit_bytes, held=held)
                async with turns[bound.kind]:
                    await app(scope, _given(body, receive), collected)
        except BodyTooLarge:
            await send_problem(send, 413, too_large(bound.limit_bytes), [CLOSE])
            return
        except NoRoom:
            await send_problem(send, 503, NO_ROOM, [COME_AGAIN, CLOSE])
            return
        except Busy:
            await send_problem(send, 503, BUSY, [COME_AGAIN])
            return
        except ClientGone:
            return
        for message in answer:
            await send(message)

    return served


def _given(body: bytes, receive: Receive) -> Receive:
    """A body that was read already, and then what the server says."""
    given = False

    async def give() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return give
