"""The connection to gpuplane: one session after the other over `WS /ws/agents/<node>/`, as docs/agent-protocol.md has it.

Run by `agent.__main__` on its event loop. Kept true: what the outbox holds is said in its order; a change of state counts as said once the server has
taken it, or refused it for good; what it cannot take now, and what it asks for again and again, is said after a pause that doubles, with jitter, while
samples go on; a session that ends is followed by another after such a pause, a long one where the server says that the agent is at fault;
what has ended two sessions so is not said again; the token and the CA are read anew for each session, since they are
replaced under way.
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
"""A session that lasted so long was a good one: the next pause is short again."""
FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 10.0
OUR_FAULT_PAUSE: Final = 60.0
OUR_FAULTS: Final = frozenset({1003, 1008, 1009})
"""Close codes by which the server says that the agent has to be mended."""
BAD_FRAMES: Final = frozenset({1008, 1009})
"""Of these, those that one frame may bring about."""
FIRST_AGAIN: Final = 1.0
LONGEST_AGAIN: Final = 30.0
"""Before a change of state is said again in the same session, in seconds."""
ASKED_AGAIN_SECONDS: Final = 60.0
"""A server that asks for the inventory sooner than that after it last asked waits for it: it may ask with every ack."""

log = structlog.get_logger(__name__)


class Ended(Exception):
    """The session is over; the text says why."""


class Session:
    """One node's. `token`: what to sign in with, asked before each session."""

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
        """`on_open`, `on_end`: told instead of the log, of each session that was opened and why it ended.

        `ca_file`: whom to trust instead of the system's own CAs, where the URL is https.
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
        self._order: tuple[str, ...] | None = None
        """As the server has it; None where it has none."""
        self._awaited: tuple[int, asyncio.Future[Ack]] | None = None
        self._unproven: list[StateChange] = []
        """Said in this session, and not known to have been understood: the server reads frames in their order."""
        self._suspects: list[StateChange] = []
        """The same of the last session that ended by a bad frame."""
        self._unavailable = 0
        self._asks = 0
        self._asked = float("-inf")
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    async def run(self) -> None:
        """Connect, talk, and connect again, until cancelled."""
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
                await self._one()
            except ConnectionClosed as error:
                code = error.rcvd.code if error.rcvd else None
                self._ended(f"{code}: {error}")
                longest = OUR_FAULT_PAUSE if code in OUR_FAULTS else LONGEST_PAUSE
                if code in BAD_FRAMES:
                    self._blame(code)
            except InvalidStatus as error:
                log.warning("session.refused", status=error.response.status_code)
            except (OSError, WebSocketException, TimeoutError, FrameError, Ended) as error:
                self._ended(str(error) or type(error).__name__)
            attempt = 1 if time.monotonic() - began > STEADY_SECONDS else attempt + 1
            await asyncio.sleep(pause_seconds(attempt, longest=longest))

    def _ended(self, why: str) -> None:
        """Where there was a session; a connection that never came about is only logged."""
        if self._opened:
            self._opened = False
            self._on_end(why)
        else:
            log.info("session.none", why=why)

    async def _one(self) -> None:
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
            writer = asyncio.create_task(self._talk(socket))
            try:
                done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in (reader, writer):
                    task.cancel()
                await asyncio.gather(reader, writer, return_exceptions=True)

    def _tls(self) -> ssl.SSLContext | None:
        """Whom to trust, None where the address is no https. Raises OSError for a CA that cannot be read."""
        return ssl.create_default_context(cafile=self._ca_file) if self._url.startswith("wss:") else None

    async def _talk(self, socket: ClientConnection) -> None:
        outbox = self._outbox
        self._unproven.clear()
        order = outbox.order  # as it is put into hello: it may be another when the ack comes
        ack = await self._say(socket, Hello(*self._stamp(), self._node, self._version, list(order)))
        self._order = order or None
        self._opened = True
        self._on_open()
        outbox.begin_session()
        self._heed(ack)
        while True:
            await outbox.filled()
            change = outbox.next_change()
            if change is not None:
                frame = self._frame(change)
                self._unproven.append(change)
                self._settle(change, await self._say(socket, frame))
                continue
            if details := outbox.next_details():
                self._unproven = [
                    one for one in self._unproven if one.details is None
                ]  # only the newest may be said again
                self._unproven.append(StateChange(details=details))
                devices = self._devices()
                await socket.send(encode(Details(*self._stamp(), list(details), devices)))
            sample = outbox.next_sample()
            if sample is not None:
                devices = self._devices()
                frame = sample_of(self._stamp(at=sample.at), sample.columns)
                await socket.send(encode(msgspec.structs.replace(frame, devices=devices)))

    def _devices(self) -> list[str] | None:
        """What a sample or details have to say of their order: None where the server has it. From then on it has it."""
        if self._order == self._outbox.order:
            return None
        self._order = self._outbox.order
        return list(self._order)

    def _frame(self, change: StateChange) -> AgentFrame:
        stamp = self._stamp()
        if change.inventory is not None:
            return Inventory(*stamp, change.inventory)
        if change.health is not None:
            return Health(*stamp, dict(change.health))
        return Checkpoint(*stamp, list(change.checkpoint or ()))

    def _settle(self, change: StateChange, ack: Ack) -> None:
        """What becomes of a change of state, by its ack."""
        if not ack.problem:
            self._unavailable = 0
            self._outbox.done(change)
            if change.inventory is not None:
                self._order = order_of(change.inventory)
            self._heed(ack)
        elif ack.again:
            self._unavailable += 1
            pause = again_seconds(self._unavailable)
            log.warning("session.not_taken_now", problem=ack.problem, again_seconds=round(pause, 1))
            self._outbox.hold()
            self._after(pause, self._outbox.release)
        else:
            log.error("session.refused_for_good", what=_named(change), problem=ack.problem)
            self._outbox.refused(change)
            if change.inventory is None:
                self._heed(ack)

    def _heed(self, ack: Ack) -> None:
        """Say the inventory again where the ack wants it: at once when asked for the first time, and then after a pause."""
        if ack.want != "inventory":
            return
        self._order = None
        now = asyncio.get_running_loop().time()
        if self._outbox.inventory_again in self._timers:
            return
        self._asks = self._asks + 1 if now - self._asked < ASKED_AGAIN_SECONDS else 0
        self._asked = now
        if self._asks:
            self._after(again_seconds(self._asks), self._outbox.inventory_again)
        else:
            self._outbox.inventory_again()

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        """Do it then; once, however often it is asked for meanwhile."""
        if what in self._timers:
            self._timers.pop(what).cancel()

        def do() -> None:
            del self._timers[what]
            what()

        self._timers[what] = asyncio.get_running_loop().call_later(seconds, do)

    async def _say(self, socket: ClientConnection, frame: AgentFrame) -> Ack:
        """Send a frame and wait for its ack. Raises TimeoutError."""
        answer: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._awaited = frame.seq, answer
        try:
            await socket.send(encode(frame))
            async with asyncio.timeout(ACK_SECONDS):
                ack = await answer
        finally:
            self._awaited = None
        self._suspects = [one for one in self._suspects if one not in self._unproven]
        self._unproven.clear()
        return ack

    async def _read(self, socket: ClientConnection) -> None:
        """Give the ack that is waited for to who waits for it; the others are of samples and details, which wait for none."""
        async for message in socket:
            if not isinstance(message, bytes):
                continue
            ack = decode_ack(message)
            if ack.boot != self._boot:
                continue
            if self._awaited is not None and ack.seq == self._awaited[0]:
                if not self._awaited[1].done():
                    self._awaited[1].set_result(ack)
            else:
                self._heed(ack)
        raise Ended("the server ended the session")

    def _blame(self, code: int) -> None:
        """A frame ended the session; what was under way then and at the last such end is never said again as it is."""
        for change in self._unproven:
            if change in self._suspects:
                log.error("session.unsayable", what=_named(change), code=code)
                self._outbox.unsayable(change)
        self._suspects = [*self._unproven]
        self._unproven.clear()

    def _stamp(self, *, at: float | None = None) -> tuple[str, int, float]:
        """(boot, next sequence, time); `at`: another time than now, in seconds since 1970."""
        self._seq += 1
        return self._boot, self._seq, time.time() if at is None else at


def pause_seconds(attempt: int, *, longest: float = LONGEST_PAUSE) -> float:
    """Before the attempt after the `attempt`th (1..) failure; a `longest` above the usual one is waited for from the first."""
    return _jittered(longest) if longest > LONGEST_PAUSE else backoff(attempt, first=FIRST_PAUSE, longest=longest)


def again_seconds(attempt: int) -> float:
    """Before the same is said for the `attempt`th (1..) time again in one session."""
    return backoff(attempt, first=FIRST_AGAIN, longest=LONGEST_AGAIN)


def backoff(attempt: int, *, first: float, longest: float) -> float:
    """Doubles from `first` with each attempt (1..), up to `longest`, with jitter."""
    return _jittered(min(first * 2 ** min(attempt - 1, 16), longest))


def _jittered(seconds: float) -> float:
    """Between half of it and all."""
    return float(seconds * (0.5 + random.random() / 2))  # noqa: S311 - jitter, no secret


def _named(change: StateChange) -> str:
    kinds = ("inventory", "health", "checkpoint", "details")
    return next(kind for kind in kinds if getattr(change, kind) is not None)
