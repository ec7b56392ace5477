"""HTTP of a connection within limits: uvicorn's own protocol, with a count and a clock around its parser.

Given to uvicorn as `http=` by `gpuplane.serve`. The parser is httptools, as before; here bytes are counted on their way into it
and time is measured between what it reports. Invariants: of a head no more than HEAD_BYTES reach the parser (one that follows
another request in the same read: twice that); a head that is not complete after HEAD_SECONDS, a body that comes slower than
BODY_BYTES_A_SECOND while it is the client's turn, and an answer of which less than UNREAD_BYTES are read in UNREAD_SECONDS end the
connection; every connection that ends here is counted with its reason.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gpuplane.doors.answers import problem_body
from gpuplane.doors.bounded_sockets import BoundedSocket
from gpuplane.doors.connections import Place
from gpuplane.doors.limits import (
    ANSWER_SECONDS,
    BODY_BYTES_A_SECOND,
    BODY_WINDOW_SECONDS,
    CHUNK_BYTES,
    CHUNKS,
    HEAD_BYTES,
    HEAD_FIELDS,
    HEAD_SECONDS,
    LATE_BODY_BYTES,
    LATE_BODY_SECONDS,
    PIPELINED_REQUESTS,
    UNREAD_BYTES,
    UNREAD_SECONDS,
)

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

PIECE_BYTES = 64 * 1024
"""Of a body, what goes to the parser at once."""
TICK_SECONDS = 1.0


class _Part(Enum):
    """What the parser is in."""

    HEAD = auto()
    BODY = auto()


class Refusal(Exception):
    """Raised within the parser's callbacks, which end the parsing by it."""

    def __init__(self, reason: str, status: int, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.status = status


class BoundedHttp(HttpToolsProtocol):
    """One connection, until it is closed or becomes a WebSocket."""

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
        self.ws_protocol_class = cast("Any", self._socket)
        self._upgraded: BoundedSocket | None = None
        self._place = place
        self._part = _Part.HEAD
        self._over = False  # nothing that comes is looked at any more
        self._heads = 0  # complete ones
        self._marks = 0  # ends of heads and of requests
        self._begun = False  # the parser has seen the first byte of a head that is not complete
        self._head_bytes = 0
        self._clock: asyncio.TimerHandle | None = None  # of the head, or of the body
        self._unread_clock: asyncio.TimerHandle | None = None
        self._refusal: Refusal | None = None
        self._new_body()

    def _new_body(self) -> None:
        self._cycle: RequestResponseCycle | None = None  # whose body it is; None for a request to become a WebSocket
        self._bare_bytes = 0  # since the last piece of the body
        self._body_bytes = 0
        self._chunks = 0
        self._turn_seconds = 0.0  # of this window in which it was the client's turn
        self._window_bytes = 0
        self._late_seconds = 0.0  # since the answer
        self._late_bytes = 0

    # -- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The handshake, if any, is over."""
        super().connection_made(transport)
        self._place.end = transport.abort
        self._clock = self.loop.call_later(HEAD_SECONDS, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever closed it."""
        self._stop_clock()
        self._stop_unread_clock()
        self._place.release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count, and let the parser have it."""
        if self._over:
            return
        self._unset_keepalive_if_required()
        view, size, at = memoryview(data), len(data), 0
        while at < size:
            room = HEAD_BYTES - self._head_bytes if self._part is _Part.HEAD else PIECE_BYTES
            piece = data if not at and size <= room else view[at : at + room]
            at += len(piece)
            if not self._feed(piece):
                return
        self._watch()

    def handle_websocket_upgrade(self) -> None:
        """From here on the connection is another protocol's, with the same place."""
        self._over = True
        self._stop_clock()
        self._stop_unread_clock()
        super().handle_websocket_upgrade()
        if self._upgraded is not None and not self._upgraded.handshake_initiated:
            # The other parser does not take the request for one (a method but GET, a body), and says so to nobody.
            self._place.refused("malformed")
            self._tell(Refusal("malformed", 400, "This cannot become a WebSocket."))

    def _socket(self, **given: Any) -> BoundedSocket:
        """What uvicorn takes for the class of WebSockets."""
        self._upgraded = BoundedSocket(place=self._place, **given)
        return self._upgraded

    def pause_writing(self) -> None:
        """The client does not read as fast as it is answered."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """It does again."""
        self._stop_unread_clock()
        super().resume_writing()

    # -- what the parser reports

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._begun = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Raises Refusal."""
        self._marks += 1
        if len(self.headers) > HEAD_FIELDS:
            self._refusal = Refusal("head-fields", 431, f"a request may have {HEAD_FIELDS} header lines")
            raise self._refusal
        if len(self.pipeline) >= PIPELINED_REQUESTS:
            self._refusal = Refusal("pipelined", 429, f"{PIPELINED_REQUESTS} requests may wait on a connection")
            raise self._refusal
        self._heads += 1
        self._part, self._begun, self._head_bytes = _Part.BODY, False, 0
        self._stop_clock()
        self._new_body()
        self._place.busy()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self._cycle = self.cycle

    def on_chunk_header(self) -> None:
        """The size of a chunk was read. Raises Refusal."""
        self._chunks += 1
        if (self._chunks - CHUNKS) * CHUNK_BYTES > self._body_bytes:
            self._refusal = Refusal("body-chunks", 400, f"chunks of less than {CHUNK_BYTES} bytes each")
            raise self._refusal

    def on_body(self, body: bytes) -> None:
        """A piece of it."""
        size = len(body)
        self._bare_bytes = 0
        self._body_bytes += size
        self._window_bytes += size
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request was read, its answer may be under way."""
        self._marks += 1
        self._part = _Part.HEAD
        self._stop_clock()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """It was answered; what of the body is still to come has its own limits."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reader()
        elif self._part is _Part.HEAD and self._answered():
            self._place.idle()

    def timeout_keep_alive_handler(self) -> None:
        """No further request came."""
        super().timeout_keep_alive_handler()
        self._watch_reader()

    # -- inside

    def _feed(self, piece: bytes | memoryview) -> bool:
        """Whether more may follow."""
        marks = self._marks
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                if self._answered():
                    self.handle_websocket_upgrade()
                else:
                    self._refuse(Refusal("pipelined", 400, "another request is under way"))
                return False  # a client waits for the answer before it speaks the other protocol
            # Answered as HTTP/1.1. What followed in the same piece was meant in the other protocol.
        except httptools.HttpParserError:
            refusal = self._refusal or Refusal("malformed", 400, "Invalid HTTP request received.")
            self._refuse(refusal)
            return False
        if self._over or self.transport.is_closing():
            return False
        return self._count(len(piece), same=marks == self._marks)

    def _count(self, size: int, *, same: bool) -> bool:
        """After a piece. `same`: neither a head nor a request ended in it."""
        if self._part is _Part.HEAD:
            if same:
                self._head_bytes += size
            else:
                self._head_bytes = 1 if self._begun else 0
            if self._head_bytes >= HEAD_BYTES:
                self._refuse(Refusal("head-bytes", 431, f"line and headers may have {HEAD_BYTES} bytes"))
                return False
            return True
        if same:
            self._bare_bytes += size
            if self._bare_bytes - PIECE_BYTES > HEAD_BYTES:
                self._refuse(Refusal("head-bytes", 431, f"{HEAD_BYTES} bytes without a byte of the body"))
                return False
        if self._cycle is not None and self._cycle.response_complete:
            self._late_bytes += size
            if self._late_bytes > LATE_BODY_BYTES:
                self._refuse(Refusal("body-late", 413, "the request was answered before its body came"))
                return False
        return True

    def _watch(self) -> None:
        """After a read: start the clock of what is not complete."""
        if self._clock is not None or self._over or self.transport.is_closing():
            return
        if self._part is _Part.BODY:
            self._clock = self.loop.call_later(TICK_SECONDS, self._tick)
        elif self._head_bytes:
            self._clock = self.loop.call_later(HEAD_SECONDS, self._head_late)
        elif self._answered():
            self._place.idle()
            if self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

    def _answered(self) -> bool:
        """Whether nothing is under way."""
        return not self.pipeline and (self.cycle is None or self.cycle.response_complete)

    def _head_late(self) -> None:
        self._clock = None
        if self.flow.read_paused:  # it is our turn: requests before this one wait to be answered
            self._clock = self.loop.call_later(HEAD_SECONDS, self._head_late)
        elif self._heads or self._head_bytes:
            self._refuse(Refusal("head-time", 408, f"line and headers may take {HEAD_SECONDS:.0f} s"))
        else:
            self._place.refused("silent")
            self._end()

    def _tick(self) -> None:
        """Once a second while a body is not complete."""
        self._clock = self.loop.call_later(TICK_SECONDS, self._tick)
        cycle = self._cycle
        if cycle is not None and cycle.response_complete:
            self._late_seconds += TICK_SECONDS
            if self._late_seconds >= LATE_BODY_SECONDS:
                self._refuse(Refusal("body-late", 408, "the request was answered before its body came"))
            return
        if self.flow.read_paused or (cycle is not None and cycle.waiting_for_100_continue):
            return  # it is our turn
        self._turn_seconds += TICK_SECONDS
        if self._turn_seconds < BODY_WINDOW_SECONDS:
            return
        if self._window_bytes < BODY_WINDOW_SECONDS * BODY_BYTES_A_SECOND:
            self._refuse(Refusal("body-time", 408, f"a body comes with {BODY_BYTES_A_SECOND} bytes a second at least"))
            return
        self._turn_seconds, self._window_bytes = 0.0, 0

    def _watch_reader(self) -> None:
        """Start the clock of an answer that still waits for its reader."""
        size = self.transport.get_write_buffer_size()
        if size and self._unread_clock is None:
            self._unread_clock = self.loop.call_later(UNREAD_SECONDS, self._look_at_reader, size)

    def _look_at_reader(self, before: int) -> None:
        self._unread_clock = None
        if before - self.transport.get_write_buffer_size() >= UNREAD_BYTES:
            self._watch_reader()
            return
        self._place.refused("unread")
        self._end()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer where no answer is under way, and end the connection."""
        self._place.refused(refusal.reason)
        if self._part is _Part.BODY and self._cycle is not None and not self.pipeline:
            free = not self._cycle.response_started  # the request under way is the one that is refused
        else:
            free = self._answered()
        if not free or self.transport.is_closing() or self.flow.write_paused:
            self._end()
            return
        self._over = True
        self._stop_clock()
        self._leave_cycle()
        self._tell(refusal)

    def _tell(self, refusal: Refusal) -> None:
        """The last answer."""
        self.transport.pause_reading()
        body = problem_body(refusal.status, str(refusal))
        lines = [STATUS_LINE[refusal.status]]
        for name, value in (*self.server_state.default_headers, (b"content-type", b"application/problem+json")):
            lines += [name, b": ", value, b"\r\n"]
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join([*lines, body]))
        self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def _end(self) -> None:
        """Without another byte."""
        self._over = True
        self._stop_clock()
        self._leave_cycle()
        self.transport.abort()

    def _leave_cycle(self) -> None:
        """Whoever answers learns that nobody is there."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _stop_unread_clock(self) -> None:
        if self._unread_clock is not None:
            self._unread_clock.cancel()
            self._unread_clock = None
