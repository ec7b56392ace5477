"""WebSockets whose data is parsed in turns, over real connections."""

import socket
import struct
import threading
import time

import pytest
import websockets.sync.client
from websockets.frames import Frame, Opcode

from gpuplane.listeners import bounded_sockets
from gpuplane.listeners.limits import Limits
from nodes.live.message_extension import AT_ONCE
from tests.integration.infrastructure.front import PATIENCE_SECONDS, Application, front


class Taking(Application):
    """Notes what it is offered at once and what it receives; it takes what begins with `s`."""

    def __init__(self):
        super().__init__()
        self.heard = []
        self.came = threading.Condition()

    async def echo(self, receive, send):
        await receive()
        await send({"type": "websocket.accept"})
        idle = [True]

        def take(body):
            taken = idle[0] and body.startswith(b"s")
            if taken:
                self.note("at once", body)
            return taken

        self.scope["extensions"][AT_ONCE](take)
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                break
            idle[0] = False
            self.note("received", message["bytes"])
            idle[0] = True
        self.note("left", b"")

    async def __call__(self, scope, receive, send):
        self.scope = scope
        await super().__call__(scope, receive, send)

    def note(self, how, body):
        with self.came:
            self.heard.append((how, body))
            self.came.notify_all()

    def wait(self, count):
        with self.came:
            assert self.came.wait_for(lambda: len(self.heard) >= count, PATIENCE_SECONDS), self.heard
            return list(self.heard)


MANY = Limits(connections=50, per_address=50)


@pytest.fixture
def taking():
    with front(within=MANY, kind=Taking) as listener:
        yield listener


def masked(body, opcode=Opcode.BINARY, *, fin=True):
    return Frame(opcode, body, fin=fin).serialize(mask=True)


def upgraded(listener):
    wire = listener.connect()
    wire.sendall(
        b"GET / HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    found = b""
    while b"\r\n\r\n" not in found:
        found += wire.recv(1 << 16)
    assert found.startswith(b"HTTP/1.1 101")
    return wire


@pytest.mark.parametrize("cut", [None, 1, 3, 7])
def test_what_is_taken_and_what_is_received_keep_their_order(taking, cut):
    """NODE-2 messages taken at once, others, pings, parts of messages and frames that the network cuts."""
    sent = [b"s1", b"x1", b"s2", b"s3" + bytes(200), b"x2"]
    data = [masked(body) for body in sent]
    data.insert(2, masked(b"ping", Opcode.PING))
    data.insert(4, masked(b"s in ", fin=False) + masked(b"parts", Opcode.CONT))
    want = [b"s1", b"x1", b"s2", b"s in parts", b"s3" + bytes(200), b"x2"]
    with upgraded(taking) as wire:
        for count, one in enumerate(data, start=1):
            for start in range(0, len(one), cut or len(one)):
                wire.sendall(one[start : start + (cut or len(one))])
                if cut:
                    time.sleep(0.001)
            if cut is None:
                taking.application.wait(min(count - (count > 2), len(want)))
        taking.application.wait(len(want))  # a client that closes with an unread pong resets the connection
    heard = taking.application.wait(len(want) + 1)
    assert [body for _, body in heard[:-1]] == want
    assert {body: how for how, body in heard[:-1]}[b"x1"] == "received"
    if cut is None:
        assert {body: how for how, body in heard[:-1]}[b"s1"] == "at once"
    assert heard[-1] == ("left", b"")


def test_what_came_before_the_end_is_heard(taking):
    """NODE-2 of an agent that dies right after a message the message counts."""
    wires = [upgraded(taking) for _ in range(8)]
    for number, wire in enumerate(wires):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        wire.sendall(masked(b"x%d" % number) + masked(b"ping", Opcode.PING))
        wire.shutdown(socket.SHUT_WR)
    heard = taking.application.wait(16)
    for wire in wires:
        wire.close()
    assert {body for how, body in heard if how == "received"} == {b"x%d" % number for number in range(8)}
    taking.settled(0)


def test_more_than_waits_to_be_parsed_arrives_in_order(monkeypatch):
    """NODE-2 a peer that sends faster than it is parsed is read from again once it was."""
    monkeypatch.setattr(bounded_sockets, "UNPARSED_BYTES", 1024)
    with front(within=MANY) as listener, websockets.sync.client.connect(f"ws://127.0.0.1:{listener.port}/") as wire:
        texts = [f"{number} " + "x" * 20_000 for number in range(100)]

        def send() -> None:
            for text in texts:
                wire.send(text)

        sender = threading.Thread(target=send)
        sender.start()
        assert [wire.recv(PATIENCE_SECONDS) for _ in texts] == texts
        sender.join()
