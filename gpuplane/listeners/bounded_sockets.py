"""WebSockets within limits: uvicorn's own protocol, with the slot of the connection that was upgraded.

Made by `bounded_http`, which hands the connection over. Idle time is bounded by uvicorn's pings (one each 20 s,
answered within 20 s), a message by MESSAGE_BYTES. Invariants:
- Nothing is read from a peer before the application accepts it.
- What is read is parsed in turns (`parse_queue`), so that thousands of frames at once do not hold up anything else;
  a peer of which more than UNPARSED_BYTES wait is not read from.
- A peer that sends more frames than SOCKET_FRAMES_AT_ONCE and SOCKET_FRAMES_A_SECOND is disconnected, since a frame of
  six bytes costs as much as a kilobyte.
- The connection counts until it is closed. It counts as a stream (see `connections`) once the application has sent
  something, since a socket is accepted before its peer is authenticated.
- A peer that does not read, or was sent the close frame ANSWER_SECONDS ago, is disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import structlog
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from gpuplane.listeners.connections import ConnectionSlot
from gpuplane.listeners.frame_fast_path import FrameBoundary, whole_binary
from gpuplane.listeners.limits import SOCKET_FRAMES_A_SECOND, SOCKET_FRAMES_AT_ONCE
from gpuplane.listeners.parse_queue import turns_of
from gpuplane.listeners.reader_timeout import ReaderTimeout
from nodes.live.message_extension import AT_ONCE

if TYPE_CHECKING:
    from asyncio.transports import BaseTransport

    from uvicorn._types import ASGISendEvent
    from uvicorn.config import Config
    from uvicorn.server import ServerState
    from websockets.frames import Frame
    from websockets.http11 import Request

PIECE_BYTES = 4 * 1024
"""What is parsed at once: 680 of the shortest frames."""
UNPARSED_BYTES = 64 * 1024
"""Nothing more is read from a peer while more than this waits to be parsed."""

log = structlog.get_logger(__name__)


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
        self._turns = turns_of(self.loop)
        self._unparsed = b""
        self._held = False
        """Whether reading is paused because more than UNPARSED_BYTES wait."""
        self._ended = False
        self._take_at_once: Callable[[bytes], bool] | None = None
        self._boundary = FrameBoundary()

    def connection_made(self, transport: BaseTransport) -> None:
        """Called with the connection that was upgraded."""
        super().connection_made(transport)
        self._slot.end = self.transport.abort

    def data_received(self, data: bytes) -> None:
        """Have the data parsed in the socket's turn; what belongs to the handshake at once."""
        if not self.handshake_complete:
            self._parse(data)
            return
        if not self._unparsed:
            self._turns.add(self)
        self._unparsed += data
        if len(self._unparsed) > UNPARSED_BYTES and self.transport.is_reading():
            self._held = True
            self.transport.pause_reading()

    def parse_waiting(self) -> None:
        """Called in the socket's turn: parse what came meanwhile."""
        data, self._unparsed = self._unparsed, b""
        if not data or self.transport.is_closing():
            return
        try:
            self._parse(data)
        except BaseException:  # of ours: the loop logs it
            self._end()
            raise
        if self._held:
            self._held = False
            if not self.read_paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection is closed; what came before is still given to the application."""
        data, self._unparsed = self._unparsed, b""
        if data and not self._ended:
            self.read_paused = True  # there is nothing left to pause
            try:
                self._parse(data)
            except RuntimeError as error:  # an answer that can no longer be written
                log.debug("socket.lost_before_its_turn", why=str(error))
            self.read_paused = False
        super().connection_lost(exc)

    def _end(self) -> None:
        self._ended = True
        super()._end()

    def _parse(self, data: bytes) -> None:
        """Parse, and count the frames."""
        if self.handshake_initiated:  # else it is the request, by itself
            if self._takes_whole(data):
                return
            self._boundary.feed(data)
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
        if not self.close_sent:  # else it was refused, and has no scope
            cast("dict[str, Any]", self.scope["extensions"])[AT_ONCE] = self._offer_to
        if not self.transport.is_closing():
            self.transport.pause_reading()  # until it is accepted

    def send_receive_event_to_app(self) -> None:
        """Called for a whole message: offer it to who takes messages at once, else queue it."""
        if (
            self._take_at_once is not None
            and self.curr_msg_data_type == "bytes"
            and self.queue.empty()
            and not self.close_sent
            and self._take_at_once(self.frames[0] if len(self.frames) == 1 else b"".join(self.frames))
        ):
            self.frames = []
        else:
            super().send_receive_event_to_app()

    def _takes_whole(self, data: bytes) -> bool:
        """Whether the data is one message that is taken at once; else nothing was done with it."""
        if (
            not self._boundary.is_here
            or self.frames  # a message in parts is under way
            or self.close_sent
            or self.conn.state is not State.OPEN
            or not self.queue.empty()
            or self._take_at_once is None
            or self._frames_left < 1
        ):
            return False
        body = whole_binary(data)
        if body is None or not self._take_at_once(body):
            return False
        self._frames_left -= 1
        self._within_rate()
        return True

    def _offer_to(self, take: Callable[[bytes], bool]) -> None:
        self._take_at_once = take

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
