"""`WS /ws/fleet/`: the live fleet for one browser (docs/fleet-stream.md).

A browser says which columns it looks at, by `?columns=` and later by `{"ask": "columns", "columns": […]}`;
one that lost a frame sends `{"ask": "full"}`.
"""

from __future__ import annotations

from typing import Literal
from urllib.parse import parse_qs

import msgspec

from nodes.consumers.signed_in import SignedInConsumer
from nodes.live import hub
from nodes.live.fleet_frames import ALL, column_set

TRY_AGAIN = 1013
LONGEST_MESSAGE = 400


class Ask(msgspec.Struct):
    """What a browser may say."""

    ask: Literal["full", "columns"]
    columns: list[str] = []


_decoder = msgspec.json.Decoder(Ask)


class FleetConsumer(SignedInConsumer):
    """Pushes pictures as fast as the browser takes them, at most one a tick."""

    _viewer: hub.Viewer | None = None

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:  # noqa: ARG002 - Channels' signature
        """Other columns, or everything again. Anything else is ignored."""
        if self._viewer is None or not text_data or len(text_data) > LONGEST_MESSAGE:
            return
        try:
            said = _decoder.decode(text_data)
        except msgspec.DecodeError:
            return
        if said.ask == "full":
            self._viewer.forget()
        else:
            self._viewer.look_at(column_set(said.columns))

    async def pump(self) -> None:
        """See SignedInConsumer."""
        viewer = self._viewer = hub.HUB.join(columns_asked(self.scope.get("query_string", b"")))
        try:
            while True:
                layout, frame = await viewer.next()
                if layout is not None:
                    await self.send(text_data=layout)
                await self.send(bytes_data=frame)
                await self.sent_one()
        except hub.HubStopped:
            await self.close(TRY_AGAIN)
        finally:
            hub.HUB.leave(viewer)


def columns_asked(query: bytes) -> int:
    """The set of columns in `columns=utilisation,power`; all of them where nothing is said."""
    said = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("columns")
    return ALL if said is None else column_set(said[-1].split(","))
