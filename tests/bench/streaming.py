"""The runtime and the bare proxy that the gateway is measured beside, as processes of their own.

`python -m tests.bench.streaming runtime PORT` answers `/v1/…` as the body's `tokens` and `gap` say, with the time at
which it had the request in the header `x-received` (the machine's monotonic clock, in nanoseconds).
`python -m tests.bench.streaming proxy PORT RUNTIME` is the floor: a plain ASGI application on uvicorn that passes
pieces on with aiohttp, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
import uvicorn
import uvloop

if TYPE_CHECKING:
    from gpuplane.listeners import Receive, Scope, Send

PIECE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"chat",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
END = b"0\r\n\r\n"


class Runtime(asyncio.Protocol):
    """One connection."""

    transport: Any
    loop: asyncio.AbstractEventLoop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self.received = b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, separator, body = self.received.partition(b"\r\n\r\n")
        if not separator:
            return
        lowered = head.lower()
        start = lowered.find(b"content-length:") + 15
        length = int(lowered[start : lowered.find(b"\r", start) if b"\r" in lowered[start:] else None])
        if len(body) < length:
            return
        at = time.monotonic_ns()
        asked = orjson.loads(body[:length])
        self.received = body[length:]
        if not (tokens := asked.get("tokens", 0)):
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n%020d" % at
            )
            return
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + CHUNK
        )
        self.next(tokens - 1, asked.get("gap", 0.0))

    def next(self, left: int, gap: float) -> None:
        """Send the others, one each `gap` seconds."""
        if left <= 0:
            self.transport.write(END)
            return
        self.timer = self.loop.call_later(gap, self.more, left, gap)

    def more(self, left: int, gap: float) -> None:
        self.transport.write(CHUNK)
        self.next(left - 1, gap)


async def serve_runtime(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Runtime, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


def bare_proxy(runtime: str):
    """The least that a proxy does."""
    sessions: list[aiohttp.ClientSession] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if not sessions:
            sessions.append(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0),
                    auto_decompress=False,
                    timeout=aiohttp.ClientTimeout(total=None),
                )
            )
        headers = {"content-type": "application/json"}
        async with sessions[0].post(f"http://{runtime}{scope['path']}", data=body, headers=headers) as answer:
            kind = answer.headers.get("content-type", "").encode()
            await send({"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]})
            while piece := await answer.content.readany():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return application


def main() -> int:
    """Command line."""
    kind, port = sys.argv[1], int(sys.argv[2])
    with contextlib.suppress(KeyboardInterrupt):
        if kind == "runtime":
            uvloop.run(serve_runtime(port))
        else:
            uvicorn.run(
                bare_proxy(sys.argv[3]),
                host="127.0.0.1",
                port=port,
                loop="uvloop",
                http="httptools",
                lifespan="off",
                access_log=False,
                log_level="warning",
                backlog=4096,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
