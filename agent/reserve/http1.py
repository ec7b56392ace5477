"""One request over TLS, and its answer: as much of HTTP/1.1 as a pod needs to ask the API server.

Called by `pod`. `http.client` brings the parser of e-mail along, which is a tenth of this program's memory and a third
of its start. Invariants: one connection a request, closed afterwards; the whole exchange has one deadline; an answer
that is shorter than it says is an error.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import Final, NamedTuple

ANSWER_MOST: Final = 4 * 1024 * 1024
"""An object at the API server has 1.5 MiB at most."""
PIECE: Final = 64 * 1024


class Answer(NamedTuple):
    """Status, headers by name in lower case (the last of each), and the body."""

    status: int
    headers: dict[str, str]
    body: bytes


class BadAnswer(OSError):
    """The answer is incomplete, too long, or no HTTP."""


def exchange(
    *,
    host: str,
    port: int,
    context: ssl.SSLContext,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes = b"",
    seconds: float,
) -> Answer:
    """Send a request and read its answer, all within so many seconds. Raises OSError (TLS and time-outs are such)."""
    deadline = time.monotonic() + seconds
    shown = f"[{host}]" if ":" in host else host
    lines = [f"{method} {path} HTTP/1.1", f"Host: {shown}:{port}", "Connection: close", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    request = "\r\n".join([*lines, "", ""]).encode("ascii") + body
    # as bytes, since for text Python loads the tables of international names, half a megabyte
    name = host.encode("ascii")
    with (
        socket.create_connection((name, port), timeout=seconds) as plain,  # type: ignore[arg-type]  # getaddrinfo's bytes
        context.wrap_socket(plain, server_hostname=name) as secure,
    ):
        secure.sendall(request)
        return _parsed(_received(secure, deadline))


def _received(secure: ssl.SSLSocket, deadline: float) -> bytes:
    """Everything until the server closes the connection."""
    received = bytearray()
    while len(received) <= ANSWER_MOST:
        secure.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = secure.recv(PIECE)
        if not piece:
            return bytes(received)
        received += piece
    raise BadAnswer(f"the answer has more than {ANSWER_MOST} bytes")


def _parsed(received: bytes) -> Answer:
    head, end, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if not end or not version.startswith("HTTP/1.") or not (status.isascii() and status.isdecimal()):
        raise BadAnswer("the answer is no HTTP")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = _joined(body)
    elif headers.get("content-length", str(len(body))) != str(len(body)):
        raise BadAnswer("the answer ended early")
    return Answer(int(status), headers, body)


def _joined(chunks: bytes) -> bytes:
    """The body that was sent in chunks."""
    parts: list[bytes] = []
    start = 0
    while True:
        end = chunks.find(b"\r\n", start)
        size = chunks[start:end].partition(b";")[0].strip() if end >= 0 else b""
        try:
            length = int(size, 16)
        except ValueError:
            raise BadAnswer("the answer ended early") from None
        start = end + 2
        if length == 0:
            return b"".join(parts)
        if length < 0 or start + length > len(chunks):
            raise BadAnswer("the answer ended early")
        parts.append(chunks[start : start + length])
        start += length + 2
