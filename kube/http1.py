"""An HTTP/1.1 connection of an event loop, parsed by httptools.

Invariants:
- One request at a time. A connection is reused only after an answer that was read to its end.
- Every request has a deadline: for the whole answer, or for each wait for bytes.
- Nothing is decompressed: an answer with a content coding is an error.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import httptools
import msgspec
import urllib3

READS: Final = ("GET", "HEAD")
LOST: Final = (OSError, httptools.HttpParserError)
"""What `HttpConnection.send` raises when the answer is lost. TimeoutError and errors of TLS are OSErrors."""
_CODING_LENGTH: Final = len("content-encoding")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request. `seconds` and `before`: as of `kube.client.Cluster.arequest`."""

    method: str
    target: str
    body: bytes | None = None
    content_type: str = ""
    seconds: float
    before: float = math.inf

    @property
    def write(self) -> bool:
        """Whether it may change something."""
        return self.method not in READS

    @property
    def name(self) -> str:
        """Method and path, for errors."""
        return f"{self.method} {self.target.partition('?')[0]}"


class Response(msgspec.Struct, frozen=True):
    """A whole answer."""

    status: int
    data: bytes
    pairs: list[tuple[bytes, bytes]]

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers by case-insensitive name."""
        named = urllib3.HTTPHeaderDict()
        for name, value in self.pairs:
            named.add(name.decode("latin-1"), value.decode("latin-1"))
        return named


class EncodedResponse(httptools.HttpParserError):
    """The answer has a content coding."""


class _Reader:
    """httptools' callbacks. `answer` is set after the last byte."""

    __slots__ = ("_coding", "_pairs", "_parser", "_parts", "answer", "keep")

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._pairs: list[tuple[bytes, bytes]] = []
        self._coding = b""
        self.answer: Response | None = None
        self.keep = False

    def feed(self, piece: bytes) -> None:
        """Parse bytes. Raises httptools.HttpParserError."""
        self._parser.feed_data(piece)
        if self.answer is not None and self._coding:
            coding = self._coding.decode("latin-1")
            raise EncodedResponse(f"the answer is coded in {coding}, which was not asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header."""
        self._pairs.append((name, value))
        if len(name) == _CODING_LENGTH and name.lower() == b"content-encoding" and value.lower() != b"identity":
            self._coding = value

    def on_body(self, body: bytes) -> None:
        """Note a part of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Set the answer, unless the message is informational (1xx)."""
        status = self._parser.get_status_code()
        if status < 200:
            self._pairs, self._parts = [], []
            return
        self.keep = self._parser.should_keep_alive()
        self.answer = Response(status, b"".join(self._parts), self._pairs)


class HttpConnection(asyncio.Protocol):
    """One connection. Used in its loop's thread alone."""

    __slots__ = ("_future", "_heard", "_loop", "_lost", "_reader", "_timer", "_transport", "idle_since", "usable")

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Callable[[HttpConnection], None]) -> None:
        """`lost` is called when the connection is closed."""
        self._loop = loop
        self._lost = lost
        self._transport: Any = None
        self._reader: _Reader | None = None
        self._future: asyncio.Future[Response] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard = 0.0
        self.idle_since = 0.0
        self.usable = False

    async def send(self, request: bytes, seconds: float, *, whole: bool) -> Response:
        """Send, and read the answer. `seconds`: for the `whole` answer, or for each wait for bytes. Raises `LOST`."""
        loop = self._loop
        self._reader = _Reader()
        self._future = loop.create_future()
        self._heard = loop.time()
        self._timer = loop.call_later(seconds, self._is_late, seconds, whole)
        self._transport.write(request)
        answer: Response | None = None
        try:
            answer = await self._future
        finally:
            self._timer.cancel()
            self._future = None
            if answer is None:  # failed or cancelled: a late answer must not reach the next request
                self.close()
        return answer

    def close(self) -> None:
        """Close it; a second time does nothing."""
        self.usable = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop when the connection is open."""
        self._transport = transport
        self.usable = True

    def data_received(self, data: bytes) -> None:
        """Called by the loop with bytes; without a request under way the connection is closed."""
        reader = self._reader
        if reader is None:
            self.close()
            return
        self._heard = self._loop.time()
        try:
            reader.feed(data)
        except httptools.HttpParserError as error:
            self._fail(error)
            return
        if reader.answer is not None:
            self.usable = self.usable and reader.keep
            self._reader = None
            if self._future is not None and not self._future.done():
                self._future.set_result(reader.answer)

    def eof_received(self) -> bool:
        """Called by the loop when the server closes the connection."""
        self.usable = False
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop when the connection is closed."""
        self.usable = False
        self._lost(self)
        self._fail(exc or ConnectionResetError("the server closed the connection without an answer"))

    def _is_late(self, seconds: float, whole: bool) -> None:
        left = 0.0 if whole else self._heard + seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._is_late, seconds, whole)
        else:
            self._fail(TimeoutError(f"no answer within {seconds:g} s"))

    def _fail(self, error: Exception) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)
