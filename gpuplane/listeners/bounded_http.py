"""HTTP within limits: uvicorn's own protocol, with bytes counted and timed around its parser.

Given to uvicorn as `http=` by `gpuplane.serve`. The parser is httptools; bytes are counted on their way into it, and
time is measured between its events. Invariants:
- Of a head no more than HEAD_BYTES are parsed (one that follows another request in the same read: twice that).
- A body ends where its Content-Length or its chunks say, whatever other protocol the request offers. Of these WebSocket
  alone is used; other offers are ignored (RFC 9110, 7.8).
- A connection ends when a head is not complete after HEAD_SECONDS, a body is slower than BODY_BYTES_A_SECOND while the
  client could send, or less than UNREAD_BYTES of an answer are read in UNREAD_SECONDS.
- Every connection that ends here is counted with its reason.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gpuplane.listeners.after_head import framing_head, parser_after_head
from gpuplane.listeners.answers import problem_body
from gpuplane.listeners.bounded_sockets import BoundedSocket
from gpuplane.listeners.connections import ConnectionSlot
from gpuplane.listeners.limits import (
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
)
from gpuplane.listeners.reader_timeout import ReaderTimeout

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

PIECE_BYTES = 64 * 1024
"""Of a body, what is parsed at once."""
TICK_SECONDS = 1.0


class _Part(Enum):
    """What the parser reads next."""

    HEAD = auto()
    BODY = auto()


class Refusal(Exception):
    """Raised in the parser's callbacks to end the parsing."""

    def __init__(self, reason: str, status: int, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.status = status


class BoundedHttp(ReaderTimeout, HttpToolsProtocol):
    """One connection, until it is closed or becomes a WebSocket."""

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
        self.ws_protocol_class = cast("Any", self._socket)
        self._upgraded: BoundedSocket | None = None
        self._slot = slot
        self._part = _Part.HEAD
        self._over = False  # what is received from now on is ignored
        self._idle_since: float | None = None  # by the loop's clock
        self._heads = 0  # complete ones
        self._marks = 0  # ends of heads and of requests
        self._head: object = None  # of the last request whose head was complete
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None  # of the head, or of the body
        self._refusal: Refusal | None = None
        self._new_body()

    def _new_body(self) -> None:
        self._cycle: RequestResponseCycle | None = None  # of the body's request; None for an upgrade to a WebSocket
        self._bare_bytes = 0  # since the last piece of the body
        self._body_bytes = 0
        self._counted_bytes = 0  # of the body, when the last piece was counted
        self._chunks = 0
        self._window_seconds = 0.0  # of this window in which the client could send
        self._window_from = 0  # bytes of the body when this window began
        self._late_seconds = 0.0  # since the answer
        self._late_bytes = 0

    # -- the connection

    # uvicorn declares a Transport, which is narrower than asyncio's type
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # see above
        """Called after the TLS handshake, if any."""
        super().connection_made(transport)
        self._slot.end = transport.abort
        self._timer = self.loop.call_later(HEAD_SECONDS, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection is closed."""
        self._stop_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        # Break reference cycles: nothing is left to the garbage collector.
        self.cycle = self._cycle = None  # type: ignore[assignment]  # as before the first request
        self.parser = self.ws_protocol_class = None  # type: ignore[assignment]  # nothing is received any more

    def data_received(self, data: bytes) -> None:
        """Parse, and count the bytes."""
        if self._over:
            return
        self._idle_since = None
        if len(data) <= HEAD_BYTES - self._head_bytes:  # nearly all
            if self._feed(data):
                self._watch()
            return
        view, size, at = memoryview(data), len(data), 0
        while at < size:
            room = HEAD_BYTES - self._head_bytes if self._part is _Part.HEAD else PIECE_BYTES
            piece = view[at : at + room]
            at += len(piece)
            if not self._feed(piece):
                return
        self._watch()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to BoundedSocket, with the same slot."""
        self._over = True
        self._unset_keepalive_if_required()
        self._stop_timer()
        self._stop_unread_timer()
        super().handle_websocket_upgrade()
        if self._upgraded is not None and not self._upgraded.handshake_initiated:
            # The other parser ignores the request (a method but GET, a body) without answering it.
            self._slot.refused("malformed")
            self._send_refusal(Refusal("malformed", 400, "This cannot become a WebSocket."))

    def _socket(self, **arguments: Any) -> BoundedSocket:
        """Called by uvicorn as the class of WebSockets."""
        self._upgraded = BoundedSocket(slot=self._slot, **arguments)
        return self._upgraded

    # -- the parser's callbacks

    def on_headers_complete(self) -> None:
        """Called after the head. Raises Refusal."""
        self._marks += 1
        if len(self.headers) > HEAD_FIELDS:
            self._raise(Refusal("head-fields", 431, f"the request has more than {HEAD_FIELDS} header lines"))
        if len(self.pipeline) >= PIPELINED_REQUESTS:
            self._raise(Refusal("pipelined", 429, f"more than {PIPELINED_REQUESTS} requests wait on this connection"))
        self._heads += 1
        self._part, self._head, self._head_bytes = _Part.BODY, self.scope, 0
        self._stop_timer()
        self._new_body()
        self._slot.busy()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self._cycle = self.cycle

    def on_chunk_header(self) -> None:
        """Called after the size of a chunk. Raises Refusal."""
        self._chunks += 1
        if (self._chunks - CHUNKS) * CHUNK_BYTES > self._body_bytes:
            self._raise(Refusal("body-chunks", 400, f"the body has too many chunks of less than {CHUNK_BYTES} bytes"))

    def on_body(self, body: bytes) -> None:
        """Called for a piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Called after the whole request; the response may be under way."""
        if self.parser.should_upgrade() and not self._should_upgrade():
            return  # the parser has skipped the body, which `_continue_as_http` reads
        self._marks += 1
        self._part = _Part.HEAD
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Called after the response, in place of uvicorn's own, which starts a timer for each request.

        The rest of the body has its own limits.
        """
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._start_unread_timer()
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._part is _Part.HEAD:
            self._keep_alive()

    def timeout_keep_alive_handler(self) -> None:
        """Called after KEEP_ALIVE_SECONDS, whether or not a request came meanwhile."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
            return
        super().timeout_keep_alive_handler()
        self._start_unread_timer()

    # -- inside

    def _raise(self, refusal: Refusal) -> None:
        """Raise it; the parser replaces it by an error of its own."""
        self._refusal = refusal
        raise refusal

    def _feed(self, piece: bytes | memoryview) -> bool:
        """Parse a piece. Returns whether more may follow."""
        marks, rest = self._marks, piece
        try:
            while rest:
                try:
                    self.parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    if self._should_upgrade():
                        if self._answered():
                            self.handle_websocket_upgrade()
                        else:
                            self._refuse(Refusal("pipelined", 400, "another request is under way"))
                        return False  # a client waits for the answer before it uses the other protocol
                    rest = rest[upgrade.args[0] :]
                    self._continue_as_http()
        except httptools.HttpParserError:
            self._refuse(self._refusal or Refusal("malformed", 400, "Invalid HTTP request received."))
            return False
        if self._over or self.transport.is_closing():
            return False
        return self._count(len(piece), same=marks == self._marks)

    def _continue_as_http(self) -> None:
        """Parse what follows the head as HTTP/1.1. Raises HttpParserError."""
        self.parser = parser_after_head(self)  # before it reports the end of a request without a body
        self.parser.feed_data(framing_head(self.headers, keep_alive=self.cycle.keep_alive))

    def _count(self, size: int, *, same: bool) -> bool:
        """Count a piece that was parsed. `same`: neither a head nor a request ended in it."""
        if self._part is _Part.HEAD:
            if same:
                self._head_bytes += size
            else:
                self._head_bytes = 0 if self.scope is self._head else 1  # another head has begun
            if self._head_bytes >= HEAD_BYTES:
                detail = f"the request line and headers have {HEAD_BYTES} bytes or more"
                self._refuse(Refusal("head-bytes", 431, detail))
                return False
            return True
        if self._counted_bytes != self._body_bytes:
            self._counted_bytes, self._bare_bytes = self._body_bytes, 0
        if same:
            self._bare_bytes += size
            if self._bare_bytes - PIECE_BYTES > HEAD_BYTES:
                detail = f"chunk sizes and trailers have more than {HEAD_BYTES} bytes without a byte of the body"
                self._refuse(Refusal("head-bytes", 431, detail))
                return False
        if self._cycle is not None and self._cycle.response_complete:
            self._late_bytes += size
            if self._late_bytes > LATE_BODY_BYTES:
                self._refuse(Refusal("body-late", 413, "the response was complete before the body of the request"))
                return False
        return True

    def _watch(self) -> None:
        """After a read: start the timer of what is not complete."""
        if self._timer is not None or self._over or self.transport.is_closing():
            return
        if self._part is _Part.BODY:
            self._timer = self.loop.call_later(TICK_SECONDS, self._tick)
        elif self._head_bytes:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._head_late)
        elif self._answered():
            self._keep_alive()

    def _keep_alive(self) -> None:
        """No request is under way: the connection is kept for a while, and may be closed to make room."""
        self._slot.idle()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _answered(self) -> bool:
        """Whether no request is under way."""
        return not self.pipeline and (self.cycle is None or self.cycle.response_complete)

    def _head_late(self) -> None:
        self._timer = None
        if self.flow.read_paused:  # requests before this one wait to be answered
            self._timer = self.loop.call_later(HEAD_SECONDS, self._head_late)
        elif self._heads or self._head_bytes:
            detail = f"the request line and headers were not complete within {HEAD_SECONDS:.0f} s"
            self._refuse(Refusal("head-time", 408, detail))
        else:
            self._slot.refused("silent")
            self._end()

    def _tick(self) -> None:
        """Called once a second while a body is not complete."""
        self._timer = self.loop.call_later(TICK_SECONDS, self._tick)
        cycle = self._cycle
        if cycle is not None and cycle.response_complete:
            self._late_seconds += TICK_SECONDS
            if self._late_seconds >= LATE_BODY_SECONDS:
                self._refuse(Refusal("body-late", 408, "the response was complete before the body of the request"))
            return
        if self.flow.read_paused or (cycle is not None and cycle.waiting_for_100_continue):
            return  # the client cannot send
        self._window_seconds += TICK_SECONDS
        if self._window_seconds < BODY_WINDOW_SECONDS:
            return
        if self._body_bytes - self._window_from < BODY_WINDOW_SECONDS * BODY_BYTES_A_SECOND:
            self._refuse(Refusal("body-time", 408, f"the body is slower than {BODY_BYTES_A_SECOND} bytes a second"))
            return
        self._window_seconds, self._window_from = 0.0, self._body_bytes

    def _refuse(self, refusal: Refusal) -> None:
        """Answer where no response is under way, and end the connection."""
        self._slot.refused(refusal.reason)
        if self._part is _Part.BODY and self._cycle is not None and not self.pipeline:
            free = not self._cycle.response_started  # the request under way is the one that is refused
        else:
            free = self._answered()
        if not free or self.transport.is_closing() or self.flow.write_paused:
            self._end()
            return
        self._stop()
        self._send_refusal(refusal)

    def _send_refusal(self, refusal: Refusal) -> None:
        """Send the last response."""
        self.transport.pause_reading()
        body = problem_body(refusal.status, str(refusal))
        lines = [STATUS_LINE[refusal.status]]
        for name, value in (*self.server_state.default_headers, (b"content-type", b"application/problem+json")):
            lines += [name, b": ", value, b"\r\n"]
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join([*lines, body]))
        self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def _end(self) -> None:
        self._stop()
        super()._end()

    def _stop(self) -> None:
        """Ignore what is received from now on, and let the application know that the client is gone."""
        self._over = True
        self._stop_timer()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
