"""What the agent does all day: look at the devices each second, and put what is new into the outbox.

Run by `agent.__main__`. Kept true: whatever the driver does, even nothing at all, the program goes on, says what is
wrong, and brings a sample a second; a device is sick at the first bad look and well after some good ones; a health that
was told is told again only when it changes; the kubelet's record is read when its file changed, and one that cannot be
understood is not sent. Only `gather` touches the driver, in a thread of its own; what it found is judged on the event
loop.
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
from agent.sources import (
    Column,
    DeviceFacts,
    Machine,
    Reading,
    Source,
    SourceAway,
    by_type_and_minor,
    error_columns,
    within_bounds,
)

SAMPLE_SECONDS: Final = 1.0
MACHINE_SECONDS: Final = 10.0
"""How often it is looked whether devices or links are others."""
GOOD_LOOKS: Final = 5
"""In a row, before a sick GPU is told to be well: a driver that answers every other second makes no stream of changes."""
QUIET_SECONDS: Final = 5.0
"""A look that takes longer leaves the samples empty: they go on, since the agent is not silent."""
HANG_SECONDS: Final = 20.0
"""A look that takes longer hangs."""
CLOSE_SECONDS: Final = 3.0
"""How long the driver may take to let go when the program ends: twice that is well within a pod's grace of 30 s."""
UNANSWERING_DRIVER: Final = "the driver does not answer"
HANGING_DRIVER: Final = "the driver hangs"

log = structlog.get_logger(__name__)


class Found(msgspec.Struct):
    """What one look found. `at`: seconds since 1970, when the figures were measured. `looked`: the machine, where that was looked at too."""

    at: float
    looked: Machine | None = None
    reading: Reading | None = None
    away: str = ""
    checkpoint: Sequence[CheckpointEntry] | None = None


class News(msgspec.Struct):
    """What one look brought that is worth saying."""

    at: float
    inventory: dict[str, Any] | None = None
    health: Mapping[str, str] = {}
    columns: Mapping[str, Column] = {}
    checkpoint: Sequence[CheckpointEntry] | None = None
    details: Sequence[DeviceDetails] = ()


@dataclass
class Program:
    """One node's agent without its connection. `checkpoint`: the kubelet's file, None to leave it alone. `epoch`: seconds since 1970."""

    node: str
    source: Source
    outbox: Outbox
    checkpoint: Path | None = None
    clock: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time
    machine: Machine = field(default_factory=Machine)
    _told: dict[str, str] = field(default_factory=dict)
    _better: dict[str, tuple[str, int]] = field(default_factory=dict)
    _away: str = ""
    _looked: float = float("-inf")
    _stamp: tuple[int, int, int] | None = None
    _looking: asyncio.Future[Found] | None = None

    async def run(self) -> None:
        """Look, each second, until cancelled. A look that takes longer is followed by the next at once; none is made up for."""
        due = self.clock()
        while True:
            self._looking = asyncio.ensure_future(asyncio.to_thread(self.gather))
            await asyncio.wait({self._looking}, timeout=QUIET_SECONDS)
            while not self._looking.done():
                self.tell(self._hanging(self.clock() - due))
                await asyncio.wait({self._looking}, timeout=SAMPLE_SECONDS)
            self.tell(self.judge(self._looking.result()))
            due = max(due + SAMPLE_SECONDS, self.clock())
            await asyncio.sleep(max(0.0, due - self.clock()))

    async def close(self) -> bool:
        """Let go of the driver; False where a call into it does not come back within CLOSE_SECONDS."""
        if self._looking is not None:
            await asyncio.wait({self._looking}, timeout=CLOSE_SECONDS)
            if not self._looking.done():
                return False
        closing = asyncio.ensure_future(asyncio.to_thread(self.source.close))
        done, _ = await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
        return bool(done)

    def tell(self, news: News) -> None:
        """Put it into the outbox; on the event loop."""
        if news.inventory is not None:
            self.outbox.put_inventory(news.inventory)
        self.outbox.put_health(news.health)
        self.outbox.put_sample(news.columns, at=news.at)  # an empty one says that the agent is there
        if news.details:
            self.outbox.put_details(news.details)
        if news.checkpoint is not None:
            self.outbox.put_checkpoint(news.checkpoint)

    def look(self) -> News:
        """One second's work in one go."""
        return self.judge(self.gather())

    def gather(self) -> Found:
        """Ask the driver, and read the kubelet's file; may block."""
        found = Found(self.epoch())
        machine = self.machine
        try:
            if self.clock() - self._looked >= MACHINE_SECONDS:
                self._looked = self.clock()
                found.looked = machine = _with_lost(self.source.machine(), self.machine)
            found.at = self.epoch()
            found.reading = self.source.read(machine)
        except SourceAway as away:
            self._looked = float("-inf")  # when it is back everything is looked at anew
            found.away = str(away)
        if self.checkpoint is not None:
            found.checkpoint = self._given(self.checkpoint)
        return found

    def judge(self, found: Found) -> News:
        """What of it is worth saying."""
        news = News(found.at, checkpoint=found.checkpoint)
        if found.looked is not None and found.looked != self.machine:
            self.machine = found.looked
            news.inventory = inventory_of(self.node, self.machine)
        if found.reading is None:
            self._gone(found.away)
            news.health = self._changed(self._without_driver(UNANSWERING_DRIVER))
        else:
            self._back()
            news.health = self._changed(found.reading.health)
            news.columns = within_bounds({**found.reading.columns, **error_columns(found.reading.details)})
            news.details = found.reading.details
        return news

    def _hanging(self, seconds: float) -> News:
        """What to say while a look does not come back, which it has not done for so long."""
        news = News(self.epoch())
        if seconds >= HANG_SECONDS:
            self._gone(HANGING_DRIVER)
            news.health = self._changed(self._without_driver(HANGING_DRIVER))
        return news

    def _without_driver(self, why: str) -> dict[str, str]:
        """What is wrong while nothing can be read: every GPU has the reason, other devices are as they were."""
        return {
            device.uuid: why if device.type == "gpu" else self._told.get(device.uuid, "")
            for device in self.machine.devices
        }

    def _gone(self, why: str) -> None:
        if why != self._away:
            log.error("source.away", why=why)
        self._away = why

    def _back(self) -> None:
        if self._away:
            log.info("source.back")
            self._away = ""

    def _changed(self, health: Mapping[str, str]) -> dict[str, str]:
        """What is other than was told.

        A device that was well is sick at once; one that was told to be sick is otherwise after GOOD_LOOKS of the same.
        A MIG instance is as its GPU is.
        """
        changes: dict[str, str] = {}
        for device in self.machine.devices:
            now, told = health.get(device.parent or device.uuid, ""), self._told.get(device.uuid, "")
            if now == told:
                self._better.pop(device.uuid, None)
                continue
            before, looks = self._better.get(device.uuid, (now, 0))
            looks = looks + 1 if before == now else 1
            self._better[device.uuid] = now, looks
            if not told or looks >= GOOD_LOOKS:
                del self._better[device.uuid]
                changes[device.uuid] = now
                log.warning("device.health", uuid=device.uuid, reason=now or "well again")
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


def _with_lost(found: Machine, known: Machine) -> Machine:
    """The machine as found, with the devices that answer no more: they stay part of it, and are told to be sick.

    A MIG instance that is gone while its GPU is there was taken away on purpose. Of a type that cannot be looked at now
    nothing is said.
    """
    there = {device.uuid for device in found.devices}
    numbered = {
        (device.type, device.minor) for device in found.devices
    }  # a driver that was loaded anew may count otherwise
    lost = [
        device
        for device in known.devices
        if device.type in found.types
        and not there & {device.uuid, device.parent}
        and (device.type, device.minor) not in numbered
    ]
    if not lost:
        return found
    minors = {device.minor for device in lost if device.type == "gpu" and not device.parent}
    old = [link for link in known.links if minors & {link[0], link[1]}]
    devices = by_type_and_minor((*found.devices, *lost))
    return Machine(devices, tuple(sorted({*found.links, *old})), found.types)


def inventory_of(node: str, machine: Machine) -> dict[str, Any]:
    """The body of an inventory frame, to which the outbox adds how the devices do."""
    return {
        "name": node,
        "types": list(machine.types),
        "devices": [_device(device) for device in machine.devices],
        "links": [list(link) for link in machine.links],
    }


def _device(device: DeviceFacts) -> dict[str, Any]:
    """One device of an inventory; what does not apply to it is left out."""
    facts: dict[str, Any] = {
        "minor": device.minor,
        "type": device.type,
        "uuid": device.uuid,
        "model": device.model,
        "memory": device.memory,
        "numa": device.numa,
        "pcie": device.pcie,
    }
    special = {"busid": device.busid, "mig": device.mig, "parent": device.parent, "profile": device.profile}
    return facts | {name: value for name, value in special.items() if value}
