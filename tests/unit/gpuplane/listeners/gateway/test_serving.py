"""What the client gets where a request is cut: one answer, whose end says so where it can."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import orjson
import pytest
from prometheus_client import REGISTRY

from access.actors import Actor
from access.choices import Role
from gpuplane.listeners.body_limits import MIB, BodyLimits
from gpuplane.listeners.gateway import serving as serving_module
from gpuplane.listeners.gateway.app import Gateway
from gpuplane.listeners.gateway.dispatcher import Dispatcher
from gpuplane.listeners.gateway.flights import Flight, GatewayEnded, SlotLost
from gpuplane.listeners.gateway.serving import Serving
from inference.choices import RequestState
from inference.dispatch.records import Place


class FakeBearer:
    async def actor(self, *_: object, **__: object) -> Actor:
        return Actor("u", Role.VIEWER)


class FakeDispatcher:
    """Gives every request the same place, and remembers how it ended."""

    clock = staticmethod(time.monotonic)
    flight: Flight | None = None
    closed: tuple[RequestState, str] | None = None

    async def place(self, flight: Flight) -> Place:
        self.flight = flight
        return Place(slot="s", address="x", model_name="m")

    def close(self, _: Flight, state: RequestState, reason: str = "") -> None:
        self.closed = state, reason


class Answer:
    """A runtime's stream that breaks off after its first piece."""

    status, streams = 200, True
    headers: tuple[()] = ()

    def __init__(self, first: bytes) -> None:
        self.first = first

    async def more(self) -> bytes:
        raise SlotLost("the slot closed the connection")

    def close(self) -> None:
        pass


class Upstream:
    def __init__(self, first: bytes) -> None:
        self._first = first

    async def send(self, *_: object, **__: object) -> Answer:
        return Answer(self._first)


class Client:
    """The server's `send`: waits with message `slow_at` (from 1), and accepts messages in their order alone."""

    def __init__(self, slow_at: int = 0) -> None:
        self._slow_at = slow_at
        self._calls = 0
        self.waits = asyncio.Event()
        self.reads = asyncio.Event()
        self.statuses: list[int] = []
        self.body = b""
        self.complete = False

    async def send(self, message: Any) -> None:
        self._calls += 1
        if self._calls == self._slow_at:
            self.waits.set()
            await self.reads.wait()
        if message["type"] == "http.response.start":
            assert not self.statuses, "a second answer"
            self.statuses.append(message["status"])
        else:
            assert self.statuses, "a body before its head"
            assert not self.complete
            self.body += message.get("body", b"")
            self.complete = not message.get("more_body", False)


async def asked(
    client: Client, first: bytes = b"data: 1\n\n", *, meanwhile: Callable[[Flight], Awaitable[None]] | None = None
) -> tuple[RequestState, str]:
    """One request of the client. `meanwhile`: once the client is slow. How it ended."""
    dispatcher: Any = FakeDispatcher()
    upstream: Any = Upstream(first)
    bearer: Any = FakeBearer()
    lane: Any = None
    serving = Serving(bound=BodyLimits(MIB).gateway, dispatcher=dispatcher, upstream=upstream, bodies=lane)
    gateway = Gateway(bearer=bearer, serving=serving, reads=lane)
    messages = [{"type": "http.request", "body": orjson.dumps({"model": "chat"}), "more_body": False}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    scope: Any = {"type": "http", "path": "/v1/completions", "method": "POST", "headers": []}
    task = asyncio.create_task(gateway(scope, receive, client.send))
    if meanwhile is not None:
        await client.waits.wait()
        await meanwhile(dispatcher.flight)
        client.reads.set()
    async with asyncio.timeout(20):
        await task
    closed: tuple[RequestState, str] = dispatcher.closed
    return closed


async def end_the_gateway(flight: Flight) -> None:
    flight.cut(GatewayEnded("the web process stops"))
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"data: 1\n\n", id="after an event"),
        pytest.param(b"data: 1\r\n\r\n", id="after an event of other lines"),
        pytest.param(b'data: 1\n\ndata: {"content": "hel', id="within an event"),
    ],
)
async def test_the_error_is_an_event_of_its_own(first: bytes) -> None:
    """SLOT-9 also where the slot is lost within an event."""
    client = Client()
    state, reason = await asked(client, first)
    assert (state, reason) == (RequestState.FAILED, "the slot closed the connection")
    *_, last = client.body.replace(b"\r", b"").removesuffix(b"\n\n").split(b"\n\n")
    assert orjson.loads(last.removeprefix(b"data: "))["error"]["message"] == "the slot closed the connection"
    assert client.complete


async def test_a_second_cut_answers_no_second_time() -> None:
    """SLOT-9 the slot is lost, and before a slow client has read that, the gateway ends."""
    client = Client(slow_at=3)
    state, reason = await asked(client, meanwhile=end_the_gateway)
    assert client.statuses == [200]
    assert (state, reason) == (RequestState.FAILED, "the slot closed the connection")


@pytest.mark.parametrize(
    ("slow_at", "want"),
    [
        pytest.param(1, (RequestState.CANCELLED, "the client has read nothing for 0 s"), id="the head"),
        pytest.param(2, (RequestState.CANCELLED, "the client has read nothing for 0 s"), id="a piece"),
        pytest.param(3, (RequestState.FAILED, "the slot closed the connection"), id="that the slot was lost"),
    ],
)
async def test_a_client_that_does_not_read(
    slow_at: int, want: tuple[RequestState, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-9 it gives its place back after a while, though it keeps its connection."""
    monkeypatch.setattr(serving_module, "CLIENT_SECONDS", 0.05)
    assert await asked(Client(slow_at=slow_at)) == want


async def test_a_cut_before_the_answer_begins_is_refused() -> None:
    """SLOT-9 the client has not yet read the answer before on its connection: nothing of this one was sent."""
    client = Client(slow_at=1)
    state, reason = await asked(client, meanwhile=end_the_gateway)
    assert client.statuses == [503]
    assert (state, reason) == (RequestState.FAILED, "the web process stops")


async def test_only_models_that_exist_become_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-9 whoever sends made-up names and hangs up makes no series."""
    dispatcher = Dispatcher(queue_seconds=1, queue_length=1)
    dispatcher._loop = asyncio.get_running_loop()

    async def nothing(*_: object) -> None:
        return None

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(dispatcher.registration, "held", nothing)
    monkeypatch.setattr(dispatcher._arrivals, "place", never)

    async def one() -> None:
        flight = Flight(request_id=uuid4(), model="made-up", lora="", priority=0, user="u", token="t", arrived=0.0)
        try:
            await dispatcher.place(flight)
        finally:
            dispatcher.close(flight, RequestState.CANCELLED, "the client has gone")

    def labels() -> set[str]:
        families = (one for one in REGISTRY.collect() if one.name.startswith("gpuplane_inference_"))
        return {sample.labels.get("model", "") for family in families for sample in family.samples}

    task = asyncio.create_task(one())
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert dispatcher._ended
    dispatcher._ended.clear()
    assert "made-up" not in labels()


@pytest.mark.parametrize(
    ("error", "want"),
    [
        pytest.param(ZeroDivisionError("a defect"), "gpuplane failed", id="a defect"),
        pytest.param(asyncio.CancelledError(), "the web process stopped", id="the process stops"),
    ],
)
async def test_why_an_answer_was_not_completed(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, want: str
) -> None:
    """SLOT-9 a defect is recorded as one, and not as the end of the process."""

    async def send(*_: object, **__: object) -> Answer:
        raise error

    closed: list[tuple[RequestState, str]] = []
    monkeypatch.setattr(Upstream, "send", send)
    monkeypatch.setattr(FakeDispatcher, "close", lambda _self, _flight, *ended: closed.append(ended))
    with pytest.raises(type(error)):
        await asked(Client())
    assert closed == [(RequestState.FAILED, want)]
