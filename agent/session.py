"""The connection to gpuplane: one session after another over `WS /ws/agents/<node>/` (docs/agent-protocol.md).

Run by `agent.__main__` on its event loop. Invariants: the outbox is sent in its order; a state change is done once the
server took it or refused it for good; what the server cannot take now, and inventories that it keeps requesting, are
sent after a pause that doubles, with jitter, while samples go on; a session that ends is followed by another after such
a pause, a long one where the server blames the agent; a change that ended two sessions is not sent again; token and CA
are read for each session, since they are replaced while the agent runs.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from agent.outbox import Outbox, StateChange, order_of
from agent.protocol import (
    Ack,
    AgentFrame,
    Checkpoint,
    Details,
    FrameError,
    Health,
    Hello,
    Inventory,
    decode_ack,
    encode,
    sample_of,
)

ACK_SECONDS: Final = 30.0
OPEN_SECONDS: Final = 15.0
STEADY_SECONDS: Final = 30.0
"""After a session that lasted so long the next pause is short."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 10.0
OUR_FAULT_PAUSE: Final = 60.0
OUR_FAULTS: Final = frozenset({1003, 1008, 1009})
"""Close codes that blame the agent."""
BAD_FRAMES: Final = frozenset({1008, 1009})
"""Those of them that a frame may cause."""
FIRST_AGAIN: Final = 1.0
LONGEST_AGAIN: Final = 30.0
"""Seconds before a state change is sent again in the same session."""
REQUESTED_AGAIN_SECONDS: Final = 60.0
"""A request for the inventory within so long of the last one is met after a pause: each ack may have one."""

log = structlog.get_logger(__name__)


class Ended(Exception):
    """The session ended; the text says why."""


class Session:
    """Keeps one node's agent connected. `token` is called before each session."""

    def __init__(
        self,
        *,
        url: str,
        node: str,
        version: str,
        token: Callable[[], str],
        outbox: Outbox,
        ca_file: Path | None = None,
        on_open: Callable[[], None] | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        """`on_open`, `on_end`: called instead of logging when a session opens, and with the reason when it ends.

        `ca_file`: CAs to trust instead of the system's, for an https URL.
        """
        self._on_open = on_open or (lambda: log.info("session.open", node=node))
        self._on_end = on_end or (lambda why: log.warning("session.ended", why=why))
        self._url = f"{url.replace('http', 'ws', 1).rstrip('/')}/ws/agents/{node}/"
        self._node = node
        self._version = version
        self._token = token
        self._ca_file = ca_file
        self._outbox = outbox
        self._boot = secrets.token_hex(8)
        self._seq = 0
        self._opened = False
        self._server_order: tuple[str, ...] | None = None
        """The order of GPUs that the server knows; None where it knows none."""
        self._waiting_for: tuple[int, asyncio.Future[Ack]] | None = None
        self._unacknowledged: list[StateChange] = []
        """Sent in this session since the last ack; the server reads frames in order."""
        self._suspects: list[StateChange] = []
        """`_unacknowledged` of the last session that a bad frame ended."""
        self._refusals = 0
        self._requests = 0
        self._requested_at = float("-inf")
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    async def run(self) -> None:
        """Hold sessions until cancelled."""
        try:
            await self._sessions()
        finally:
            for timer in self._timers.values():
                timer.cancel()

    async def _sessions(self) -> None:
        attempt = 0
        while True:
            began = time.monotonic()
            longest = LONGEST_PAUSE
            try:
                await self._connect_once()
            except ConnectionClosed as error:
                code = error.rcvd.code if error.rcvd else None
                self._ended(f"{code}: {error}")
                longest = OUR_FAULT_PAUSE if code in OUR_FAULTS else LONGEST_PAUSE
                if code in BAD_FRAMES:
                    self._discard_suspects(code)
            except InvalidStatus as error:
                log.warning("session.refused", status=error.response.status_code)
            except (OSError, WebSocketException, TimeoutError, FrameError, Ended) as error:
                self._ended(str(error) or type(error).__name__)
            attempt = 1 if time.monotonic() - began > STEADY_SECONDS else attempt + 1
            await asyncio.sleep(pause_seconds(attempt, longest=longest))

    def _ended(self, why: str) -> None:
        """Report the end of a session; a failed connection is only logged."""
        if self._opened:
            self._opened = False
            self._on_end(why)
        else:
            log.info("session.none", why=why)

    async def _connect_once(self) -> None:
        async with connect(
            self._url,
            additional_headers={"Authorization": f"Bearer {self._token()}"},
            open_timeout=OPEN_SECONDS,
            close_timeout=1,
            compression=None,
            proxy=None,
            ssl=self._tls(),
        ) as socket:
            reader = asyncio.create_task(self._read(socket))
            writer = asyncio.create_task(self._send_all(socket))
            try:
                done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in (reader, writer):
                    task.cancel()
                await asyncio.gather(reader, writer, return_exceptions=True)

    def _tls(self) -> ssl.SSLContext | None:
        """The TLS context, None for http. Raises OSError for a CA that cannot be read."""
        return ssl.create_default_context(cafile=self._ca_file) if self._url.startswith("wss:") else None

    async def _send_all(self, socket: ClientConnection) -> None:
        outbox = self._outbox
        self._unacknowledged.clear()
        order = outbox.order  # it may change before the ack comes
        ack = await self._exchange(socket, Hello(*self._stamp(), self._node, self._version, list(order)))
        self._server_order = order or None
        self._opened = True
        self._on_open()
        outbox.begin_session()
        self._check_want(ack)
        while True:
            await outbox.filled()
            change = outbox.next_change()
            if change is not None:
                frame = self._frame(change)
                self._unacknowledged.append(change)
                self._handle_ack(change, await self._exchange(socket, frame))
                continue
            if details := outbox.next_details():
                changes = [one for one in self._unacknowledged if one.details is None]
                self._unacknowledged = [*changes, StateChange(details=details)]
                devices = self._devices()
                await socket.send(encode(Details(*self._stamp(), list(details), devices)))
            sample = outbox.next_sample()
            if sample is not None:
                devices = self._devices()
                frame = sample_of(self._stamp(at=sample.at), sample.columns)
                await socket.send(encode(msgspec.structs.replace(frame, devices=devices)))

    def _devices(self) -> list[str] | None:
        """The `devices` of the next sample or details: None where the server knows the order."""
        if self._server_order == self._outbox.order:
            return None
        self._server_order = self._outbox.order
        return list(self._server_order)

    def _frame(self, change: StateChange) -> AgentFrame:
        stamp = self._stamp()
        if change.inventory is not None:
            return Inventory(*stamp, change.inventory)
        if change.health is not None:
            return Health(*stamp, dict(change.health))
        return Checkpoint(*stamp, list(change.checkpoint or ()))

    def _handle_ack(self, change: StateChange, ack: Ack) -> None:
        """Complete, retry or give up a state change."""
        if not ack.problem:
            self._refusals = 0
            self._outbox.done(change)
            if change.inventory is not None:
                self._server_order = order_of(change.inventory)
            self._check_want(ack)
        elif ack.again:
            self._refusals += 1
            pause = again_seconds(self._refusals)
            log.warning("session.not_taken_now", problem=ack.problem, again_seconds=round(pause, 1))
            self._outbox.hold()
            self._after(pause, self._outbox.release)
        else:
            log.error("session.refused_for_good", what=_kind(change), problem=ack.problem)
            self._outbox.refused(change)
            if change.inventory is None:
                self._check_want(ack)

    def _check_want(self, ack: Ack) -> None:
        """Send the inventory again if the ack wants it: at once after the first request, later ones after a pause."""
        if ack.want != "inventory":
            return
        self._server_order = None
        now = asyncio.get_running_loop().time()
        if self._outbox.resend_inventory in self._timers:
            return
        self._requests = self._requests + 1 if now - self._requested_at < REQUESTED_AGAIN_SECONDS else 0
        self._requested_at = now
        if self._requests:
            self._after(again_seconds(self._requests), self._outbox.resend_inventory)
        else:
            self._outbox.resend_inventory()

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        """Call `what` after so many seconds, in place of a call that is already scheduled."""
        if what in self._timers:
            self._timers.pop(what).cancel()

        def do() -> None:
            del self._timers[what]
            what()

        self._timers[what] = asyncio.get_running_loop().call_later(seconds, do)

    async def _exchange(self, socket: ClientConnection, frame: AgentFrame) -> Ack:
        """Send a frame and wait for its ack. Raises TimeoutError."""
        answer: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._waiting_for = frame.seq, answer
        try:
            await socket.send(encode(frame))
            async with asyncio.timeout(ACK_SECONDS):
                ack = await answer
        finally:
            self._waiting_for = None
        self._suspects = [one for one in self._suspects if one not in self._unacknowledged]
        self._unacknowledged.clear()
        return ack

    async def _read(self, socket: ClientConnection) -> None:
        """Read acks; nobody waits for those of samples and details."""
        async for message in socket:
            if not isinstance(message, bytes):
                continue
            ack = decode_ack(message)
            if ack.boot != self._boot:
                continue
            if self._waiting_for is not None and ack.seq == self._waiting_for[0]:
                if not self._waiting_for[1].done():
                    self._waiting_for[1].set_result(ack)
            else:
                self._check_want(ack)
        raise Ended("the server ended the session")

    def _discard_suspects(self, code: int) -> None:
        """Discard changes that were unacknowledged when a bad frame ended this session and the one before."""
        for change in self._unacknowledged:
            if change in self._suspects:
                log.error("session.unsayable", what=_kind(change), code=code)
                self._outbox.discard(change)
        self._suspects = [*self._unacknowledged]
        self._unacknowledged.clear()

    def _stamp(self, *, at: float | None = None) -> tuple[str, int, float]:
        """(boot, next sequence, time); `at`: another time than now, in seconds since 1970."""
        self._seq += 1
        return self._boot, self._seq, time.time() if at is None else at


def pause_seconds(attempt: int, *, longest: float = LONGEST_PAUSE) -> float:
    """Pause after the `attempt`th (1..) failure; a `longest` above LONGEST_PAUSE applies from the first."""
    return backoff(attempt, first=longest if longest > LONGEST_PAUSE else FIRST_PAUSE, longest=longest)


def again_seconds(attempt: int) -> float:
    """Pause before the `attempt`th (1..) repetition in a session."""
    return backoff(attempt, first=FIRST_AGAIN, longest=LONGEST_AGAIN)


def backoff(attempt: int, *, first: float, longest: float) -> float:
    """Seconds that double from `first` with each attempt (1..), up to `longest`, with jitter down to half."""
    longest = min(first * 2 ** min(attempt - 1, 16), longest)
    return float(longest * random.uniform(0.5, 1))  # noqa: S311 - jitter, no secret


def _kind(change: StateChange) -> str:
    kinds = ("inventory", "health", "checkpoint", "details")
    return next(kind for kind in kinds if getattr(change, kind) is not None)
