"""What an agent still has to say: changes of state until they are acknowledged, samples while they are new.

Filled by `agent.program`, emptied by `agent.session`, both on one event loop. Kept true: a change of state is said again until the server has taken
it, in its newest form (NODE-2), or will never take it; details are said in each session, and only their newest form; of samples only the newest few
are kept, the oldest go first; samples and details that wait are of the GPUs in `order`; memory is bounded whatever the network does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from agent.protocol import MOST_DEVICES, CheckpointEntry, DeviceDetails
from agent.sources import Column

SAMPLES_MOST: Final = 5
"""A second old each: what is older than that nobody wants to see live."""


class StateChange(msgspec.Struct, frozen=True):
    """One thing to say that must not be lost. Exactly one of the four is given; `version` is that of the inventory. Details nobody acknowledges."""

    inventory: dict[str, Any] | None = None
    health: Mapping[str, str] | None = None
    checkpoint: Sequence[CheckpointEntry] | None = None
    version: int = 0
    details: Sequence[DeviceDetails] | None = None


class Measured(msgspec.Struct, frozen=True):
    """One sample, and when it was measured: seconds since 1970."""

    columns: Mapping[str, Column]
    at: float


class Outbox:
    """One agent's."""

    def __init__(self) -> None:
        self._inventory: dict[str, Any] | None = None
        self._inventory_due = False
        self._version = 0
        self._refused = 0
        self._unsayable = 0
        self._held = False
        self._health: dict[str, str] = {}
        self._sick: dict[str, bool] = {}
        self._checkpoint: Sequence[CheckpointEntry] | None = None
        self._details: Sequence[DeviceDetails] = ()
        self._details_due = False
        self._details_unsayable = False
        self._samples: deque[Measured] = deque(maxlen=SAMPLES_MOST)
        self._filled = asyncio.Event()
        self.order: tuple[str, ...] = ()
        """UUIDs of the GPUs, in the order of the samples and details that are kept here; empty before the first inventory."""
        self.dropped = 0
        """Samples that were never sent."""

    def put_inventory(self, body: dict[str, Any]) -> None:
        """The node as it is now. What was measured in another order of GPUs is dropped: nobody could tell whose it is."""
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

    def inventory_again(self) -> None:
        """The server has forgotten it, or never knew; one that it has refused does not get better by being said again."""
        self._inventory_due = self._inventory is not None and self._version not in {self._refused, self._unsayable}
        self._filled.set()

    def put_health(self, changes: Mapping[str, str]) -> None:
        """UUID → what is wrong, empty where all is well again."""
        self._health.update(changes)
        self._sick.update({uuid: bool(reason) for uuid, reason in changes.items()})
        if changes:
            self._filled.set()

    def put_checkpoint(self, entries: Sequence[CheckpointEntry]) -> None:
        """All that the kubelet has given away."""
        self._checkpoint = entries
        self._filled.set()

    def put_sample(self, columns: Mapping[str, Column], *, at: float) -> None:
        """What the devices did at that moment (seconds since 1970)."""
        self.dropped += len(self._samples) == SAMPLES_MOST
        self._samples.append(Measured(columns, at))
        self._filled.set()

    def put_details(self, details: Sequence[DeviceDetails]) -> None:
        """Links, processes and the like of each GPU, where they are others than before."""
        if details != self._details:
            self._details = details
            self._details_due, self._details_unsayable = bool(details), False
            self._filled.set()

    def begin_session(self) -> None:
        """A new session knows nothing of the details; and what one session refused the next may take, since the server may be another by now."""
        self._details_due = bool(self._details) and not self._details_unsayable
        if self._refused == self._version:
            self._refused = 0
            self.inventory_again()
        self._filled.set()

    async def filled(self) -> None:
        """Return when there is something to say."""
        await self._filled.wait()

    def hold(self) -> None:
        """The server cannot take changes of state now: none is next until `release`."""
        self._held = True

    def release(self) -> None:
        """What is due may be said again."""
        self._held = False
        self._filled.set()

    def next_change(self) -> StateChange | None:
        """What is to be said next and acknowledged, None for nothing: inventory before what speaks of its devices."""
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
        """The server has it; what changed since is still to be said."""
        if change.inventory is not None and change.version == self._version:
            self._inventory_due = False
        for uuid, reason in (change.health or {}).items():
            if self._health.get(uuid) == reason:
                del self._health[uuid]
        if change.checkpoint is not None and change.checkpoint is self._checkpoint:
            self._checkpoint = None

    def refused(self, change: StateChange) -> None:
        """The server will not take it in this session: it is said again when it is another."""
        self.done(change)
        if change.inventory is not None:
            self._refused = change.version

    def unsayable(self, change: StateChange) -> None:
        """Sessions end by it: it is never said again as it is."""
        self.done(change)
        if change.inventory is not None:
            self._unsayable = change.version
        if change.details is not None and change.details == self._details:
            self._details_due, self._details_unsayable = False, True

    def _with_health(self, body: dict[str, Any]) -> dict[str, Any]:
        """The inventory with the health of now: it may be asked for again long after it was put."""
        devices = [
            {**device, "healthy": not self._sick[device["uuid"]]} if device["uuid"] in self._sick else device
            for device in body["devices"]
        ]
        return {**body, "devices": devices}

    def next_details(self) -> Sequence[DeviceDetails]:
        """Details that are to be said now, once; empty for none."""
        due, self._details_due = self._details_due, False
        return self._details if due else ()

    def next_sample(self) -> Measured | None:
        """The oldest sample that is still kept; None, and asleep, when there is nothing left to say."""
        if self._samples:
            return self._samples.popleft()
        if self.next_change() is None and not self._details_due:
            self._filled.clear()
        return None


def order_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """UUIDs of the GPUs of an inventory by minor, without MIG instances: the order of samples."""
    gpus = [device for device in body["devices"] if device.get("type", "gpu") == "gpu" and not device.get("parent")]
    return tuple(device["uuid"] for device in sorted(gpus, key=lambda device: int(device.get("minor", 0))))
