"""Sessions of runners: `WS /ws/runners/<node>/` as a plain ASGI endpoint (docs/runner-protocol.md).

Called by `gpuplane.listeners.runners`, which authenticates the caller. In come hello, offers, reports and logs; out go
all that the runner is to run, whenever it changes. Invariants: nothing is told before the first report, so what runs
already is known; what is told is complete, and looked at anew when somebody wakes the session and every LOOK_SECONDS; a
bad frame ends the session of its runner and nothing else. Close codes: 1003 text instead of binary, 1008 a rule is
broken or another session counts, 1009 too large, 1011 internal error, 1012 the token has to be presented again, 1013
not now.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final, TypeVar

import structlog
from django.conf import settings
from prometheus_client import Counter, Gauge

from access.actors import Actor
from access.choices import TokenScope
from access.errors import NotFound
from inference import runner_logs, runner_sessions
from inference.runner_wakes import WAKES, RunnerWakes
from nodes.live import flush
from nodes.live.agent_liveness import TEMPORARY
from nodes.live.rate_limit import RateLimits, TooFast
from nodes.live.threads import in_database_thread
from runner.protocol import (
    MOST_LOGS,
    BadFrame,
    Desired,
    FrameError,
    FrameTooLarge,
    Hello,
    LogTail,
    Offer,
    Report,
    RunnerFrame,
    SlotReport,
    Welcome,
    decode,
    encode,
)
from storage.clock import database_now
from storage.redis_client import AsyncRedis, Purpose, async_client
from storage.task_end import end_tasks

HELLO_SECONDS: Final = 10.0
REPORT_SECONDS: Final = 30.0
"""A session without a report for so long has ended."""
LOOK_SECONDS: Final = 5.0
TOGETHER_SECONDS: Final = 0.02
TELL_AGAIN_SECONDS: Final = 30.0
SESSION_SECONDS: Final = 3600.0
"""Length of a session, ±10 % so that runners do not reconnect at once: tokens are short-lived, and may be revoked."""
NOT_BINARY, POLICY, TOO_LARGE, OUR_FAILURE, SIGN_IN_AGAIN, NOT_NOW = 1003, 1008, 1009, 1011, 1012, 1013
LONGEST_REASON: Final = 120
"""A close frame carries at most 123 bytes of reason."""
MOST_NODES: Final = 20_000

FRAMES = Counter("gpuplane_runner_frames", "Frames taken from runners", ["kind"])
REFUSED = Counter("gpuplane_runner_sessions_closed", "Sessions of runners that gpuplane ended", ["reason"])
SESSIONS = Gauge("gpuplane_runner_sessions", "Open sessions of runners of this process")
LIMITS: Final = RateLimits(MOST_NODES)

log = structlog.get_logger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Result = TypeVar("Result")


class Closed(Exception):
    """gpuplane ends the session with this code; the text is the reason, `kind` a short word for metrics."""

    def __init__(self, code: int, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.kind = kind


async def runner_socket(
    scope: Scope, receive: Receive, send: Send, *, node: str, actor: Actor, wakes: RunnerWakes = WAKES
) -> None:
    """Serve one runner's session, from `websocket.connect` to its end."""
    del scope
    if (await receive())["type"] != "websocket.connect":
        return
    if actor.scope != TokenScope.AGENT or actor.node != node:
        await send({"type": "websocket.close", "code": POLICY, "reason": "only its runner may speak for a node"})
        return
    flush.ensure_running()
    await send({"type": "websocket.accept"})
    with SESSIONS.track_inprogress(), wakes.of(node) as woken:
        session = Session(node, send, woken=woken)
        try:
            await session.run(receive)
        except Closed as closed:
            await _close(send, node, closed)
        except FrameTooLarge as error:
            await _close(send, node, Closed(TOO_LARGE, error.reason, str(error)))
        except FrameError as error:
            await _close(send, node, Closed(POLICY, error.reason, str(error)))
        except Exception:  # a defect of ours ends this session only, with a code that says so
            log.exception("runner.session_failed", node=node)
            await _close(send, node, Closed(OUR_FAILURE, "failure", "gpuplane failed; connect again"))


class Session:
    """One connection of a runner."""

    def __init__(self, node: str, send: Send, *, woken: asyncio.Event) -> None:
        self._node = node
        self._send = send
        self._woken = woken
        self._number = 0
        self._slots: frozenset[str] = frozenset()
        """Slots that it was told of: the logs that it may send."""
        self._settled: Sequence[SlotReport] | None = None
        """The last report, where it moved no slot and nothing else was told since."""
        self._reported = asyncio.Event()
        self._redis: AsyncRedis = async_client(settings.GPUPLANE_REDIS_URL, Purpose.STATUS)

    async def run(self, receive: Receive) -> None:
        """Until the peer leaves. Raises Closed and FrameError."""
        lasts = SESSION_SECONDS * random.uniform(0.9, 1.1)  # noqa: S311 - jitter, no secret
        try:
            if not await self._begin(receive):
                return
            reading = asyncio.create_task(self._read(receive))
            telling = asyncio.create_task(self._tell())
            try:
                done, _ = await asyncio.wait({reading, telling}, timeout=lasts, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if not done:
                    raise Closed(SIGN_IN_AGAIN, "sign-in", "sign in again")
            finally:
                await end_tasks(reading, telling)
        finally:
            await self._redis.aclose()

    async def _begin(self, receive: Receive) -> bool:
        """Take hello; False where the peer left before it. Raises Closed and FrameError."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                hello = await self._next(receive)
        except TimeoutError:
            raise Closed(POLICY, "no-hello", f"no hello within {HELLO_SECONDS:.0f} s") from None
        if hello is None:
            return False
        if not isinstance(hello, Hello):
            raise BadFrame("the first frame of a session is hello")
        if hello.node != self._node:
            raise BadFrame(f"hello names another node than the path: {hello.node[:60]}")
        self._number = await self._stored(lambda: runner_sessions.session_begin(hello=hello, now=database_now()))
        await self._send({"type": "websocket.send", "bytes": encode(Welcome(hello.boot, time.time()))})
        log.info("runner.session", node=self._node, session=self._number, version=hello.version)
        return True

    async def _read(self, receive: Receive) -> None:
        """Take frames until the peer leaves. Raises Closed and FrameError."""
        while True:
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    frame = await self._next(receive)
            except TimeoutError:
                raise Closed(NOT_NOW, "silent", f"nothing was heard for {REPORT_SECONDS:.0f} s") from None
            if frame is None:
                return
            await self._take(frame)

    async def _take(self, frame: RunnerFrame) -> None:
        node, session = self._node, self._number
        if isinstance(frame, Report):
            await self._take_report(frame.slots)
        elif isinstance(frame, Offer):
            offer = frame
            await self._stored(
                lambda: runner_sessions.offer_put(node=node, session=session, offer=offer, now=database_now())
            )
        elif isinstance(frame, LogTail):
            if frame.slot in self._slots:
                await runner_logs.put(self._redis, frame.slot, frame.text)
        else:
            raise BadFrame("a session has one hello")

    async def _take_report(self, slots: Sequence[SlotReport]) -> None:
        """Store it; of one that says nothing new, only that the runner was heard."""
        node, session = self._node, self._number
        if slots == self._settled and await self._stored(
            lambda: runner_sessions.runner_heard(node=node, session=session, now=database_now())
        ):
            return
        moved = await self._stored(
            lambda: runner_sessions.report_put(node=node, session=session, slots=slots, now=database_now())
        )
        self._settled = None if moved else slots
        if moved:
            self._woken.set()
        self._reported.set()

    async def _tell(self) -> None:
        """Say what is to run, whenever it changes, once the runner has said what runs. Raises Closed."""
        await self._reported.wait()
        said, said_at = b"", 0.0
        while True:
            self._woken.clear()
            slots = await self._stored(
                lambda: runner_sessions.desired(node=self._node, session=self._number, now=database_now())
            )
            self._slots = frozenset(slot.id for slot in slots)
            running = [slot.id for slot in slots if slot.run]
            logs = (await runner_logs.asked(self._redis, running))[:MOST_LOGS]
            body = encode(Desired(slots, logs))
            now = time.monotonic()
            if body != said:
                self._settled = None
            if body != said or now - said_at > TELL_AGAIN_SECONDS:
                await self._send({"type": "websocket.send", "bytes": body})
                said, said_at = body, now
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._woken.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(TOGETHER_SECONDS)

    async def _next(self, receive: Receive) -> RunnerFrame | None:
        """The next frame; None when the peer has left. Raises Closed and FrameError."""
        message = await receive()
        if message["type"] != "websocket.receive":
            return None
        body: bytes | None = message.get("bytes")
        if body is None:
            raise Closed(NOT_BINARY, "text", "frames are binary")
        try:
            LIMITS.take(self._node, time.monotonic())
        except TooFast as error:
            raise Closed(POLICY, error.reason, str(error)) from error
        frame = decode(body)
        FRAMES.labels(type(frame).__name__.lower()).inc()
        return frame

    async def _stored(self, work: Callable[[], Result]) -> Result:
        """Run `work` in a database thread. Raises Closed."""
        try:
            return await in_database_thread(work)
        except (runner_sessions.Superseded, runner_sessions.Taken) as error:
            raise Closed(POLICY, "superseded", str(error)) from error
        except NotFound as error:
            raise Closed(NOT_NOW, "no-node", str(error)) from error
        except TEMPORARY as error:
            raise Closed(NOT_NOW, "database", "the database is away; connect again") from error


async def _close(send: Send, node: str, closed: Closed) -> None:
    REFUSED.labels(closed.kind).inc()
    log.warning("runner.session_closed", node=node, code=closed.code, kind=closed.kind, why=str(closed))
    cut = str(closed).encode()[:LONGEST_REASON].decode(errors="ignore")
    try:
        await send({"type": "websocket.close", "code": closed.code, "reason": cut})
    except (OSError, RuntimeError):  # the peer left first; uvicorn says so in either way
        log.debug("runner.left_first", node=node)
