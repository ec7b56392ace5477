"""The make-believe agents: one session a node over `WS /ws/agents/<node>/`, a sample every second.

Started by `__main__`. They speak by the real agent's own outbox and session, so a session that ends is opened again, and no change of
state is lost (NODE-2).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog

from agent.outbox import Outbox
from agent.session import Session
from agent.sources import Column, error_columns
from simulator.details import details_of
from simulator.fleet import SimNode
from simulator.signals import Signals

VERSION: Final = "simulated-1"
SAMPLE_SECONDS: Final = 1.0
DETAILS_SAMPLES: Final = 5
"""Links and processes are looked at with every fifth sample."""

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


class Agent:
    """One node's agent. `run` never returns."""

    def __init__(
        self, node: SimNode, index: int, *, signals: Signals, crowd: Crowd, url: str, token: str, phase: float
    ) -> None:
        self._node = node
        self._index = index
        self._signals = signals
        self._phase = phase
        self._outbox = Outbox()
        self._session = Session(
            url=url,
            node=node.name,
            version=VERSION,
            token=lambda: token,
            outbox=self._outbox,
            on_open=crowd.joined,
            on_end=crowd.left,
        )

    def report_health(self, uuid: str, reason: str) -> None:
        """A device fell sick (`reason`) or is well again (empty); told with the next sample."""
        self._outbox.put_health({uuid: reason})

    async def run(self) -> None:
        """Connect, talk, and connect again, until cancelled."""
        self._outbox.put_inventory(self._node.inventory())
        async with asyncio.TaskGroup() as together:
            together.create_task(self._session.run())
            together.create_task(self._sample())

    async def _sample(self) -> None:
        due = time.monotonic() + self._phase
        looks = 0
        errors: dict[str, Column] = {}
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + SAMPLE_SECONDS, time.monotonic())
            if looks % DETAILS_SAMPLES == 0:
                details = details_of(self._node, self._signals)
                self._outbox.put_details(details)
                errors = error_columns(details)
            self._outbox.put_sample({**self._signals.of_node(self._index), **errors}, at=time.time())
            looks += 1
