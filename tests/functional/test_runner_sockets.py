"""`WS /ws/runners/<node>/` as a runner of another make may use it: what ends its session, and what it is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest
from pytest_django import Settings
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from access.actors import SYSTEM
from access.token_services import agent_token
from allocations.models import Allocation, Lease
from gpuplane.listeners.limits import SOCKET_FRAMES_AT_ONCE
from inference.choices import RunnerState
from inference.models import Model, Runner, Slot
from nodes.live.rate_limit import FRAMES_AT_ONCE
from nodes.models import Node
from runner.protocol import (
    Desired,
    Hello,
    LogTail,
    Report,
    ServerFrame,
    SlotReport,
    Welcome,
    decode_server,
    encode,
)
from storage.clock import database_now
from tests.servers import redis
from tests.servers.web import LiveApp
from tests.slots import SlotWorld

STAMP = ("boot-1", 1, 1.0)


@pytest.fixture
def world(live_app: LiveApp, settings: Settings) -> Iterator[SlotWorld]:
    settings.GPUPLANE_REDIS_URL = redis.server_url("web")
    found = SlotWorld()
    found.node()
    yield found
    Slot.objects.all().delete()
    Model.objects.all().delete()
    Runner.objects.all().delete()
    Lease.objects.all().delete()
    Allocation.objects.all().delete()
    Node.objects.all().delete()


@pytest.fixture
def token(world: SlotWorld) -> str:
    return agent_token(node="n1", actor=SYSTEM, now=database_now())


def opened(app: LiveApp, token: str, node: str = "n1") -> ClientConnection:
    url = app.url.replace("http", "ws", 1)
    return connect(f"{url}/ws/runners/{node}/", additional_headers={"Authorization": f"Bearer {token}"}, proxy=None)


@contextmanager
def begun(app: LiveApp, token: str, instance: str = "machine-1", node: str = "n1") -> Iterator[ClientConnection]:
    """A session that has said hello, and is welcome."""
    with opened(app, token, node) as socket:
        socket.send(encode(Hello(*STAMP, node, instance, "1", "10.0.0.9")))
        assert isinstance(heard(socket), Welcome)
        yield socket


def heard(socket: ClientConnection) -> ServerFrame:
    message = socket.recv(timeout=20)
    assert isinstance(message, bytes)
    return decode_server(message)


def closed(socket: ClientConnection) -> tuple[int, str]:
    """(code, reason) of the close that follows."""
    try:
        for _ in range(100):
            socket.recv(timeout=20)
    except ConnectionClosed as ended:
        return (ended.rcvd.code, ended.rcvd.reason) if ended.rcvd is not None else (0, "nothing was said")
    raise AssertionError("the session goes on")


@pytest.mark.parametrize(
    ("said", "want"),
    [
        pytest.param(b"\xc1", (1008, ""), id="no frame"),
        pytest.param("hello", (1003, "frames are binary"), id="text"),
        pytest.param(encode(Report(*STAMP)), (1008, "the first frame of a session is hello"), id="no hello"),
        pytest.param(encode(Hello(*STAMP, "n2", "i")), (1008, "hello names another node"), id="another node"),
        pytest.param(b"\x00" * 262_145, (1009, ""), id="too large"),
    ],
)
def test_a_first_frame_that_is_refused(live_app: LiveApp, token: str, said: bytes | str, want: tuple[int, str]) -> None:
    """SLOT-1c a bad frame ends its session with a code that says why; the next session is welcome."""
    with opened(live_app, token) as socket:
        socket.send(said)
        code, reason = closed(socket)
        assert (code, want[1] in reason) == (want[0], True), reason
    with begun(live_app, token):
        assert Runner.objects.get().state == RunnerState.CONNECTED


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([encode(Hello(*STAMP, "n1", "machine-1"))], id="a second hello"),
        pytest.param([msgspec.msgpack.encode(["report", *STAMP, [["../x", "ready"]]])], id="an id that is a path"),
    ],
)
def test_a_later_frame_that_is_refused(live_app: LiveApp, token: str, said: list[bytes]) -> None:
    """SLOT-1c"""
    with begun(live_app, token) as socket:
        with suppress(ConnectionClosed):
            for frame in said:
                socket.send(frame)
        assert closed(socket)[0] == 1008


def test_too_many_frames(live_app: LiveApp, world: SlotWorld) -> None:
    """SLOT-1c a runner that sends without end is cut off, and the others are not."""
    world.node("n9")
    flood = agent_token(node="n9", actor=SYSTEM, now=database_now())
    with begun(live_app, flood, node="n9") as socket:
        with suppress(ConnectionClosed):
            for _ in range((FRAMES_AT_ONCE + SOCKET_FRAMES_AT_ONCE) // 2):  # more, and the socket ends without a word
                socket.send(encode(Report(*STAMP)))
        code, reason = closed(socket)
        assert (code, "frames a second" in reason) == (1008, True)


def test_nothing_is_told_before_the_first_report(live_app: LiveApp, world: SlotWorld, token: str) -> None:
    """SLOT-2 what a runner has is known before it is told what to run; then it hears of each change at once."""
    world.model(runtime="simulated", keep_warm=1)
    with begun(live_app, token) as socket:
        with pytest.raises(TimeoutError):
            socket.recv(timeout=0.5)
        socket.send(msgspec.msgpack.encode(["offer", *STAMP, ["simulated"], ["chat"]]))
        socket.send(encode(Report(*STAMP)))
        assert heard(socket) == Desired()
        began = time.monotonic()
        world.round()
        told = heard(socket)
        assert time.monotonic() - began < 20
        assert isinstance(told, Desired)
        (slot,) = told.slots
        assert (slot.run, slot.model, slot.runtime, len(slot.gpus)) == (True, "chat", "simulated", 1)
        socket.send(encode(Report(*STAMP, [SlotReport(slot.id, "ready", "10.0.0.9:1")])))
        _until(lambda: Slot.objects.get().state == "ready")
        socket.send(encode(LogTail(*STAMP, "nobodys", "text of a slot that is not this runner's")))
        Model.objects.all().delete()
        world.round()
        gone = heard(socket)
        assert isinstance(gone, Desired)
        assert [(one.id, one.run) for one in gone.slots] == [(slot.id, False)]


def test_of_two_sessions_the_newer_counts(live_app: LiveApp, token: str) -> None:
    """SLOT-2 of one program the newer one; another machine's is refused while the first is heard."""
    with begun(live_app, token) as first, begun(live_app, token) as second:
        first.send(encode(Report(*STAMP)))
        code, reason = closed(first)
        assert (code, "another session" in reason) == (1008, True)
        with opened(live_app, token) as other:
            other.send(encode(Hello(*STAMP, "n1", "machine-2")))
            code, reason = closed(other)
            assert (code, "another runner of n1 is connected" in reason) == (1008, True)
        second.send(encode(Report(*STAMP)))
        assert heard(second) == Desired()


def test_a_node_that_is_not_known(live_app: LiveApp, world: SlotWorld) -> None:
    """SLOT-1c it may connect again once the node is registered."""
    other = agent_token(node="n7", actor=SYSTEM, now=database_now())
    with opened(live_app, other, "n7") as socket:
        socket.send(encode(Hello(*STAMP, "n7", "machine-7")))
        assert closed(socket) == (1013, "node n7 is not known yet")


def test_a_token_that_is_revoked(live_app: LiveApp, token: str) -> None:
    """VIEW-6 the session of a token ends with it, and its slots go on."""
    with begun(live_app, token) as socket:
        agent_token(node="n1", actor=SYSTEM, now=database_now())
        code, _ = closed(socket)
        assert code == 1012
    assert Runner.objects.get().state == RunnerState.CONNECTED


def _until(true: Any) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
