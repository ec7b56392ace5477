"""Requests that offer another protocol than WebSocket, over real connections: each is answered as HTTP/1.1, with its
body, and the next one as well.
"""

from __future__ import annotations

import re
import time

import pytest

from gpuplane.listeners.limits import Limits
from tests.integration.infrastructure.front import ASK, front, heard

ROOM = Limits(connections=20, per_address=20)
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
LAST = b"GET /read HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"


def head(method, *lines, offer=OFFER):
    return b"\r\n".join([method + b" /read HTTP/1.1", b"Host: here", *lines, offer, b""])


def sized(body, *, offer=OFFER):
    return head(b"POST", b"Content-Length: %d" % len(body), offer=offer)


CHUNKED = head(b"POST", b"Transfer-Encoding: chunked")
CHUNKS = b"5\r\n12345\r\n0\r\nTrailer: x\r\n\r\n"
PIECE_SECONDS = 0.05
"""Between two pieces, so that each is a read of its own."""


@pytest.mark.parametrize(
    ("pieces", "want_sizes"),
    [
        pytest.param([head(b"GET")], [0], id="no body"),
        pytest.param([head(b"GET"), ASK], [0, 0], id="no body, then another request"),
        pytest.param([head(b"GET") + ASK + head(b"GET") + ASK], [0, 0, 0, 0], id="four requests in one read"),
        pytest.param([sized(b"12345") + b"12345"], [5], id="body in the same read"),
        pytest.param([sized(b"12345"), b"123", b"45"], [5], id="body in later reads"),
        pytest.param([sized(b"12345"), b"12345" + ASK], [5, 0], id="body and another request in one read"),
        pytest.param([sized(b"12345") + b"12345" + ASK], [5, 0], id="all in one read"),
        pytest.param([sized(b"x" * 100_000) + b"x" * 100_000 + ASK], [100_000, 0], id="large body"),
        pytest.param([CHUNKED + CHUNKS + ASK], [5, 0], id="chunks in the same read"),
        pytest.param([CHUNKED, CHUNKS, ASK], [5, 0], id="chunks in later reads"),
        pytest.param([sized(ASK), ASK], [len(ASK)], id="body that looks like a request"),
        pytest.param([sized(ASK) + ASK], [len(ASK)], id="body that looks like a request, in the same read"),
        pytest.param(
            [sized(ASK, offer=b"Connection: Upgrade\r\nUpgrade: x, websocket\r\n"), ASK], [len(ASK)], id="two protocols"
        ),
        pytest.param(
            [sized(ASK, offer=b"Connection: upgrade\r\nUpgrade: websocket\r\nConnection: keep-alive\r\n"), ASK],
            [len(ASK)],
            id="WebSocket that a later line takes back",
        ),
    ],
)
def test_an_offer_of_another_protocol_hides_no_body(pieces: list[bytes], want_sizes: list[int]) -> None:
    """VIEW-6 no byte of a body is read as a request, and no body or request is lost."""
    assert answers(pieces, LAST) == [*want_sizes, 0]


def answers(pieces: list[bytes], last: bytes) -> list[int]:
    """Sizes of the bodies as the application has read them."""
    with front(within=ROOM) as listener, listener.connect() as wire:
        for piece in (*pieces, last):
            wire.sendall(piece)
            time.sleep(PIECE_SECONDS)
        said = heard(wire)
    found = re.findall(rb"HTTP/1\.1 200 OK\r\n.*?\r\n\r\n(\d+)", said, re.DOTALL)
    assert len(found) == said.count(b"HTTP/1.1 "), said
    return [int(size) for size in found]


@pytest.mark.parametrize(
    "request_head",
    [
        pytest.param(sized(ASK, offer=b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"), id="connection that closes"),
        pytest.param(sized(ASK).replace(b"HTTP/1.1", b"HTTP/1.0"), id="HTTP/1.0"),
    ],
)
def test_an_offer_on_a_connection_that_closes(request_head: bytes) -> None:
    """VIEW-6 the request has its body, and nothing after it is answered."""
    with front(within=ROOM) as listener, listener.connect() as wire:
        wire.sendall(request_head)
        time.sleep(PIECE_SECONDS)
        wire.sendall(ASK + ASK)
        said = heard(wire)
    assert said.count(b"HTTP/1.1 ") == 1
    assert said.endswith(b"\r\n\r\n%d" % len(ASK))


@pytest.mark.parametrize(
    "request_head",
    [
        pytest.param(head(b"POST", b"Content-Length: 5", b"Transfer-Encoding: chunked"), id="two ways to end a body"),
        pytest.param(head(b"POST", b"Content-Length: 5", b"Content-Length: 6"), id="two lengths"),
        pytest.param(head(b"POST", b"Transfer-Encoding: gzip"), id="encoding without an end"),
        pytest.param(CHUNKED + b"no size\r\n", id="broken chunk"),
    ],
)
def test_an_offer_with_a_body_of_no_clear_end(request_head: bytes) -> None:
    """VIEW-6 it is refused like one without an offer, and the connection ends."""
    with front(within=ROOM) as listener, listener.connect() as wire:
        wire.sendall(request_head + ASK)
        said = heard(wire)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1 ") == 1
