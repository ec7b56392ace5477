"""Requests over kept-alive sockets, framed by httptools: what a bind does twice a pod costs a sixth of urllib3's way.

Used by `kube.connection` for whole answers of a server that is reached without a proxy; streams and proxies go through urllib3.
urllib3 still opens every connection (addresses, TLS, client certificates, verification); only what travels over it is written and
read here. Kept true: one request at a time on a socket; a socket is kept only after an answer that was read to its end; each wait
for bytes has a deadline; what goes wrong is told in urllib3's exceptions. Nothing is decompressed: callers say that they take no coding.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Final

import httptools
import urllib3
from urllib3.exceptions import LocationValueError, ProtocolError, ReadTimeoutError, SSLError

PIECE: Final = 1 << 16
_CODING_LENGTH: Final = len("content-encoding")


class Answer:
    """A whole answer: `status`, `data`, and `headers` as urllib3 gives them."""

    __slots__ = ("_headers", "_parser", "_parts", "coding", "complete", "data", "keep", "status")

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.data = b""
        self.keep = False
        self.complete = False
        self.coding = b""
        self._parts: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []

    @property
    def headers(self) -> Mapping[str, str]:
        """By name, whatever its case."""
        named = urllib3.HTTPHeaderDict()
        for name, value in self._headers:
            named.add(name.decode("latin-1"), value.decode("latin-1"))
        return named

    def read(self) -> bytes:
        """The body, as of a urllib3 answer."""
        return self.data

    def close(self) -> None:
        """Nothing is left open: the answer was read to its end."""

    # what httptools calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name, value))
        if len(name) == _CODING_LENGTH and name.lower() == b"content-encoding" and value.lower() != b"identity":
            self.coding = value

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """The end of a message; `100 Continue` is not yet the answer that was asked for."""
        if self._parser.get_status_code() < 200:
            self._headers, self._parts = [], []
            return
        self.status = self._parser.get_status_code()
        self.keep = self._parser.should_keep_alive()
        self.data = b"".join(self._parts)
        self.complete = True

    def feed(self, piece: bytes) -> None:
        """Bytes as they came. Raises httptools.HttpParserError."""
        self._parser.feed_data(piece)


class Direct:
    """The kept-alive sockets of one server. Safe to share between threads."""

    def __init__(self, pool: urllib3.HTTPConnectionPool, *, size: int) -> None:
        """`size`: idle sockets kept; as many more as are needed at once are opened and closed."""
        self._pool = pool
        self._size = size
        self._lock = threading.Lock()
        self._idle: list[Any] = []
        self._closed = False
        weakref.finalize(
            self, _close_all, self._idle
        )  # when the credentials were read anew, nobody closes the old ones

    def send(
        self, method: str, target: str, *, headers: Mapping[str, str], body: bytes | None, connect: float, wait: float
    ) -> Answer:
        """One request, once. `connect`: seconds to open a connection, `wait`: for each piece of the answer. Raises urllib3's exceptions."""
        connection = self._taken() or opened(self._pool, connect)
        try:
            answer = _exchange(connection.sock, request_bytes(method, target, self._pool, headers, body), wait)
        except TimeoutError as error:
            connection.close()
            raise ReadTimeoutError(self._pool, target, f"no answer within {wait:g} s") from error
        except ssl.SSLError as error:
            connection.close()
            raise SSLError(error) from error
        except (OSError, httptools.HttpParserError) as error:
            connection.close()
            raise ProtocolError("Connection aborted.", error) from error
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, keep=answer.keep)
        return checked(answer)

    def close(self) -> None:
        """Close idle sockets; those in use close when they come back."""
        with self._lock:
            self._closed = True
            _close_all(self._idle)

    def _taken(self) -> Any | None:
        """An idle connection that the server has not closed meanwhile, the one used last."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if not _readable(connection.sock):
                return connection
            connection.close()

    def _give_back(self, connection: Any, *, keep: bool) -> None:
        with self._lock:
            if keep and not self._closed and len(self._idle) < self._size:
                self._idle.append(connection)
                return
        connection.close()


def opened(pool: urllib3.HTTPConnectionPool, seconds: float) -> Any:
    """A new connection of the pool's server, made by urllib3. Raises its errors, and those of TLS as urllib3 tells them."""
    connection: Any = pool._new_conn()  # noqa: SLF001 - urllib3 offers a connection of a pool's own in no other way
    connection.timeout = seconds
    try:
        connection.connect()
    except (ssl.SSLError, ssl.CertificateError) as error:
        connection.close()
        raise SSLError(error) from error
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def checked(answer: Answer) -> Answer:
    """The answer. Raises ProtocolError for one that would have to be decoded first."""
    if answer.coding:
        raise ProtocolError(f"the answer is coded in {answer.coding.decode('latin-1')}, which was not asked for")
    return answer


def request_bytes(
    method: str, target: str, pool: urllib3.HTTPConnectionPool, headers: Mapping[str, str], body: bytes | None
) -> bytes:
    """The bytes of a request. Raises LocationValueError for a target or header that would end its line."""
    host = f"[{pool.host}]" if ":" in pool.host and not pool.host.startswith("[") else pool.host
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}:{pool.port}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if body is not None or method in {"POST", "PUT", "PATCH"}:
        lines.append(f"Content-Length: {len(body or b'')}")
    if " " in target or any("\r" in line or "\n" in line for line in lines):
        raise LocationValueError(f"not to be sent: {method} {target!r}")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + (body or b"")


def _exchange(sock: Any, request: bytes, seconds: float) -> Answer:
    """Send, and read one answer to its end."""
    sock.settimeout(seconds)
    sock.sendall(request)
    answer = Answer()
    while not answer.complete:
        piece = sock.recv(PIECE)
        if not piece:
            raise ConnectionResetError("the server closed the connection without an answer")
        answer.feed(piece)
    return answer


def _close_all(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()


def _readable(sock: Any) -> bool:
    """Whether something has come on an idle connection: its end, or what nobody asked for."""
    asked = select.poll()
    asked.register(sock, select.POLLIN)
    return bool(asked.poll(0))
