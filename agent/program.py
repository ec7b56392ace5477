"""The agent's main loop: scan the devices each second, and queue what is new in the outbox.

Run by `agent.__main__`. Invariants: whatever the driver does, even hang, there is a sample a second, and health says
what is wrong; a device is unhealthy after the first bad scan and healthy after some good ones; reported health is
reported again only when it changes; a device that the driver does not describe keeps no other out of the inventory for
longer than DESCRIBED_WITHIN_SECONDS; the kubelet's checkpoint is read when its file changed, and not sent if invalid.
Only `scan` calls the driver, in a thread; its result is evaluated on the event loop.
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

from agent.checkpoint import CheckpointNotRead, CheckpointUnreadable, read_file
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
from kube.device_types import GPU

SAMPLE_SECONDS: Final = 1.0
MACHINE_SECONDS: Final = 10.0
"""How often devices and links are listed."""
DESCRIBED_WITHIN_SECONDS: Final = 60.0
"""How long the first inventory of GPUs waits for those that the driver does not describe: the server may know them from
the agent's last boot, and a GPU that an inventory leaves out is gone.
"""
GOOD_SCANS: Final = 5
"""Good scans in a row before an unhealthy GPU is reported healthy."""
QUIET_SECONDS: Final = 5.0
"""During a scan that takes longer empty samples are sent, which show that the agent is not silent."""
HANG_SECONDS: Final = 20.0
"""A scan that takes longer hangs."""
CLOSE_SECONDS: Final = 3.0
"""How long the driver may take to close; twice that is well within a pod's grace of 30 s."""
UNANSWERING_DRIVER: Final = "the driver does not answer"
HANGING_DRIVER: Final = "the driver hangs"

log = structlog.get_logger(__name__)


class Scan(msgspec.Struct):
    """What one scan found. `at`: when it measured, seconds since 1970; `machine`: None unless it listed the devices."""

    at: float
    machine: Machine | None = None
    reading: Reading | None = None
    away: str = ""
    checkpoint: Sequence[CheckpointEntry] | None = None


class Report(msgspec.Struct):
    """What one scan found that is to be sent."""

    at: float
    inventory: dict[str, Any] | None = None
    gone: frozenset[str] = frozenset()
    """UUIDs of devices that the last inventory had and this one lacks, though their types are listed."""
    health: Mapping[str, str] = {}
    columns: Mapping[str, Column] = {}
    checkpoint: Sequence[CheckpointEntry] | None = None
    details: Sequence[DeviceDetails] = ()


@dataclass
class Program:
    """One node's agent without its connection. `checkpoint`: the kubelet's file, or None; `epoch`: Unix time."""

    node: str
    source: Source
    outbox: Outbox
    checkpoint: Path | None = None
    clock: Callable[[], float] = time.monotonic
    epoch: Callable[[], float] = time.time
    machine: Machine = field(default_factory=Machine)
    _reported: dict[str, str] = field(default_factory=dict)
    _unconfirmed: dict[str, tuple[str, int]] = field(default_factory=dict)
    _away: str = ""
    _listed_at: float = float("-inf")
    _undescribed: frozenset[str] = frozenset()
    """UUIDs of devices of which the last listing lacked what an inventory needs."""
    _described_by: float | None = None
    """Until when GPUs are not reported for those that lack it; None before there was any."""
    _checkpoint_stamp: tuple[int, int, int] | None = None
    _checkpoint_not_read: str = ""
    """Why it could not be read the last time."""
    _scanning: asyncio.Future[Scan] | None = None

    async def run(self) -> None:
        """Scan each second, until cancelled. After a scan that took longer the next starts at once."""
        due = self.clock()
        while True:
            self._scanning = asyncio.ensure_future(asyncio.to_thread(self.scan))
            await asyncio.wait({self._scanning}, timeout=QUIET_SECONDS)
            while not self._scanning.done():
                self.enqueue(self._hanging(self.clock() - due))
                await asyncio.wait({self._scanning}, timeout=SAMPLE_SECONDS)
            self.enqueue(self.evaluate(self._scanning.result()))
            due = max(due + SAMPLE_SECONDS, self.clock())
            await asyncio.sleep(max(0.0, due - self.clock()))

    async def close(self) -> bool:
        """Close the source; False where a call into the driver does not return within CLOSE_SECONDS."""
        if self._scanning is not None:
            await asyncio.wait({self._scanning}, timeout=CLOSE_SECONDS)
            if not self._scanning.done():
                return False
        closing = asyncio.ensure_future(asyncio.to_thread(self.source.close))
        done, _ = await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
        return bool(done)

    def enqueue(self, report: Report) -> None:
        """Queue the report in the outbox; on the event loop."""
        if report.inventory is not None:
            self.outbox.put_inventory(report.inventory)
        self.outbox.forget_health(report.gone)
        self.outbox.put_health(report.health)
        self.outbox.put_sample(report.columns, at=report.at)  # an empty one shows that the agent runs
        if report.details:
            self.outbox.put_details(report.details)
        if report.checkpoint is not None:
            self.outbox.put_checkpoint(report.checkpoint)

    def scan(self) -> Scan:
        """Read the driver and the kubelet's file; may block."""
        found = Scan(self.epoch())
        machine = self.machine
        try:
            if self.clock() - self._listed_at >= MACHINE_SECONDS:
                self._listed_at = self.clock()
                found.machine = machine = _with_lost(self._described(self.source.machine()), self.machine)
            found.at = self.epoch()
            found.reading = self.source.read(machine)
        except SourceAway as away:
            self._listed_at = float("-inf")  # list the devices as soon as it is back
            found.away = str(away)
        if self.checkpoint is not None:
            found.checkpoint = self._changed_checkpoint(self.checkpoint)
        return found

    def evaluate(self, found: Scan) -> Report:
        """The report of a scan."""
        report = Report(found.at, checkpoint=found.checkpoint)
        if found.machine is not None and found.machine != self.machine:
            report.gone = _gone(self.machine, found.machine)
            for uuid in report.gone:
                self._reported.pop(uuid, None)
                self._unconfirmed.pop(uuid, None)
            self.machine = found.machine
            report.inventory = inventory_of(self.node, self.machine)
        if found.reading is None:
            self._set_away(found.away)
            report.health = self._changed_health(self._unreadable_health(UNANSWERING_DRIVER))
        else:
            self._set_away("")
            report.health = self._changed_health(found.reading.health)
            report.columns = within_bounds({**found.reading.columns, **error_columns(found.reading.details)})
            report.details = found.reading.details
        return report

    def _hanging(self, seconds: float) -> Report:
        """The report while a scan runs for so long."""
        report = Report(self.epoch())
        if seconds >= HANG_SECONDS:
            self._set_away(HANGING_DRIVER)
            report.health = self._changed_health(self._unreadable_health(HANGING_DRIVER))
        return report

    def _unreadable_health(self, why: str) -> dict[str, str]:
        """Health while nothing can be read: `why` for every GPU, unchanged for other devices."""
        return {
            device.uuid: why if device.type == GPU else self._reported.get(device.uuid, "")
            for device in self.machine.devices
        }

    def _described(self, found: Machine) -> Machine:
        """The machine with devices that lack what an inventory needs as they were known before, without those that were
        not known: the server refuses an inventory as a whole. For a time after the start all GPUs are left out instead,
        with their type.
        """
        undescribed = {device.uuid for device in found.devices if not _is_described(device)}
        # the model of an instance is made of that of its GPU
        lacking = frozenset(one.uuid for one in found.devices if undescribed & {one.uuid, one.parent})
        if lacking - self._undescribed:
            log.warning("device.undescribed", uuids=sorted(lacking))
        self._undescribed = lacking
        if not lacking:
            return found
        before = {device.uuid: device for device in self.machine.devices}
        if lacking - before.keys() and self._waits_for_description():
            return Machine(
                tuple(one for one in found.devices if one.type != GPU),
                types=tuple(kind for kind in found.types if kind != GPU),
            )
        listed = [before.get(one.uuid) if one.uuid in lacking else one for one in found.devices]
        gpus = {one.uuid: one.minor for one in listed if one is not None and one.type == GPU and not one.parent}
        devices = by_type_and_minor(
            one for one in listed if one is not None and (one.type != GPU or (one.parent or one.uuid) in gpus)
        )
        links = [link for link in found.links if {link[0], link[1]} <= {*gpus.values()}]
        return Machine(devices, tuple(links), found.types)

    def _waits_for_description(self) -> bool:
        """Whether GPUs are not reported yet, since the driver does not describe all of them."""
        if self._described_by is None:
            self._described_by = self.clock() + DESCRIBED_WITHIN_SECONDS
        return not self.machine.gpus and self.clock() < self._described_by

    def _set_away(self, why: str) -> None:
        """Log when the source goes away, for another reason too, and when it is back (`why` empty)."""
        if why != self._away:
            if why:
                log.error("source.away", why=why)
            else:
                log.info("source.back")
        self._away = why

    def _changed_health(self, health: Mapping[str, str]) -> dict[str, str]:
        """Health that differs from what was reported: of healthy devices at once, of unhealthy ones after GOOD_SCANS of
        the same. A MIG instance has the health of its GPU.
        """
        changes: dict[str, str] = {}
        for device in self.machine.devices:
            now, reported = health.get(device.parent or device.uuid, ""), self._reported.get(device.uuid, "")
            if now == reported:
                self._unconfirmed.pop(device.uuid, None)
                continue
            before, scans = self._unconfirmed.get(device.uuid, (now, 0))
            scans = scans + 1 if before == now else 1
            self._unconfirmed[device.uuid] = now, scans
            if not reported or scans >= GOOD_SCANS:
                del self._unconfirmed[device.uuid]
                changes[device.uuid] = now
                log.warning("device.health", uuid=device.uuid, reason=now or "well again")
        self._reported.update(changes)
        return changes

    def _changed_checkpoint(self, path: Path) -> Sequence[CheckpointEntry] | None:
        """The kubelet's checkpoint if the file changed and is valid, else None."""
        try:
            found = path.stat()
        except OSError as error:
            if self._checkpoint_stamp is not None:
                log.warning("checkpoint.gone", why=error.strerror)
                self._checkpoint_stamp = None
            return None
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        if stamp == self._checkpoint_stamp:
            return None
        try:
            read = read_file(path)
        except CheckpointNotRead as error:
            if str(error) != self._checkpoint_not_read:  # it is tried again with each scan
                log.warning("checkpoint.not_read", why=str(error))
            self._checkpoint_not_read = str(error)
            return None
        except CheckpointUnreadable as error:
            log.warning("checkpoint.unreadable", why=str(error))
            read = None
        self._checkpoint_stamp, self._checkpoint_not_read = stamp, ""
        return read


def _is_described(device: DeviceFacts) -> bool:
    """Whether the device has what an inventory needs of its type: of a GPU model and memory."""
    if device.type != GPU:
        return True
    return bool(device.model and device.memory and (device.profile or not device.parent))


def _with_lost(found: Machine, known: Machine) -> Machine:
    """The machine as found, with devices that do not answer any more, which are reported unhealthy.

    Left out are MIG instances whose GPU answers, which were removed on purpose, and types that cannot be listed now.
    """
    uuids = {device.uuid for device in found.devices}
    # a reloaded driver may number its devices in another way
    numbered = {(device.type, device.minor) for device in found.devices}
    lost = [
        device
        for device in known.devices
        if device.type in found.types
        and not uuids & {device.uuid, device.parent}
        and (device.type, device.minor) not in numbered
    ]
    if not lost:
        return found
    minors = {device.minor for device in lost if device.type == GPU and not device.parent}
    old = [link for link in known.links if minors & {link[0], link[1]}]
    devices = by_type_and_minor((*found.devices, *lost))
    return Machine(devices, tuple(sorted({*found.links, *old})), found.types)


def _gone(before: Machine, after: Machine) -> frozenset[str]:
    """UUIDs of devices that were removed; those of a type that cannot be listed now may still be there."""
    listed = {device.uuid for device in before.devices if device.type in after.types}
    return frozenset(listed - {device.uuid for device in after.devices})


def inventory_of(node: str, machine: Machine) -> dict[str, Any]:
    """The body of an inventory frame, to which the outbox adds health."""
    return {
        "name": node,
        "types": list(machine.types),
        "devices": [_device(device) for device in machine.devices],
        "links": [list(link) for link in machine.links],
    }


def _device(device: DeviceFacts) -> dict[str, Any]:
    """One device of an inventory, without fields that do not apply to it."""
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
