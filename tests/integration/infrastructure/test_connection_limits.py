"""What a client may take of a listener before any application code runs, over real connections.

The seconds are shortened, the bytes are as they are.
"""

import gc
import re
import socket
import ssl
import threading
import time
from contextlib import suppress

import pytest
import websockets.sync.client

from gpuplane.listeners import accepting, bounded_http, reader_timeout
from gpuplane.listeners.bounded_http import BoundedHttp
from gpuplane.listeners.limits import (
    BODY_BYTES_A_SECOND,
    CHUNKS,
    HEAD_BYTES,
    HEAD_FIELDS,
    LATE_BODY_BYTES,
    PIPELINED_REQUESTS,
    Limits,
)
from gpuplane.listeners.plan import Tls
from tests.certificates import Authority
from tests.integration.infrastructure.front import ASK, LARGE_BYTES, PATIENCE_SECONDS, answered, front, heard
from tests.measured import growth

REFUSED = "gpuplane_connections_refused_total"
MANY = Limits(connections=200, per_address=100)
BEGIN = b"GET /read HTTP/1.1\r\nHost: here\r\n"
CHUNKED = b"POST /read HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"


def post(path, size, *lines):
    return b"\r\n".join([b"POST %s HTTP/1.1" % path, b"Host: here", b"Content-Length: %d" % size, *lines, b"", b""])


def statuses(said):
    """Of all answers."""
    return re.findall(rb"HTTP/1\.1 (\d{3})", said)


@pytest.fixture(autouse=True)
def _shorter(monkeypatch):
    for name, seconds in (
        ("HEAD_SECONDS", 0.5),
        ("TICK_SECONDS", 0.1),
        ("BODY_WINDOW_SECONDS", 0.5),
        ("LATE_BODY_SECONDS", 0.5),
        ("ANSWER_SECONDS", 0.3),
    ):
        monkeypatch.setattr(bounded_http, name, seconds)
    monkeypatch.setattr(reader_timeout, "UNREAD_SECONDS", 0.5)
    monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS", 0.5)


@pytest.fixture
def listener():
    with front(within=MANY) as running:
        yield running


@pytest.mark.parametrize(
    ("pieces", "want", "reason"),
    [
        pytest.param([BEGIN + b"X: ", b"a" * 4 * HEAD_BYTES], [b"431"], "head-bytes", id="a header without end"),
        pytest.param([BEGIN, b"a" * 2 * HEAD_BYTES], [b"431"], "head-bytes", id="a header's name without end"),
        pytest.param([b"GET /", b"a" * 2 * HEAD_BYTES], [b"431"], "head-bytes", id="a path without end"),
        pytest.param([BEGIN, b"a: b\r\n" * HEAD_BYTES], [b"431"], "head-bytes", id="headers without end"),
        pytest.param(
            [BEGIN, b"a: b\r\n" * HEAD_FIELDS, b"\r\n"],
            [b"431"],
            "head-fields",
            id="more header lines than any client sends",
        ),
        pytest.param(
            [ASK, BEGIN + b"X: ", b"a" * 4 * HEAD_BYTES], [b"200", b"431"], "head-bytes", id="in a later request"
        ),
        pytest.param([b"GET / HT"], [b"408"], "head-time", id="a head that is not complete in time"),
        pytest.param([], [], "silent", id="not a byte"),
        pytest.param([ASK, b"GET /re"], [b"200", b"408"], "head-time", id="a later head that is not"),
        pytest.param([ASK, b"\r\n"], [b"200", b"408"], "head-time", id="an empty line is a beginning"),
        pytest.param(
            [post(b"/", 9, b"Connection: Upgrade", b"Upgrade: websocket")],
            [b"400"],
            "malformed",
            id="an upgrade with a body",
        ),
        pytest.param([post(b"/read", 100), b"x"], [b"408"], "body-time", id="a body that stands still"),
        pytest.param(
            [post(b"/read", 4 << 20), bytes(2 << 20)], [b"408"], "body-time", id="a fast beginning gives no credit"
        ),
        pytest.param(
            [CHUNKED, b"1\r\nx\r\n0\r\nX: ", b"a" * 8 * HEAD_BYTES], [b"431"], "head-bytes", id="a trailer without end"
        ),
        pytest.param(
            [CHUNKED, b"1;x=", b"a" * 8 * HEAD_BYTES], [b"431"], "head-bytes", id="a chunk's extension without end"
        ),
        pytest.param([CHUNKED, b"1\r\nx\r\n" * 2 * CHUNKS], [b"400"], "body-chunks", id="chunks of a byte"),
        pytest.param([b"\x16\x03\x01\x02\x00\x01"], [b"400"], "malformed", id="no HTTP"),
        pytest.param([CHUNKED, b"z\r\n"], [b"400"], "malformed", id="a body that cannot be read"),
        pytest.param(
            [post(b"/early", LARGE_BYTES), bytes(4 * LATE_BODY_BYTES)],
            [b"401"],
            "body-late",
            id="a body behind its answer",
        ),
        pytest.param([post(b"/early", 100)], [b"401"], "body-late", id="a body that never comes behind its answer"),
        pytest.param(
            [b"GET /held HTTP/1.1\r\nHost: here\r\n\r\n" * (PIPELINED_REQUESTS + 2)],
            [],
            "pipelined",
            id="requests ahead",
        ),
    ],
)
def test_too_large_a_message_is_answered_and_closed(listener, pieces, want, reason):
    with growth(REFUSED) as grown:
        said = listener.said(pieces)
        listener.settled(0)

    assert statuses(said) == want
    assert grown == {(REFUSED, "main", reason): 1}
    if want and want[-1] not in {b"200", b"401"}:
        assert b"connection: close" in said
    assert listener.said([BEGIN + b"Connection: close\r\n\r\n"]).startswith(b"HTTP/1.1 200"), "others are served"


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        pytest.param([BEGIN, b"X: ", b"a" * (HEAD_BYTES - 100), b"\r\n\r\n"], [b"200"], id="a head below the limit"),
        pytest.param([BEGIN, *[b"a: b\r\n"] * (HEAD_FIELDS - 1), b"\r\n"], [b"200"], id="as many headers as may be"),
        pytest.param([bytes([one]) for one in ASK], [b"200"], id="byte by byte"),
        pytest.param([ASK, ASK, ASK], [b"200"] * 3, id="one after another"),
        pytest.param([ASK * 3], [b"200"] * 3, id="at once"),
        pytest.param(
            [post(b"/read", 3 << 20) + bytes(3 << 20) + ASK], [b"200"] * 2, id="a request behind a large body"
        ),
        pytest.param([CHUNKED, b"1\r\nx\r\n" * (CHUNKS // 2), b"0\r\n\r\n"], [b"200"], id="some small chunks"),
        pytest.param([CHUNKED, b"1000\r\n" + bytes(4096) + b"\r\n", b"0\r\nX: y\r\n\r\n"], [b"200"], id="a trailer"),
        pytest.param([post(b"/early", 9), b"x" * 9, ASK], [b"401", b"200"], id="a body behind its answer, in time"),
        pytest.param(
            [BEGIN + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"],
            [b"200"],
            id="an offer of HTTP/2",
        ),
    ],
)
def test_who_takes_less_is_served(listener, pieces, want):
    with growth(REFUSED) as grown, listener.connect() as wire:
        for piece in pieces:
            wire.sendall(piece)
        said = b""
        while len(statuses(said)) < len(want):
            some = wire.recv(1 << 16)
            assert some, said
            said += some

    assert statuses(said) == want
    assert grown == {}


def test_a_body_has_all_the_time_that_we_do_not_read_it(listener):
    """The application is busy, and the client's bytes wait in the system's buffers."""
    size = 8 << 20
    with growth(REFUSED) as grown, listener.connect() as wire:
        wire.settimeout(1.5)  # three windows
        body = post(b"/held", size) + bytes(size)
        sent = sent_until_stopped(wire, body)
        assert sent < len(body)
        wire.settimeout(PATIENCE_SECONDS)
        listener.go()
        wire.sendall(body[sent:])
        assert answered(wire).startswith(b"HTTP/1.1 200")

    assert grown == {}


def sent_until_stopped(wire, body):
    """How many bytes a server takes that does not read."""
    sent = 0
    try:
        while sent < len(body):
            sent += wire.send(body[sent : sent + (1 << 16)])
    except TimeoutError:
        return sent
    return sent


def test_a_head_that_we_do_not_read_is_not_late(listener):
    """Requests that follow each other without a pause, the last in two parts, behind one that takes long: each is
    answered.
    """
    held = b"GET /held HTTP/1.1\r\nHost: here\r\n\r\n"
    with growth(REFUSED) as grown, listener.connect() as wire:
        wire.sendall(held + ASK + ASK[:20])
        assert listener.application.begun.acquire(timeout=PATIENCE_SECONDS)
        wire.sendall(ASK[20:])
        time.sleep(1.5)  # longer than a head may take
        listener.go()
        assert answered(wire).startswith(b"HTTP/1.1 200")

    assert grown == {}


def test_who_waits_to_be_asked_for_a_body_is_not_late(listener):
    with growth(REFUSED) as grown, listener.connect() as wire:
        wire.sendall(post(b"/held", 3, b"Expect: 100-continue"))
        assert listener.application.begun.acquire(timeout=PATIENCE_SECONDS)
        time.sleep(1.5)  # three windows
        listener.go()
        assert answered(wire).startswith(b"HTTP/1.1 100")
        wire.sendall(b"abc")
        assert answered(wire).startswith(b"HTTP/1.1 200")

    assert grown == {}


def test_the_application_learns_that_a_late_client_is_gone(listener):
    listener.said([post(b"/read", 100), b"x"])

    assert listener.application.left.acquire(timeout=PATIENCE_SECONDS)


def test_an_answer_that_nobody_reads_ends(listener):
    with growth(REFUSED) as grown, listener.connect() as wire:
        wire.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
        listener.settled(1)
        listener.settled(0)
        assert len(heard(wire)) < LARGE_BYTES

    assert grown == {(REFUSED, "main", "unread"): 1}


def test_an_answer_that_is_read_slowly_does_not(listener):
    with growth(REFUSED) as grown, listener.connect() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        wire.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        read = 0
        while some := wire.recv(1 << 20):
            read += len(some)
            time.sleep(0.01)

    assert read > LARGE_BYTES
    assert grown == {}


def test_a_socket_counts_until_it_is_closed(listener):
    with growth(REFUSED) as grown:
        with websockets.sync.client.connect(f"ws://127.0.0.1:{listener.port}/") as wire:
            wire.send("one")
            assert wire.recv() == "one"
            time.sleep(1)  # longer than a head, a body or a handshake may take
            wire.send("two")
            assert wire.recv() == "two"
            assert listener.connections == 1
        assert listener.application.left.acquire(timeout=PATIENCE_SECONDS)
        listener.settled(0)

    assert grown == {}


def test_idle_connections_make_room():
    with front(within=Limits(connections=4, per_address=4)) as listener, growth(REFUSED) as grown:
        idle = [listener.connect() for _ in range(4)]
        idle[0].sendall(ASK)
        assert idle[0].recv(1 << 16).startswith(b"HTTP/1.1 200")
        listener.settled(4)

        with listener.connect() as late:
            late.sendall(ASK)
            assert answered(late).startswith(b"HTTP/1.1 200")
            assert heard(idle[1]) == b""
            idle[0].sendall(ASK)
            assert idle[0].recv(1 << 16).startswith(b"HTTP/1.1 200")
        for one in idle:
            one.close()

    assert grown == {(REFUSED, "main", "listener-full"): 1}


def test_requests_under_way_do_not():
    limits = Limits(connections=10, per_address=2, loopback_trusted=False)
    with front(within=limits) as listener, growth(REFUSED) as grown:
        busy = [listener.connect() for _ in range(2)]
        for one in busy:
            one.sendall(b"GET /held HTTP/1.1\r\nHost: here\r\n\r\n")
            assert listener.application.begun.acquire(timeout=PATIENCE_SECONDS)
        with suppress(ConnectionResetError), listener.connect() as late:  # reset at once, or before connect() returns
            assert heard(late) == b""
        listener.go()
        for one in busy:
            assert answered(one).startswith(b"HTTP/1.1 200")
            one.close()

    assert grown == {(REFUSED, "main", "address-full"): 1}


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "ca")


@pytest.fixture
def tls(authority):
    pair = authority.issue("server")
    return Tls(pair.certificate, pair.key)


@pytest.mark.parametrize(
    "said", [pytest.param(b"", id="nothing"), pytest.param(b"\x16\x03\x01\x02\x00\x01", id="half")]
)
def test_who_does_not_shake_hands_is_closed(tls, said):
    with front(within=MANY, tls=tls) as listener, growth(REFUSED) as grown:
        with listener.connect() as wire:
            wire.sendall(said)
            assert heard(wire) == b""
        listener.settled(0)

    assert grown == {(REFUSED, "main", "handshake-time"): 1}


def test_handshakes_count_and_make_room(authority, tls, monkeypatch):
    monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS", 600)
    context = ssl.create_default_context(cafile=authority.certificate)
    with front(within=Limits(connections=3, per_address=3), tls=tls) as listener, growth(REFUSED) as grown:
        silent = [listener.connect() for _ in range(8)]
        for one in silent[:5]:
            assert heard(one) == b""
        listener.settled(3)
        with listener.connect() as wire, context.wrap_socket(wire, server_hostname="localhost") as safe:
            safe.sendall(ASK)
            assert answered(safe).startswith(b"HTTP/1.1 200")
            safe.sendall(BEGIN + b"X: " + b"a" * 4 * HEAD_BYTES)
            assert answered(safe).startswith(b"HTTP/1.1 431")
        listener.settled(2)

    for one in silent:
        one.close()
    assert grown == {(REFUSED, "main", "listener-full"): 6, (REFUSED, "main", "head-bytes"): 1}


def test_a_listener_stops_though_clients_stay(tls):
    """Those that do not shake hands, and those that are idle."""
    with front(within=MANY, tls=tls) as listener:
        silent = listener.connect()
        listener.settled(1)
    assert heard(silent) == b""
    silent.close()
    with front(within=MANY) as listener:
        idle = listener.connect()
        idle.sendall(ASK)
        assert answered(idle).startswith(b"HTTP/1.1 200")
    assert heard(idle) == b""
    idle.close()


def test_a_steady_body_is_read_however_long_it_takes(listener):
    """Twice what a window wants, in each of several windows."""
    piece = bytes(int(BODY_BYTES_A_SECOND * 0.5))
    with growth(REFUSED) as grown, listener.connect() as wire:
        wire.sendall(post(b"/read", 8 * len(piece)))
        for _ in range(8):
            wire.sendall(piece)
            time.sleep(0.25)
        assert answered(wire).startswith(b"HTTP/1.1 200")

    assert grown == {}


def test_a_closed_connection_leaves_nothing_to_the_collector_of_garbage():
    with front(within=MANY) as listener:
        gc.collect()
        gc.disable()
        try:
            for _ in range(5):
                with listener.connect() as wire:
                    wire.sendall(ASK)
                    assert answered(wire).startswith(b"HTTP/1.1 200")
            listener.settled(0)
            turned = threading.Event()
            listener.loop.call_soon_threadsafe(turned.set)
            assert turned.wait(PATIENCE_SECONDS)
            assert not [one for one in gc.get_objects() if type(one) is BoundedHttp]
        finally:
            gc.enable()
