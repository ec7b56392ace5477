"""A WebSocket within limits: uvicorn's own protocol, which keeps the place of the connection that it was.

Made by `bounded_http`, which hands the connection over. Idle time is bounded by uvicorn's pings (one each
20 s, answered within 20 s), a message by MESSAGE_BYTES. Invariants: nothing is read from a peer that was not accepted yet; whoever sends more
frames than SOCKET_FRAMES_AT_ONCE and SOCKET_FRAMES_A_SECOND is ended, since a frame of six bytes costs as much as a kilobyte; the connection counts until it is closed; it is let in (see `connections`) once the
application has sent something, since a stream is accepted before it is known who is there; what is sent is read within the same time
as an answer; a peer that was told of the end is given ANSWER_SECONDS, then the connection is closed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from gpuplane.doors.connections import Place
from gpuplane.doors.limits import SOCKET_FRAMES_A_SECOND, SOCKET_FRAMES_AT_ONCE, UNREAD_BYTES, UNREAD_SECONDS

if TYPE_CHECKING:
    from asyncio.transports import BaseTransport

    from uvicorn._types import ASGISendEvent
    from uvicorn.config import Config
    from uvicorn.server import ServerState
    from websockets.frames import Frame
    from websockets.http11 import Request


PIECE_BYTES = 4 * 1024
"""What goes to the parser at once: 680 of the shortest frames."""


class BoundedSocket(WebSocketsSansIOProtocol):
    """One connection, from its upgrade on."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        place: Place,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._place = place
        self._let_in = False
        self._unread_clock: asyncio.TimerHandle | None = None
        self._frames_left = float(SOCKET_FRAMES_AT_ONCE)
        self._frames_at = self.loop.time()

    def connection_made(self, transport: BaseTransport) -> None:
        """Called with the connection that was HTTP's."""
        super().connection_made(transport)
        self._place.end = self.transport.abort

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever closed it."""
        self._stop_unread_clock()
        self._place.release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count, and let the parser have it."""
        for start in range(0, len(data), PIECE_BYTES):
            before = self._frames_left
            super().data_received(data[start : start + PIECE_BYTES])
            if self._frames_left < before and not self._may_go_on():
                self._place.refused("socket-frames")
                self.transport.abort()
                return

    def handle_connect(self, event: Request) -> None:
        """The request to become a WebSocket."""
        super().handle_connect(event)
        if not self.transport.is_closing():
            self.transport.pause_reading()  # until it is accepted

    def handle_cont(self, event: Frame) -> None:
        """A further part of a message."""
        self._frames_left -= 1
        super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        """A message, or its first part."""
        self._frames_left -= 1
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """The same."""
        self._frames_left -= 1
        super().handle_bytes(event)

    def handle_ping(self) -> None:
        """Answered."""
        self._frames_left -= 1
        super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """An answer to ours, or to none."""
        self._frames_left -= 1
        super().handle_pong(event)

    def pause_writing(self) -> None:
        """The peer does not read as fast as it is sent to."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """It does again."""
        self._stop_unread_clock()
        super().resume_writing()

    async def send(self, message: ASGISendEvent) -> None:
        """From the application."""
        await super().send(message)
        if message["type"] == "websocket.accept" and not self.transport.is_closing():
            self.transport.resume_reading()
        if not self._let_in and message["type"] == "websocket.send":
            self._let_in = True
            self._place.let_in()

    def _may_go_on(self) -> bool:
        now = self.loop.time()
        gained = (now - self._frames_at) * SOCKET_FRAMES_A_SECOND
        self._frames_at = now
        self._frames_left = min(float(SOCKET_FRAMES_AT_ONCE), self._frames_left + gained)
        return self._frames_left >= 0

    def _watch_reader(self) -> None:
        size = self.transport.get_write_buffer_size()
        if size and self._unread_clock is None:
            self._unread_clock = self.loop.call_later(UNREAD_SECONDS, self._look_at_reader, size)

    def _look_at_reader(self, before: int) -> None:
        self._unread_clock = None
        if before - self.transport.get_write_buffer_size() >= UNREAD_BYTES:
            self._watch_reader()
            return
        self._place.refused("unread")
        self.transport.abort()

    def _stop_unread_clock(self) -> None:
        if self._unread_clock is not None:
            self._unread_clock.cancel()
            self._unread_clock = None
