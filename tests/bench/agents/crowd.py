"""`python -m tests.bench.agents.crowd`: thousands of agents in one process, on sockets of their own, and a few browsers
beside them.

Started by `measuring`, which gives it one line of JSON and then commands: `mark` (what was counted is forgotten),
`tell` (a line of JSON with what was counted), `stop`. Invariants: each agent has a connection, a handshake and a
session of its own and sends one sample a second, evenly spread over the second; one that loses its connection stays
away and is counted. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import resource
import sys
import time
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import django
import msgspec
import uvloop

from agent.protocol import decode_ack
from tests.bench.agents import frames
from tests.bench.agents.sight import Sent, Sight
from tests.bench.figures import quantile

STEP_SECONDS = 0.004
BUSY = "HTTP/1.1 503"
"""More tokens that were never seen than are looked up at a time; agents come again."""
COME_AGAIN_SECONDS = 0.2
RAMP_SECONDS = 90.0
DETAILS_EVERY = 60
"""Samples between two frames of details."""


class Task(msgspec.Struct):
    """What to do. `path`: of the socket, `{}` stands for the node's name.

    `speaks`: whether the server acknowledges. `looks`: columns of each browser.
    """

    url: str
    tokens: dict[str, str]
    path: str
    nodes: list[tuple[str, list[str]]]
    speaks: bool = True
    at_once: int = 200
    cookie: str = ""
    looks: list[str] = []


class Line(asyncio.Protocol):
    """One agent's connection."""

    def __init__(self, place: int, task: Task) -> None:
        self.name, self.uuids = task.nodes[place]
        self.seq = 0
        self.refused = ""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self._task = task
        self._data = bytearray()
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # of uvloop, which inherits nothing
        host = urlsplit(self._task.url).netloc
        key = base64.b64encode(os.urandom(16)).decode()
        self.transport.write(
            f"GET {self._task.path.format(self.name)} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection:"
            f" Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer"
            f" {self._task.tokens.get(self.name, '')}\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._open:
            head, end, rest = bytes(self._data).partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self._lost(head[:80].decode("latin-1"))
                return
            self._open, self._data = True, bytearray(rest)
            if self._task.speaks:
                self._write(frames.hello(self.name, self.uuids, time=time.time()))
            else:
                self._is_ready()
        for first, body in frames.received(self._data):
            if first == 0x89:
                self._write(frames.pong(body))
            elif first == 0x88:
                self._lost(f"closed: {body[2:].decode(errors='replace')}")
            elif (ack := decode_ack(body)).problem or ack.want:
                self._lost(f"{ack.problem} {ack.want}")
            else:
                self._is_ready()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(f"the connection ended: {error}")

    def say(self, variant: int, sent: Sent, place: int) -> None:
        """A sample, and now and then details."""
        self.seq += 1
        now = time.time()
        sent.at[place, self.seq % frames.TURN] = now
        self._write(frames.sample(self.seq, now, variant))
        if self._task.speaks and (self.seq + place) % DETAILS_EVERY == 0:
            self.seq += 1  # the sample that would have this number is never sent
            self._write(frames.details(self.seq, time=now))

    def _is_ready(self) -> None:
        if not self.ready.done():
            if self._task.speaks:
                self.seq += 1
                self._write(frames.details(self.seq, time=time.time()))
            self.ready.set_result(None)

    def _write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def _lost(self, why: str) -> None:
        self.refused = self.refused or why
        if self.transport is not None:
            self.transport.abort()
            self.transport = None
        if not self.ready.done():
            self.ready.set_result(None)


class Crowd:
    """All of them."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.lines: list[Line] = []
        self.sent = Sent([name for name, _ in task.nodes])
        self.sights = [Sight(task.url, task.cookie, columns, self.sent) for columns in task.looks]
        self._late: list[float] = []
        self._count = 0
        self._cpu = time.process_time()

    async def connect(self) -> None:
        """Every agent, so many at once as the task says."""
        loop = asyncio.get_running_loop()
        place = urlsplit(self._task.url)
        gate = asyncio.Semaphore(self._task.at_once)

        async def one(number: int) -> None:
            async with gate:
                while True:
                    line = Line(number, self._task)
                    await loop.create_connection(partial(_same, line), place.hostname or "", place.port or 80)
                    await line.ready
                    if not line.refused.startswith(BUSY):
                        break
                    await asyncio.sleep(COME_AGAIN_SECONDS)
                self.lines.append(line)

        async with asyncio.timeout(RAMP_SECONDS):
            await asyncio.gather(*(one(number) for number in range(len(self._task.nodes))))
        self.lines.sort(key=lambda line: self.sent.place[line.name])

    async def talk(self) -> None:
        """Samples, until cancelled."""
        number, count = 0, len(self.lines)
        began = time.monotonic()
        while True:
            now = time.monotonic()
            while (due := began + number / count) <= now:
                place = number % count
                self.lines[place].say(number * 7 + place * 13, self.sent, place)
                if number % 64 == 0:
                    self._late.append(now - due)
                number += 1
                self._count += 1
            await asyncio.sleep(STEP_SECONDS)

    def mark(self) -> None:
        """Count from here."""
        self._late, self._count, self._cpu = [], 0, time.process_time()
        for sight in self.sights:
            sight.forget()

    def told(self) -> dict[str, Any]:
        """What was counted since the mark."""
        late = sorted(self._late) or [0.0]
        lost = [line.refused for line in self.lines if line.refused]
        return {
            "sent": self._count,
            "lost": len(lost),
            "why": sorted(set(lost))[:3],
            "late_p99": quantile(late, 0.99),
            "cpu_seconds": time.process_time() - self._cpu,
            "sights": [sight.told() for sight in self.sights],
        }


async def _run(task: Task) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    frames.tails()
    frames.details(1, time=0.0)
    crowd = Crowd(task)
    began = time.monotonic()
    await crowd.connect()
    _say({"ready": time.monotonic() - began, **crowd.told()})
    work = [asyncio.create_task(part) for part in (crowd.talk(), *(sight.look() for sight in crowd.sights))]
    while command := (await reader.readline()).strip():
        for part in work:
            if part.done():
                part.result()  # its error is told
        if command == b"mark":
            crowd.mark()
        elif command == b"tell":
            _say(crowd.told())
        else:
            break
    for part in work:
        part.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    for line in crowd.lines:
        if line.transport is not None:
            line.transport.abort()


def _same(line: Line) -> Line:
    return line


def _say(told: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    sys.stdout.flush()


def main() -> int:
    """Command line."""
    task = msgspec.json.decode(sys.stdin.readline(), type=Task)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
    django.setup()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_run(task))
    return 0


if __name__ == "__main__":
    sys.exit(main())
