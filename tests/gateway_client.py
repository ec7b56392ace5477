"""Clients of a gateway's web process, and what tests of it look at."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx

from inference.models import Request, Slot
from tests.fakes.runtime import Runtime
from tests.servers import redis, web
from tests.slots import SlotWorld

QUEUE_SECONDS = 2
QUEUE_LENGTH = 16
SILENT_SECONDS = 2
CHAT = "/v1/chat/completions"
SETTINGS = {
    "GPUPLANE_QUEUE_SECONDS": str(QUEUE_SECONDS),
    "GPUPLANE_QUEUE_LENGTH": str(QUEUE_LENGTH),
    "GPUPLANE_UPSTREAM_SECONDS": str(SILENT_SECONDS),
}


class Asking:
    """One client."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def __call__(self, model: str = "chat", *, path: str = CHAT, headers: dict[str, str] | None = None, **more: Any):
        body = {"model": model, "messages": [], **more}
        return self.client.post(path, json=body, headers=headers)

    def stream(self, model: str = "chat", **behave: Any):
        return self.client.stream("POST", CHAT, json={"model": model, "stream": True, "behave": behave})


class Served:
    """A model `chat` with slots at runtimes."""

    def __init__(self, world: SlotWorld, some: list[Runtime], slots: list[Slot]) -> None:
        self.world, self.runtimes, self.slots = world, some, slots

    def busy(self) -> int:
        return sum(Slot.objects.values_list("active", flat=True))


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """What another process writes is read until it is there."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)


def row(response: httpx.Response) -> Request:
    """The request as the database has it once it is over."""
    pk = UUID(response.headers["x-request-id"])
    until(lambda: Request.objects.filter(pk=pk, ended_at__isnull=False).exists())
    return Request.objects.get(pk=pk)


def error(response: httpx.Response) -> tuple[int, str, str]:
    """Status, code and message of an error in OpenAI's shape."""
    found = response.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return response.status_code, found["code"], found["message"]


def connected(app: web.LiveApp, ask: Asking, body: bytes, *, receive_bytes: int = 0) -> socket.socket:
    """A connection over which one request was sent."""
    place = urlsplit(app.url)
    opened = socket.socket()
    if receive_bytes:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    opened.connect((place.hostname, place.port))
    token = ask.client.headers["authorization"]
    opened.sendall(
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return opened


@contextlib.contextmanager
def second_process(app: web.LiveApp, ask: Asking, **settings: str) -> Iterator[tuple[web.LiveApp, Asking]]:
    """Another web process on the same database, and a client of it."""
    with (
        web.on_database(
            app.database, redis.server_url("gateway"), settings={**SETTINGS, **settings}, is_forked=True
        ) as second,
        httpx.Client(base_url=second.url, headers=ask.client.headers, timeout=60) as client,
    ):
        yield second, Asking(client)
