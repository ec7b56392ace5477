"""What the agent does all day: look at the devices each second, and put what is new into the outbox.

Run by `agent.__main__`. Kept true: whatever the driver does, the program goes on, and says what is wrong; a health that was told is told again only
when it changes; the kubelet's record is read when its file changed, and one that cannot be understood is not sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from agent.checkpoint import CheckpointUnreadable, read_file
from agent.outbox import Outbox
from agent.protocol import CheckpointEntry, DeviceDetails
from agent.sources import Column, Machine, Source, SourceAway, error_columns

SAMPLE_SECONDS: Final = 1.0
MACHINE_SECONDS: Final = 10.0
"""How often it is looked whether devices or links are others."""

log = structlog.get_logger(__name__)


class News(msgspec.Struct):
    """What one look brought that is worth saying."""

    inventory: dict[str, Any] | None = None
    health: Mapping[str, str] = {}
    columns: Mapping[str, Column] = {}
    checkpoint: Sequence[CheckpointEntry] | None = None
    details: Sequence[DeviceDetails] = ()


@dataclass
class Program:
    """One node's agent without its connection. `checkpoint`: the kubelet's file, None to leave it alone."""

    node: str
    source: Source
    outbox: Outbox
    checkpoint: Path | None = None
    clock: Callable[[], float] = time.monotonic
    machine: Machine = field(default_factory=Machine)
    _told: dict[str, str] = field(default_factory=dict)
    _away: str = ""
    _looked: float = float("-inf")
    _stamp: tuple[int, int, int] | None = None

    async def run(self) -> None:
        """Look, each second, until cancelled. A look that takes longer is followed by the next at once; none is made up for."""
        due = self.clock()
        while True:
            self.tell(await asyncio.to_thread(self.look))
            due = max(due + SAMPLE_SECONDS, self.clock())
            await asyncio.sleep(max(0.0, due - self.clock()))

    def tell(self, news: News) -> None:
        """Put it into the outbox; on the event loop."""
        if news.inventory is not None:
            self.outbox.put_inventory(news.inventory)
        self.outbox.put_health(news.health)
        if news.columns:
            self.outbox.put_sample(news.columns)
        if news.details:
            self.outbox.put_details(news.details)
        if news.checkpoint is not None:
            self.outbox.put_checkpoint(news.checkpoint)

    def look(self) -> News:
        """One second's work; may block."""
        news = News()
        try:
            if self.clock() - self._looked >= MACHINE_SECONDS and self._is_other(self.source.machine()):
                news.inventory = inventory_of(self.node, self.machine)
            reading = self.source.read(self.machine)
        except SourceAway as away:
            self._gone(str(away))
            news.health = self._changed({gpu.uuid: "the driver does not answer" for gpu in self.machine.gpus})
        else:
            self._back()
            news.health = self._changed(reading.health)
            news.columns = {**reading.columns, **error_columns(reading.details)}
            news.details = reading.details
        if self.checkpoint is not None:
            news.checkpoint = self._given(self.checkpoint)
        return news

    def _is_other(self, found: Machine) -> bool:
        """Whether the machine is another than was known. A GPU that answers no more stays part of it: it is told to be sick."""
        self._looked = self.clock()
        there = {device.uuid for device in found.devices}
        numbered = {
            (device.type, device.minor) for device in found.devices
        }  # a driver that was loaded anew may count otherwise
        lost = [
            device
            for device in self.machine.devices
            if device.uuid not in there and (device.type, device.minor) not in numbered
        ]
        if lost:
            minors = {device.minor for device in lost if device.type == "gpu"}
            old = [link for link in self.machine.links if minors & {link[0], link[1]}]
            devices = sorted((*found.devices, *lost), key=lambda one: (one.type != "gpu", one.type, one.minor))
            found = Machine(tuple(devices), tuple(sorted({*found.links, *old})))
        changed = found != self.machine
        self.machine = found
        return changed

    def _gone(self, why: str) -> None:
        if why != self._away:
            log.error("source.away", why=why)
        self._away = why
        self._looked = float("-inf")  # when it is back everything is looked at anew

    def _back(self) -> None:
        if self._away:
            log.info("source.back")
            self._away = ""

    def _changed(self, health: Mapping[str, str]) -> dict[str, str]:
        """What is other than was told."""
        now = {gpu.uuid: health.get(gpu.uuid, "") for gpu in self.machine.gpus}
        changes = {uuid: reason for uuid, reason in now.items() if self._told.get(uuid, "") != reason}
        for uuid, reason in changes.items():
            log.warning("device.health", uuid=uuid, reason=reason or "well again")
        self._told.update(changes)
        return changes

    def _given(self, path: Path) -> Sequence[CheckpointEntry] | None:
        """The kubelet's record where it is another than was read last, and can be understood."""
        try:
            found = path.stat()
        except OSError as error:
            if self._stamp is not None:
                log.warning("checkpoint.gone", why=error.strerror)
                self._stamp = None
            return None
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            return read_file(path)
        except CheckpointUnreadable as error:
            log.warning("checkpoint.unreadable", why=str(error))
            return None


def inventory_of(node: str, machine: Machine) -> dict[str, Any]:
    """The body of an inventory frame, to which the outbox adds how the devices do."""
    return {
        "name": node,
        "devices": [
            {
                "minor": device.minor,
                "type": device.type,
                "uuid": device.uuid,
                "model": device.model,
                "memory": device.memory,
                "numa": device.numa,
                "pcie": device.pcie,
            }
            for device in machine.devices
        ],
        "links": [list(link) for link in machine.links],
    }
