"""A parser that continues after the head of a request that offers another protocol.

httptools reads no body of such a request, nor of a CONNECT: it stops after the head. Called by `bounded_http`, which
ignores every offer but WebSocket's. Invariants: the body ends where the request's own lines about it say; the head is
not reported twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import httptools

FRAMING: Final = frozenset({b"content-length", b"transfer-encoding"})
"""Headers that say where a body ends."""


class _Callbacks(Protocol):
    """What a parser of httptools reports to."""

    def on_message_begin(self) -> None: ...
    def on_url(self, url: bytes) -> None: ...
    def on_header(self, name: bytes, value: bytes) -> None: ...
    def on_headers_complete(self) -> None: ...
    def on_chunk_header(self) -> None: ...
    def on_body(self, body: bytes) -> None: ...
    def on_message_complete(self) -> None: ...


def parser_after_head(http: _Callbacks) -> httptools.HttpRequestParser:
    """The parser. It is to be given `framing_head` first, of which it reports nothing."""
    parser = httptools.HttpRequestParser(_AfterHead(http))
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
    return parser


def framing_head(headers: Iterable[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
    """A head with the lines about the body of a head with these headers."""
    lines = [b"POST / HTTP/1.1"]
    lines += [b"%s: %s" % (name, value) for name, value in headers if name in FRAMING]
    if not keep_alive:
        lines.append(b"connection: close")
    return b"\r\n".join([*lines, b"", b""])


class _AfterHead:
    """The callbacks of a parser that continues after a head that another parser has reported.

    What this parser reports of its own first head is dropped; everything after it is passed on.
    """

    __slots__ = ("_http", "_in_head", "on_body", "on_chunk_header", "on_message_complete")

    def __init__(self, http: _Callbacks) -> None:
        self._http = http
        self._in_head = True
        self.on_body = http.on_body
        self.on_chunk_header = http.on_chunk_header
        self.on_message_complete = http.on_message_complete

    def on_message_begin(self) -> None:
        """Called before a head."""
        if not self._in_head:
            self._http.on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Called for a piece of the address."""
        if not self._in_head:
            self._http.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called for each header line, and each trailer."""
        if not self._in_head:
            self._http.on_header(name, value)

    def on_headers_complete(self) -> None:
        """Called after the head. Raises Refusal."""
        if self._in_head:
            self._in_head = False
        else:
            self._http.on_headers_complete()
