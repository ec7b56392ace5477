"""`WS /ws/nodes/<name>/` and `WS /ws/devices/<id>/`: one node, or one device, live (docs/node-stream.md).

Sockets for unknown nodes and devices are closed with 4404. Kept true: one message a second at most, made of the newest sample there is when
the browser has taken the last one; nothing queues.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from channels.db import database_sync_to_async

from nodes.consumers.signed_in import SignedInConsumer
from nodes.live.flush import read_node
from nodes.live.one_node import Teller
from nodes.models import Device, Node

UNKNOWN = 4404
TICK_SECONDS = 1.0


class NodeConsumer(SignedInConsumer):
    """All devices of a node."""

    node = ""
    uuid: str | None = None

    async def find(self) -> bool:
        """Whether there is such a node; notes which."""
        self.node = self.scope["url_route"]["kwargs"]["name"]
        if "\x00" in self.node:  # no database takes it
            return False
        known: bool = await database_sync_to_async(Node.objects.filter(name=self.node).exists)()
        return known

    async def pump(self) -> None:
        """Send what is new, once a second."""
        if not await self.find():
            await self.close(UNKNOWN)
            return
        teller = Teller(self.uuid)
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            sample, details = await read_node(self.node)
            for message in teller.next(sample, details, now=time.time()):
                await self.send(text_data=message)
            await self.sent_one()
            due = max(due + TICK_SECONDS, loop.time() + TICK_SECONDS / 10)
            await asyncio.sleep(due - loop.time())


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
