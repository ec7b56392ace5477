"""`WS /ws/nodes/<name>/` and `WS /ws/devices/<id>/`: one node, or one device, live (docs/node-stream.md).

Sockets for unknown nodes and devices are closed with 4404. Invariants: at most one sample a second, the newest when the
browser has taken the last one; nothing queues. Within CHANGES_SECONDS of a change of what the page shows from the
database a message says so, so that the page does not poll.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog
from channels.db import database_sync_to_async
from django.db import DatabaseError, InterfaceError

from nodes.consumers.signed_in import SignedInConsumer
from nodes.live.flush import read_node
from nodes.live.one_node import CHANGED, NodeStream
from nodes.live.samples import DetailsView, SampleView
from nodes.models import Device, Node
from nodes.selectors import node_digest

UNKNOWN = 4404
TICK_SECONDS = 1.0
CHANGES_SECONDS = 3.0
"""How often the database is checked for changes, by three small queries."""

log = structlog.get_logger(__name__)


class NodeConsumer(SignedInConsumer):
    """All devices of a node."""

    node = ""
    uuid: str | None = None

    async def find(self) -> bool:
        """Set the node; whether it exists."""
        self.node = self.scope["url_route"]["kwargs"]["name"]
        if "\x00" in self.node:  # no database takes it
            return False
        known: bool = await database_sync_to_async(Node.objects.filter(name=self.node).exists)()
        return known

    async def pump(self) -> None:
        """See SignedInConsumer."""
        if not await self.find():
            await self.close(UNKNOWN)
            return
        stream = NodeStream(self.uuid)
        loop = asyncio.get_running_loop()
        due = check_at = loop.time()
        state: object = None
        while True:
            sample, details = await read_node(self.node, epoch=time.time())
            for message in stream.next(sample, details, now=time.time()):
                await self.send(text_data=message)
            if loop.time() >= check_at:
                check_at = loop.time() + CHANGES_SECONDS
                current = await self._page_state(sample, details)
                if current is not None and current != state:
                    state = current
                    await self.send(text_data=CHANGED)
            await self.sent_one()
            due = max(due + TICK_SECONDS, loop.time() + TICK_SECONDS / 10)
            await asyncio.sleep(due - loop.time())

    async def _page_state(self, sample: SampleView | None, details: DetailsView | None) -> object:
        """A value that differs once what the page shows beside the sample differs; None where it cannot be read."""
        try:
            digest: bytes = await database_sync_to_async(node_digest)(self.node)
        except (DatabaseError, InterfaceError) as error:
            log.warning("stream.changes", node=self.node, error=str(error))
            return None
        if self.uuid is None:
            return digest
        device = None if details is None else details.of(self.uuid)
        return digest, device, sample is None or sample.is_old(now=time.time())


class DeviceConsumer(NodeConsumer):
    """One device."""

    async def find(self) -> bool:
        """See NodeConsumer."""
        pk: Any = self.scope["url_route"]["kwargs"]["device_id"]
        found = await database_sync_to_async(Device.objects.filter(pk=pk).values_list("node__name", "uuid").first)()
        if found is None:
            return False
        self.node, self.uuid = found
        return True
