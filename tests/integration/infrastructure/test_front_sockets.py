"""What a peer of a WebSocket may take of a listener, over real connections."""

from contextlib import suppress

import pytest
import websockets.sync.client

from gpuplane.listeners.limits import MESSAGE_BYTES, Limits
from tests.integration.infrastructure.front import LARGE_BYTES, PATIENCE_SECONDS, front, heard
from tests.measured import growth

REFUSED = "gpuplane_connections_refused_total"


@pytest.fixture
def listener():
    with front(within=Limits(connections=200, per_address=100)) as running:
        yield running


def sent_until_stopped(wire, body):
    """How many bytes a server takes that does not read."""
    sent = 0
    with suppress(TimeoutError):
        while sent < len(body):
            sent += wire.send(body[sent : sent + (1 << 16)])
    return sent


UPGRADE = (
    b"GET /held HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MASK = bytes(4)


def test_nothing_is_read_from_a_socket_that_is_not_accepted(listener):
    """Whose credential is still being looked up has no memory of ours, and none of the loop's time."""
    with growth(REFUSED) as grown, listener.connect() as wire:
        wire.sendall(UPGRADE)
        assert listener.application.begun.acquire(timeout=PATIENCE_SECONDS)
        wire.settimeout(1.5)
        pings = b"\x89\x80" + MASK
        sent = sent_until_stopped(wire, pings * (LARGE_BYTES // len(pings)))
        assert sent < LARGE_BYTES // 2
    listener.go()
    listener.settled(0)
    assert set(grown) <= {(REFUSED, "main", "socket-frames")}


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(b"\x89\x80" + MASK, id="pings"),
        pytest.param(b"\x8a\x80" + MASK, id="pongs"),
        pytest.param(b"\x00\x80" + MASK, id="empty parts of a message"),
        pytest.param(b"\x80\x80" + MASK + b"\x01\x80" + MASK, id="empty messages"),
    ],
)
def test_who_sends_frames_without_end_is_ended(listener, frames):
    """Six bytes each: 43,000 of one read had stopped the event loop for seconds, and empty parts were kept for ever."""
    with growth(REFUSED) as grown, listener.connect() as wire:
        listener.go()
        wire.sendall(UPGRADE)
        assert listener.application.begun.acquire(timeout=PATIENCE_SECONDS)
        assert b" 101 " in wire.recv(1 << 16)
        wire.settimeout(PATIENCE_SECONDS)
        with suppress(ConnectionError):
            wire.sendall(b"\x01\x80" + MASK + frames * 100_000)
        heard(wire)
        listener.settled(0)
    assert grown == {(REFUSED, "main", "socket-frames"): 1}


def test_a_socket_takes_what_an_agent_sends_at_once(listener):
    """Two hundred messages after a restart, one of them the longest that there is."""
    with growth(REFUSED) as grown, websockets.sync.client.connect(f"ws://127.0.0.1:{listener.port}/") as wire:
        for number in range(200):
            wire.send("x" * (MESSAGE_BYTES if number == 7 else 400))
        assert len([wire.recv() for _ in range(200)]) == 200
    assert grown == {}


def test_a_message_without_end_is_not_kept(listener):
    """One byte more than a message may have, in whatever parts."""
    with listener.connect() as wire:
        listener.go()
        wire.sendall(UPGRADE)
        assert b" 101 " in wire.recv(1 << 16)
        part = b"\x80\xff" + (1 << 16).to_bytes(8, "big") + MASK + bytes(1 << 16)
        wire.sendall(b"\x01" + part[1:])
        with suppress(ConnectionError):
            for _ in range(8):
                wire.sendall(b"\x00" + part[1:])
        assert b"\x03\xf1" in heard(wire)[:4], "1009: too large"
