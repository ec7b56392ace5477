"""`WS /ws/fleet/`: the live fleet for one browser (docs/fleet-stream.md).

Anonymous sockets are closed with 4401; a user who signs out or is switched off is closed within a
minute. A browser says which columns it looks at, by `?columns=` and later by `{"ask": "columns", "columns": […]}`;
one that lost a frame sends `{"ask": "full"}`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import parse_qs

import msgspec
import structlog
from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from nodes.live import hub
from nodes.live.fleet_frames import ALL, column_set

NOT_SIGNED_IN = 4401
TRY_AGAIN = 1013
CHECK_FRAMES = 60
"""After so many frames the session is looked at again."""
LONGEST_MESSAGE = 400

log = structlog.get_logger(__name__)


class Ask(msgspec.Struct):
    """What a browser may say."""

    ask: Literal["full", "columns"]
    columns: list[str] = []


_decoder = msgspec.json.Decoder(Ask)


class FleetConsumer(AsyncWebsocketConsumer):
    """Pushes pictures as fast as the browser takes them, at most one a tick."""

    channel_layer_alias = "none"
    """No channel layer: the hub is in this process, and a stream must not need Redis to say that Redis is down."""

    _pump: asyncio.Task[None] | None = None
    _viewer: hub.Viewer | None = None

    async def connect(self) -> None:
        """Accept; close again at once when nobody is signed in, so that the browser sees why."""
        await self.accept()
        user = self.scope.get("user")
        if user is None or not user.is_authenticated or not user.is_active:
            await self.close(NOT_SIGNED_IN)
            return
        self._viewer = hub.HUB.join(columns_asked(self.scope.get("query_string", b"")))
        self._pump = asyncio.get_running_loop().create_task(self._send_pictures(self._viewer))

    async def disconnect(self, code: int) -> None:  # noqa: ARG002 - Channels passes it by position
        """Leave the hub."""
        if self._viewer is not None:
            hub.HUB.leave(self._viewer)
        if self._pump is not None:
            self._pump.cancel()
            with suppress(asyncio.CancelledError):
                await self._pump

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

    async def _send_pictures(self, viewer: hub.Viewer) -> None:
        sent = 0
        try:
            while True:
                layout, frame = await viewer.next()
                if layout is not None:
                    await self.send(text_data=layout)
                await self.send(bytes_data=frame)
                sent += 1
                if sent % CHECK_FRAMES == 0 and not await self._still_signed_in():
                    await self.close(NOT_SIGNED_IN)
                    return
        except hub.HubStopped:
            await self.close(TRY_AGAIN)

    async def _still_signed_in(self) -> bool:
        session: Any = self.scope.get("session")
        if session is None:
            return True
        try:
            if not await database_sync_to_async(session.exists)(session.session_key):
                return False
            user = await get_user(self.scope)
        except DatabaseError as error:
            log.warning("fleet.stream.session", error=str(error))
            return True
        return bool(user.is_authenticated and user.is_active)


def columns_asked(query: bytes) -> int:
    """The set of columns in `columns=utilisation,power`; all of them where nothing is said."""
    said = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("columns")
    return ALL if said is None else column_set(said[-1].split(","))
