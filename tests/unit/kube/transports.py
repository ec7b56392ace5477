"""Transports of the tests, and requests by way of them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from kubernetes.client.configuration import Configuration

from kube.http1 import Request, Response
from kube.transport import Transport
from tests.fakes.script import OK

Ask = Callable[..., Awaitable[Response]]
CLOSING = OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


def made(address: str, *, connections: int = 2) -> Transport:
    """A transport to a server of that address."""

    def source() -> Any:
        configuration = Configuration()
        configuration.host = address
        return configuration

    return Transport(source, connections=connections, clock=time.monotonic)


def asking(carried: Transport, *, thread: bool) -> Ask:
    """Sends by way of the transport: awaited here, or waited for by a thread."""

    async def ask(
        method: str = "POST",
        target: str = "/x",
        body: bytes | None = b"{}",
        seconds: float = 5.0,
        before: float = math.inf,
    ) -> Response:
        sending = carried.send(
            Request(method=method, target=target, body=body, content_type="a/b", seconds=seconds, before=before)
        )
        return await (asyncio.to_thread(carried.run, sending) if thread else sending)

    return ask
