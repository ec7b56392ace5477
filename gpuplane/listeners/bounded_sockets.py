"""WebSockets within limits: uvicorn's own protocol, with the slot of the connection that was upgraded.

Made by `bounded_http`, which hands the connection over. Idle time is bounded by uvicorn's pings (one each 20 s,
answered within 20 s), a message by MESSAGE_BYTES. Invariants:
- Nothing is read from a peer before the application accepts it.
- A peer that sends more frames than SOCKET_FRAMES_AT_ONCE and SOCKET_FRAMES_A_SECOND is disconnected, since a frame of
  six bytes costs as much as a kilobyte.
- The connection counts until it is closed. It counts as a stream (see `connections`) once the application has sent
  something, since a socket is accepted before its peer is authenticated.
- A peer that does not read, or was sent the close frame ANSWER_SECONDS ago, is disconnected.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gpuplane.listeners.connections import ConnectionSlot
from gpuplane.listeners.limits import SOCKET_FRAMES_A_SECOND, SOCKET_FRAMES_AT_ONCE
from gpuplane.listeners.reader_timeout import ReaderTimeout

if TYPE_CHECKING:
    from asyncio.transports import BaseTransport

    from uvicorn._types import ASGISendEvent
    from uvicorn.config import Config
    from uvicorn.server import ServerState
    from websockets.frames import Frame
    from websockets.http11 import Request

PIECE_BYTES = 4 * 1024
"""What is parsed at once: 680 of the shortest frames."""


class BoundedSocket(ReaderTimeout, WebSocketsSansIOProtocol):
    """One connection, from its upgrade on."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        slot: ConnectionSlot,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._slot = slot
        self._frames_left = float(SOCKET_FRAMES_AT_ONCE)
        self._frames_at = self.loop.time()

    def connection_made(self, transport: BaseTransport) -> None:
        """Called with the connection that was upgraded."""
        super().connection_made(transport)
        self._slot.end = self.transport.abort

    def data_received(self, data: bytes) -> None:
        """Parse, and count the frames."""
        for start in range(0, len(data), PIECE_BYTES):
            before = self._frames_left
            super().data_received(data[start : start + PIECE_BYTES])
            if self._frames_left < before and not self._within_rate():
                self._slot.refused("socket-frames")
                self._end()
                return

    def handle_connect(self, event: Request) -> None:
        """Called for the request to become a WebSocket."""
        super().handle_connect(event)
        if not self.transport.is_closing():
            self.transport.pause_reading()  # until it is accepted

    def handle_cont(self, event: Frame) -> None:
        """Called for a further part of a message."""
        self._frames_left -= 1
        super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        """Called for a text message, or its first part."""
        self._frames_left -= 1
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """Called for a binary message, or its first part."""
        self._frames_left -= 1
        super().handle_bytes(event)

    def handle_ping(self) -> None:
        """Called for a ping, which is answered."""
        self._frames_left -= 1
        super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Called for a pong, asked for or not."""
        self._frames_left -= 1
        super().handle_pong(event)

    async def send(self, message: ASGISendEvent) -> None:
        """Send the application's message."""
        await super().send(message)
        if message["type"] == "websocket.accept" and not self.transport.is_closing():
            self.transport.resume_reading()
        if message["type"] == "websocket.send":
            self._slot.mark_stream()

    def _within_rate(self) -> bool:
        now = self.loop.time()
        gained = (now - self._frames_at) * SOCKET_FRAMES_A_SECOND
        self._frames_at = now
        self._frames_left = min(float(SOCKET_FRAMES_AT_ONCE), self._frames_left + gained)
        return self._frames_left >= 0
