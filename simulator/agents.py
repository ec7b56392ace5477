"""Simulated agents: a session a node over `WS /ws/agents/<node>/`, a sample every second.

Started by `__main__`. They use the real agent's outbox and session, so sessions are reopened and no state change is
lost (NODE-2).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog

from agent.outbox import Outbox
from agent.protocol import DeviceDetails, LinkDetails, ProcessDetails
from agent.session import Session
from agent.sources import Column, DeviceFacts, error_columns
from agent.sources.wiring import remotes_of
from simulator.fleet import SimNode
from simulator.signals import Signals

VERSION: Final = "simulated-1"
SAMPLE_SECONDS: Final = 1.0
DETAILS_SAMPLES: Final = 5
"""Samples between two details."""
FIRST_PID: Final = 20_000
MIB: Final = 2**20

log = structlog.get_logger(__name__)


class Crowd:
    """Counts connected agents; logs once when all are connected, and once when the first drops."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.connected = 0
        self._complete = False

    def joined(self) -> None:
        """Count an opened session."""
        self.connected += 1
        if self.connected == self.size:
            self._complete = True
            log.info("agents.all_connected", agents=self.size)

    def left(self, why: str) -> None:
        """Count an ended session."""
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
        """Send a device's health: a reason, or empty for a healthy one."""
        self._outbox.put_health({uuid: reason})

    async def run(self) -> None:
        """Keep the agent connected until cancelled."""
        self._outbox.put_inventory(self._node.inventory())
        async with asyncio.TaskGroup() as together:
            together.create_task(self._session.run())
            together.create_task(self._sample())

    async def _sample(self) -> None:
        due = time.monotonic() + self._phase
        samples = 0
        errors: dict[str, Column] = {}
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + SAMPLE_SECONDS, time.monotonic())
            if samples % DETAILS_SAMPLES == 0:
                details = details_of(self._node, self._signals)
                self._outbox.put_details(details)
                errors = error_columns(details)
            self._outbox.put_sample({**self._signals.of_node(self._index), **errors}, at=time.time())
            samples += 1


def details_of(node: SimNode, signals: Signals) -> list[DeviceDetails]:
    """Details of the node's GPUs by minor: the NVLinks of the inventory, and a process for each holder."""
    return [_device_details(node, gpu, signals) for gpu in node.gpus]


def _device_details(node: SimNode, gpu: DeviceFacts, signals: Signals) -> DeviceDetails:
    remotes = remotes_of(node.kind.links, gpu.minor, uuids=dict(enumerate(node.uuids)), own=node.kind.gpu_links)
    links = [LinkDetails(number, True, remote, 0, 0, 0) for number, remote in enumerate(remotes)]
    size = signals.memory_of(gpu.uuid)
    processes = [
        ProcessDetails(
            FIRST_PID + 100 * gpu.minor + place,
            "python3" if load.peers > 1 else "vllm",
            round(0.9 * load.memory * size) // MIB * MIB,
        )
        for place, load in enumerate(signals.loads.get(signals.row_of[gpu.uuid], ()))
    ]
    return DeviceDetails(links, 0, 0, processes)
