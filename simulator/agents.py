"""The make-believe agents: one session a node over `WS /ws/agents/<node>/`, a sample every second.

Started by `__main__`. They speak `agent.protocol` as the real agent does. Kept true: a session that
ends is opened again for ever, with growing pauses; what the server has not acknowledged (inventory,
health) is said again in the next session, so no change of state is lost (NODE-2).
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from typing import Final

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from agent.protocol import Ack, AgentFrame, FrameError, Health, Hello, Inventory, decode_ack, encode, sample_of
from simulator.api import pause_seconds
from simulator.fleet import SimNode
from simulator.signals import Signals

VERSION: Final = "simulated-1"
SAMPLE_SECONDS: Final = 1.0
ACK_SECONDS: Final = 30.0
OPEN_SECONDS: Final = 15.0

log = structlog.get_logger(__name__)


class Crowd:
    """How many agents are connected; says so once when all are and once when they begin to drop."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.connected = 0
        self._complete = False

    def joined(self) -> None:
        """One more session is open."""
        self.connected += 1
        if self.connected == self.size:
            self._complete = True
            log.info("agents.all_connected", agents=self.size)

    def left(self, why: str) -> None:
        """One session ended."""
        self.connected -= 1
        if self._complete:
            self._complete = False
            log.warning("agents.dropping", why=why)


class NotTaken(Exception):
    """The server did not acknowledge a frame that it must."""


class Agent:
    """One node's agent. `run` never returns."""

    def __init__(
        self, node: SimNode, index: int, *, signals: Signals, crowd: Crowd, url: str, token: str, phase: float
    ) -> None:
        self._node = node
        self._index = index
        self._signals = signals
        self._crowd = crowd
        self._url = f"{url.replace('http', 'ws', 1).rstrip('/')}/ws/agents/{node.name}/"
        self._token = token
        self._phase = phase
        self._boot = secrets.token_hex(8)
        self._seq = 0
        self._inventory_taken = False
        self._sick: dict[str, str] = {}
        self._unsaid: dict[str, str] = {}
        self._acks: asyncio.Queue[Ack | None] = asyncio.Queue()

    def report_health(self, uuid: str, reason: str) -> None:
        """A device fell sick (`reason`) or is well again (empty); told with the next sample."""
        if reason:
            self._sick[uuid] = reason
        else:
            self._sick.pop(uuid, None)
        self._unsaid[uuid] = reason

    async def run(self) -> None:
        """Connect, talk, and connect again, until cancelled."""
        attempt = 0
        while True:
            began = time.monotonic()
            try:
                await self._session()
            except (OSError, WebSocketException, TimeoutError, FrameError, NotTaken) as error:
                log.debug("agent.session_ended", node=self._node.name, why=str(error))
            attempt = 1 if time.monotonic() - began > 30 else attempt + 1
            await asyncio.sleep(pause_seconds(attempt, random.random()))  # noqa: S311 - jitter, no secret

    async def _session(self) -> None:
        async with connect(
            self._url,
            additional_headers={"Authorization": f"Bearer {self._token}"},
            open_timeout=OPEN_SECONDS,
            close_timeout=1,
            compression=None,
            proxy=None,
        ) as socket:
            self._crowd.joined()
            self._acks = asyncio.Queue()
            reader = asyncio.create_task(self._read(socket))
            try:
                await self._talk(socket)
            except (WebSocketException, OSError, TimeoutError, NotTaken) as error:
                self._crowd.left(str(error))
                raise
            except asyncio.CancelledError:
                self._crowd.left("stopping")
                raise
            finally:
                reader.cancel()

    async def _talk(self, socket: ClientConnection) -> None:
        boot, seq, now = self._stamp()
        ack = await self._say(socket, Hello(boot, seq, now, self._node.name, VERSION, list(self._node.uuids)))
        if not self._inventory_taken or ack.want == "inventory":
            body = self._node.inventory(is_healthy=lambda uuid: uuid not in self._sick)
            ack = await self._say(socket, Inventory(*self._stamp(), body))
            if ack.problem:
                raise NotTaken(f"inventory: {ack.problem}")
            self._inventory_taken = True
        due = time.monotonic() + self._phase
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + SAMPLE_SECONDS, time.monotonic())
            if self._unsaid:
                await self._say_health(socket)
            await socket.send(encode(sample_of(self._stamp(), self._signals.of_node(self._index))))

    async def _say_health(self, socket: ClientConnection) -> None:
        said = dict(self._unsaid)
        ack = await self._say(socket, Health(*self._stamp(), said))
        if ack.problem:
            raise NotTaken(f"health: {ack.problem}")
        self._unsaid = {uuid: reason for uuid, reason in self._unsaid.items() if said.get(uuid) != reason}

    async def _say(self, socket: ClientConnection, frame: AgentFrame) -> Ack:
        """Send a frame and wait for its ack."""
        await socket.send(encode(frame))
        async with asyncio.timeout(ACK_SECONDS):
            while True:
                ack = await self._acks.get()
                if ack is None:
                    raise NotTaken("the session ended before the ack")
                if (ack.boot, ack.seq) == (frame.boot, frame.seq):
                    return ack

    async def _read(self, socket: ClientConnection) -> None:
        """Acks into the queue, and None at the session's end."""
        try:
            async for message in socket:
                if isinstance(message, bytes):
                    self._acks.put_nowait(decode_ack(message))
        except (WebSocketException, OSError, FrameError) as error:
            log.debug("agent.reader_ended", node=self._node.name, why=str(error))
        finally:
            self._acks.put_nowait(None)

    def _stamp(self) -> tuple[str, int, float]:
        """(boot, next sequence, time)."""
        self._seq += 1
        return self._boot, self._seq, time.time()
