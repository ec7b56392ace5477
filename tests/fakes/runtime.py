"""A model's runtime over real sockets: OpenAI's paths, and every way to behave badly.

How it answers stands in the request's field `behave`, or in `Runtime.behave`, which is stronger:
`{"tokens": 3, "gap": 0.01}` streams, `{"endless": true}` until `Runtime.enough` is set, `{"status": 500}` answers so,
`{"hang": true}` never answers, `{"close": n}` closes after n pieces, `{"bytes": n}` answers a document of n bytes.
Runtimes have a thread and a loop of their own.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

PIECE = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" token%d"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclass
class Runtime:
    """What it was asked, and what happened. Read from other threads."""

    address: str = ""
    behave: dict[str, Any] | None = None
    asked: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Path, headers, body."""
    left: int = 0
    """Clients that went away within an answer."""
    active: int = 0
    most: int = 0
    """The most requests at once."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    enough: threading.Event = field(default_factory=threading.Event)

    def wait(self, condition: Any, seconds: float = 10.0) -> bool:
        """Wait until the condition holds."""
        with self.changed:
            return self.changed.wait_for(lambda: bool(condition(self)), seconds)

    def _note(self, **changes: int) -> None:
        with self.changed:
            for name, by in changes.items():
                setattr(self, name, getattr(self, name) + by)
            self.most = max(self.most, self.active)
            self.changed.notify_all()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = head.split("\r\n")
                headers = {
                    name.strip().lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines[1:] if line)
                }
                body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))))
                self.asked.append((lines[0].split(" ")[1], headers, body))
                with ExitStack() as counted:
                    self._note(active=1)
                    counted.callback(self._note, active=-1)
                    if not await self._answer(reader, writer, self.behave or body.get("behave") or {}, counted):
                        return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return  # cancelled at the end of the test
        finally:
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, behave: dict[str, Any], counted: ExitStack
    ) -> bool:
        """Whether the connection goes on. `counted` is closed before the last bytes: then the next request may come."""
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            if behave.get("hang"):
                await leaving
                self._note(left=1)
                return False
            if behave.get("close") == 0:
                return False
            status = behave.get("status", 200)
            if status != 200 or "bytes" in behave or not behave.keys() & {"tokens", "endless"}:
                size = behave.get("bytes")
                text = b"x" * size if size else b'{"usage": {"completion_tokens": 5}, "status": %d}' % status
                kind = behave.get("type", "application/json")
                counted.close()
                writer.write(
                    f"HTTP/1.1 {status} S\r\ncontent-type: {kind}\r\ncontent-length: {len(text)}\r\n"
                    f"set-cookie: a=b\r\n\r\n".encode()
                    + text
                )
                await writer.drain()
                return True
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            return await self._stream(writer, leaving, behave, counted)
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    async def _stream(
        self,
        writer: asyncio.StreamWriter,
        leaving: asyncio.Future[bytes],
        behave: dict[str, Any],
        counted: ExitStack,
    ) -> bool:
        pad = b" " * behave.get("pad", 0)
        for number in count() if "endless" in behave else range(behave["tokens"]):
            if behave.get("close") == number:
                return False
            if "endless" in behave and self.enough.is_set():
                break
            _piece(writer, PIECE % number + pad)
            await writer.drain()
            done, _ = await asyncio.wait({leaving}, timeout=behave.get("gap", 0.0))
            if done:
                self._note(left=1)
                return False
        counted.close()
        _piece(writer, DONE)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def _piece(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


@contextmanager
def runtimes(count: int) -> Iterator[list[Runtime]]:
    """So many, listening; closed with all their connections at the end."""
    found = [Runtime() for _ in range(count)]
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()

    async def run() -> None:
        servers = []
        for one in found:
            server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
            one.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            servers.append(server)
        ready.set()
        await stop.wait()
        for server in servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), name="runtimes")
    thread.start()
    try:
        assert ready.wait(10)
        yield found
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
