"""What an agent has to send: state changes until they are acknowledged, samples while they are new.

Filled by `agent.program`, emptied by `agent.session`, both on one event loop. Invariants: a state change is sent again,
in its newest form, until the server takes it or will never take it (NODE-2); details are sent in each session, only in
their newest form; only the newest few samples are kept; waiting samples and details list the GPUs in `order`; memory is
bounded whatever the network does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from agent.protocol import MOST_DEVICES, CheckpointEntry, DeviceDetails
from agent.sources import Column
from kube.device_types import GPU

SAMPLES_MOST: Final = 5
"""Seconds of samples; older ones are of no use live."""


class StateChange(msgspec.Struct, frozen=True):
    """One of inventory, health, checkpoint and details; `version` is the inventory's. Details are not acknowledged."""

    inventory: dict[str, Any] | None = None
    health: Mapping[str, str] | None = None
    checkpoint: Sequence[CheckpointEntry] | None = None
    version: int = 0
    details: Sequence[DeviceDetails] | None = None


class Measured(msgspec.Struct, frozen=True):
    """One sample; `at`: when it was measured, seconds since 1970."""

    columns: Mapping[str, Column]
    at: float


class Outbox:
    """The outbox of one agent."""

    def __init__(self) -> None:
        self._inventory: dict[str, Any] | None = None
        self._inventory_due = False
        self._version = 0
        self._refused = 0
        self._discarded = 0
        self._held = False
        self._health: dict[str, str] = {}
        self._sick: dict[str, bool] = {}
        self._checkpoint: Sequence[CheckpointEntry] | None = None
        self._details: Sequence[DeviceDetails] = ()
        self._details_due = False
        self._details_discarded = False
        self._samples: deque[Measured] = deque(maxlen=SAMPLES_MOST)
        self._filled = asyncio.Event()
        self.order: tuple[str, ...] = ()
        """UUIDs of the GPUs in the order of waiting samples and details; empty before the first inventory."""
        self.dropped = 0
        """Number of samples that were never sent."""

    def put_inventory(self, body: dict[str, Any]) -> None:
        """Queue the inventory. Samples and details in another order of GPUs are dropped."""
        order = order_of(body)
        if order != self.order:
            self.dropped += len(self._samples)
            self._samples.clear()
            self._details, self._details_due = (), False
            self.order = order
        self._inventory = body
        self._inventory_due = True
        self._version += 1
        self._filled.set()

    def resend_inventory(self) -> None:
        """Queue the inventory again, which the server lacks, unless it was refused."""
        self._inventory_due = self._inventory is not None and self._version not in {self._refused, self._discarded}
        self._filled.set()

    def put_health(self, changes: Mapping[str, str]) -> None:
        """Queue changes of health: UUID → what is wrong, empty for healthy devices."""
        self._health.update(changes)
        self._sick.update({uuid: bool(reason) for uuid, reason in changes.items()})
        if changes:
            self._filled.set()

    def forget_health(self, uuids: Collection[str]) -> None:
        """Drop what is known of the health of devices that were removed: they may come again, in another state."""
        for uuid in uuids:
            self._health.pop(uuid, None)
            self._sick.pop(uuid, None)

    def put_checkpoint(self, entries: Sequence[CheckpointEntry]) -> None:
        """Queue the kubelet's checkpoint."""
        self._checkpoint = entries
        self._filled.set()

    def put_sample(self, columns: Mapping[str, Column], *, at: float) -> None:
        """Queue a sample measured `at` seconds since 1970."""
        self.dropped += len(self._samples) == SAMPLES_MOST
        self._samples.append(Measured(columns, at))
        self._filled.set()

    def put_details(self, details: Sequence[DeviceDetails]) -> None:
        """Queue the details of each GPU, if they changed."""
        if details != self._details:
            self._details = details
            self._details_due, self._details_discarded = bool(details), False
            self._filled.set()

    def begin_session(self) -> None:
        """Queue again what a new session needs: details, and an inventory that the last one refused."""
        self._details_due = bool(self._details) and not self._details_discarded
        if self._refused == self._version:
            self._refused = 0
            self.resend_inventory()
        self._filled.set()

    async def filled(self) -> None:
        """Wait until there is something to send."""
        await self._filled.wait()

    def hold(self) -> None:
        """Hold state changes back until `release`, since the server cannot take any now."""
        self._held = True

    def release(self) -> None:
        """Send state changes again."""
        self._held = False
        self._filled.set()

    def next_change(self) -> StateChange | None:
        """The state change to send next, the inventory before what refers to its devices; None without any."""
        if self._held:
            return None
        if self._inventory_due and self._inventory is not None:
            return StateChange(inventory=self._with_health(self._inventory), version=self._version)
        if self._health:
            return StateChange(health=dict(islice(self._health.items(), MOST_DEVICES)))  # as many as a frame holds
        if self._checkpoint is not None:
            return StateChange(checkpoint=self._checkpoint)
        return None

    def done(self, change: StateChange) -> None:
        """The server took the change; what changed since is still queued."""
        if change.inventory is not None and change.version == self._version:
            self._inventory_due = False
        for uuid, reason in (change.health or {}).items():
            if self._health.get(uuid) == reason:
                del self._health[uuid]
        if change.checkpoint is not None and change.checkpoint is self._checkpoint:
            self._checkpoint = None

    def refused(self, change: StateChange) -> None:
        """The server refused the change for this session."""
        self.done(change)
        if change.inventory is not None:
            self._refused = change.version

    def discard(self, change: StateChange) -> None:
        """Never send the change again as it is, since it ends sessions."""
        self.done(change)
        if change.inventory is not None:
            self._discarded = change.version
        if change.details is not None and change.details == self._details:
            self._details_due, self._details_discarded = False, True

    def _with_health(self, body: dict[str, Any]) -> dict[str, Any]:
        """The inventory with current health: it may be sent long after it was put."""
        devices = [
            {**device, "healthy": not self._sick[device["uuid"]]} if device["uuid"] in self._sick else device
            for device in body["devices"]
        ]
        return {**body, "devices": devices}

    def next_details(self) -> Sequence[DeviceDetails]:
        """Details to send now; empty without any."""
        due, self._details_due = self._details_due, False
        return self._details if due else ()

    def next_sample(self) -> Measured | None:
        """The oldest sample; None without any. Resets `filled` when nothing is left to send."""
        if self._samples:
            return self._samples.popleft()
        if self.next_change() is None and not self._details_due:
            self._filled.clear()
        return None


def order_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """UUIDs of an inventory's GPUs by minor without MIG instances: the order of samples."""
    gpus = [device for device in body["devices"] if device.get("type", GPU) == GPU and not device.get("parent")]
    return tuple(device["uuid"] for device in sorted(gpus, key=lambda device: int(device.get("minor", 0))))
