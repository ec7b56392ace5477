"""The connection to gpuplane: one session after the other over `WS /ws/agents/<node>/`, as docs/agent-protocol.md has it.

Run by `agent.program` on its event loop. Kept true: what the outbox holds is said in its order; a change of state counts as said once the server has
acknowledged it; a session that ends is followed by another after a pause that doubles, with jitter, and is long where the server says that the
agent is at fault; the token is read anew for each session, since it is replaced under way.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from agent.outbox import Outbox, StateChange
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

log = structlog.get_logger(__name__)


class Ended(Exception):
    """The session is over; the text says why."""


class Session:
    """One node's. `token`: what to sign in with, asked before each session. `devices`: UUIDs of the GPUs in the order of samples."""

    def __init__(
        self,
        *,
        url: str,
        node: str,
        version: str,
        token: Callable[[], str],
        devices: Callable[[], Sequence[str]],
        outbox: Outbox,
        on_open: Callable[[], None] | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        """`on_open`, `on_end`: told instead of the log, of each session that was opened and why it ended."""
        self._on_open = on_open or (lambda: log.info("session.open", node=node))
        self._on_end = on_end or (lambda why: log.warning("session.ended", why=why))
        self._url = f"{url.replace('http', 'ws', 1).rstrip('/')}/ws/agents/{node}/"
        self._node = node
        self._version = version
        self._token = token
        self._devices = devices
        self._outbox = outbox
        self._boot = secrets.token_hex(8)
        self._seq = 0
        self._opened = False

    async def run(self) -> None:
        """Connect, talk, and connect again, until cancelled."""
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
        ) as socket:
            acks: asyncio.Queue[Ack] = asyncio.Queue()
            reader = asyncio.create_task(self._read(socket, acks))
            writer = asyncio.create_task(self._talk(socket, acks))
            try:
                done, _ = await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in (reader, writer):
                    task.cancel()
                await asyncio.gather(reader, writer, return_exceptions=True)

    async def _talk(self, socket: ClientConnection, acks: asyncio.Queue[Ack]) -> None:
        devices = list(self._devices())
        self._heed(await self._say(socket, acks, Hello(*self._stamp(), self._node, self._version, devices)))
        self._opened = True
        self._on_open()
        self._outbox.details_again()
        while True:
            await self._outbox.filled()
            change = self._outbox.next_change()
            if change is not None:
                ack = await self._say(socket, acks, self._frame(change))
                if ack.problem:
                    log.warning("session.not_taken", problem=ack.problem)
                self._outbox.done(change)
                self._heed(ack)
                continue
            if details := self._outbox.next_details():
                await socket.send(encode(Details(*self._stamp(), list(details))))
            sample = self._outbox.next_sample()
            if sample is not None:
                await socket.send(encode(sample_of(self._stamp(), sample)))

    def _frame(self, change: StateChange) -> AgentFrame:
        stamp = self._stamp()
        if change.inventory is not None:
            return Inventory(*stamp, change.inventory)
        if change.health is not None:
            return Health(*stamp, dict(change.health))
        return Checkpoint(*stamp, list(change.checkpoint or ()))

    def _heed(self, ack: Ack) -> None:
        if ack.want == "inventory":
            self._outbox.inventory_again()

    async def _say(self, socket: ClientConnection, acks: asyncio.Queue[Ack], frame: AgentFrame) -> Ack:
        """Send a frame and wait for its ack. Raises TimeoutError."""
        await socket.send(encode(frame))
        async with asyncio.timeout(ACK_SECONDS):
            while True:
                ack = await acks.get()
                if (ack.boot, ack.seq) == (frame.boot, frame.seq):
                    return ack
                self._heed(ack)

    async def _read(self, socket: ClientConnection, acks: asyncio.Queue[Ack]) -> None:
        async for message in socket:
            if isinstance(message, bytes):
                ack = decode_ack(message)
                self._heed(ack)
                acks.put_nowait(ack)
        raise Ended("the server ended the session")

    def _stamp(self) -> tuple[str, int, float]:
        """(boot, next sequence, time)."""
        self._seq += 1
        return self._boot, self._seq, time.time()


def pause_seconds(attempt: int, *, longest: float = LONGEST_PAUSE) -> float:
    """Before the attempt after the `attempt`th (1..) failure: doubling, bounded, between half and all of it."""
    bound = longest if longest > LONGEST_PAUSE else min(FIRST_PAUSE * 2 ** min(attempt - 1, 16), longest)
    return float(bound * (0.5 + random.random() / 2))  # noqa: S311 - jitter, no secret
