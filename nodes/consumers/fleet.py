"""`WS /ws/fleet/`: the live fleet for one browser (docs/fleet-stream.md).

A browser names the columns that it shows by `?columns=` and later by `{"ask": "columns", "columns": […]}`; one that
lost a frame sends `{"ask": "full"}`.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qs

import msgspec

from nodes.consumers.signed_in import SignedInConsumer
from nodes.live.fleet_frames import ALL, column_set
from nodes.live.hub import Hub, HubStopped, Viewer

TRY_AGAIN = 1013
LONGEST_MESSAGE = 400


class BrowserMessage(msgspec.Struct):
    """A message from the browser."""

    ask: Literal["full", "columns"]
    columns: list[str] = []


_decoder = msgspec.json.Decoder(BrowserMessage)


class FleetConsumer(SignedInConsumer):
    """Sends frames as fast as the browser takes them, at most one a tick."""

    _viewer: Viewer | None = None
    _columns: int | None = None
    """Asked for before the first frame, while the consumer finds out whether the user is still signed in."""

    def __init__(self, *, hub: Hub) -> None:
        super().__init__()
        self._hub = hub

    async def receive(
        self,
        text_data: str | None = None,
        bytes_data: bytes | None = None,  # noqa: ARG002 - Channels' signature
    ) -> None:
        """Change the columns, or send everything again. Other messages are ignored."""
        if not text_data or len(text_data) > LONGEST_MESSAGE:
            return
        try:
            message = _decoder.decode(text_data)
        except msgspec.DecodeError:
            return
        viewer = self._viewer  # without one the first frame is still to come: a full one, of the columns asked for last
        if message.ask == "full":
            if viewer is not None:
                viewer.reset()
            return
        self._columns = column_set(message.columns)
        if viewer is not None:
            viewer.show(self._columns)

    async def pump(self) -> None:
        """See SignedInConsumer."""
        columns = self._columns
        if columns is None:
            columns = requested_columns(self.scope.get("query_string", b""))
        viewer = self._viewer = self._hub.join(columns)
        try:
            while True:
                layout, frame = await viewer.next()
                if layout is not None:
                    await self.send(text_data=layout)
                await self.send(bytes_data=frame)
                await self.sent_one()
        except HubStopped:
            await self.close(TRY_AGAIN)
        finally:
            self._hub.leave(viewer)


def requested_columns(query: bytes) -> int:
    """The set of columns in `columns=utilisation,power`; all of them without the parameter."""
    values = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("columns")
    return ALL if values is None else column_set(values[-1].split(","))
