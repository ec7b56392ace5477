"""What an agent still has to say: changes of state until they are acknowledged, samples while they are new.

Filled by `agent.program`, emptied by `agent.session`, both on one event loop. Kept true: a change of state is said again until the server has taken
it, in its newest form (NODE-2); details are said in each session, and only their newest form; of samples only the newest few are kept, the oldest go first; memory is bounded whatever the network does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agent.protocol import CheckpointEntry, DeviceDetails
from agent.sources import Column

SAMPLES_MOST: Final = 5
"""A second old each: what is older than that nobody wants to see live."""


class StateChange(msgspec.Struct, frozen=True):
    """One thing to say and to have acknowledged. Exactly one of the three is given; `version` is that of the inventory."""

    inventory: dict[str, Any] | None = None
    health: Mapping[str, str] | None = None
    checkpoint: Sequence[CheckpointEntry] | None = None
    version: int = 0


class Outbox:
    """One agent's."""

    def __init__(self) -> None:
        self._inventory: dict[str, Any] | None = None
        self._inventory_due = False
        self._version = 0
        self._health: dict[str, str] = {}
        self._sick: dict[str, bool] = {}
        self._checkpoint: Sequence[CheckpointEntry] | None = None
        self._details: Sequence[DeviceDetails] = ()
        self._details_due = False
        self._samples: deque[Mapping[str, Column]] = deque(maxlen=SAMPLES_MOST)
        self._filled = asyncio.Event()
        self.dropped = 0
        """Samples that were never sent."""

    def put_inventory(self, body: dict[str, Any]) -> None:
        """The node as it is now."""
        self._inventory = body
        self._inventory_due = True
        self._version += 1
        self._filled.set()

    def inventory_again(self) -> None:
        """The server has forgotten it, or never knew."""
        self._inventory_due = self._inventory is not None
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

    def put_sample(self, columns: Mapping[str, Column]) -> None:
        """What the devices do now."""
        self.dropped += len(self._samples) == SAMPLES_MOST
        self._samples.append(columns)
        self._filled.set()

    def put_details(self, details: Sequence[DeviceDetails]) -> None:
        """Links, processes and the like of each GPU, where they are others than before."""
        if details != self._details:
            self._details = details
            self.details_again()

    def details_again(self) -> None:
        """A new session knows nothing of them."""
        self._details_due = bool(self._details)
        self._filled.set()

    async def filled(self) -> None:
        """Return when there is something to say."""
        await self._filled.wait()

    def next_change(self) -> StateChange | None:
        """What is to be said next and acknowledged, None for nothing: inventory before what speaks of its devices."""
        if self._inventory_due and self._inventory is not None:
            return StateChange(inventory=self._with_health(self._inventory), version=self._version)
        if self._health:
            return StateChange(health=dict(self._health))
        if self._checkpoint is not None:
            return StateChange(checkpoint=self._checkpoint)
        return None

    def done(self, change: StateChange) -> None:
        """The server has it, or will never take it; what changed since is still to be said."""
        if change.inventory is not None and change.version == self._version:
            self._inventory_due = False
        for uuid, reason in (change.health or {}).items():
            if self._health.get(uuid) == reason:
                del self._health[uuid]
        if change.checkpoint is not None and change.checkpoint is self._checkpoint:
            self._checkpoint = None

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

    def next_sample(self) -> Mapping[str, Column] | None:
        """The oldest sample that is still kept; None, and asleep, when there is nothing left to say."""
        if self._samples:
            return self._samples.popleft()
        if self.next_change() is None and not self._details_due:
            self._filled.clear()
        return None
