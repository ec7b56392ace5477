"""The gateway beside talking to a runtime directly, and beside a bare proxy.

Called by `run`. A runtime, a bare ASGI proxy and the product's web process run as processes of their own; the client is
this one. Invariants: all are asked by the same code with the same bytes but for the token, in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import uvloop

from inference.models import Slot
from tests.bench.figures import Aim, Figure, Report, quantile
from tests.bench.over_http import bench
from tests.servers import session
from tests.slots import SlotWorld

STREAMS = 200
IDLE = 2_000
RATE = 100
PARALLEL = 8_192
LAST_SECONDS = 0.1
PATH = "/v1/chat/completions"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Door:
    """Where requests are sent, and the process behind it."""

    port: int
    token: str = ""
    pid: int = 0

    def request(self, **fields: Any) -> bytes:
        body = orjson.dumps({"model": "chat", "messages": [{"role": "user", "content": "Why?" * 50}], **fields})
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        if self.token:
            head += f"authorization: Bearer {self.token}\r\n"
        return head.encode() + b"\r\n" + body

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


class Client(asyncio.Protocol):
    """One connection that counts what comes."""

    def __init__(self) -> None:
        self.first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.over: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.received = b""
        self.transport: Any = None
        self.pieces = 0
        self.streams = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.over.done():
            return
        if not self.first.done():
            self.received += data
            head, separator, data = self.received.partition(b"\r\n\r\n")
            self.streams = b"chunked" in head.lower()
            if not separator or not data:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self.first.set_exception(RuntimeError(self.received[:400].decode("latin-1")))
                return
            self.first.set_result(time.monotonic_ns())
        self.pieces += data.count(b"data: ")
        if data.endswith(b"0\r\n\r\n") if self.streams else len(data) == 20:
            self.over.set_result(data)

    def connection_lost(self, exc: Exception | None) -> None:
        for one in (self.first, self.over):
            if not one.done():
                one.set_exception(exc or ConnectionResetError("closed"))
                one.exception()

    def again(self) -> None:
        """For another request on the connection."""
        loop = asyncio.get_running_loop()
        self.first, self.over, self.received = loop.create_future(), loop.create_future(), b""


@contextlib.asynccontextmanager
async def connected(door: Door) -> AsyncIterator[Client]:
    transport, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", door.port)
    try:
        yield client
    finally:
        transport.abort()


def measure_gateway(report: Report, folder: Path, vendor: str, *, rounds: int, seconds: float) -> None:
    """All of it on one database."""
    with _doors(folder, vendor) as (runtime, proxy, product):
        uvloop.run(_measured(report, vendor, runtime, proxy, product, rounds=rounds, seconds=seconds))


async def _measured(
    report: Report, vendor: str, runtime: Door, proxy: Door, product: Door, *, rounds: int, seconds: float
) -> None:
    for door in (runtime, proxy, product):
        await _asked(door, 20)
    await _first_bytes(report, vendor, runtime, proxy, product, rounds=rounds, seconds=seconds)
    await _dispatched(report, vendor, runtime, product, seconds=seconds)
    await _chunks(report, vendor, proxy, product, rounds=rounds)
    await _idle(report, vendor, product)


async def _asked(door: Door, count: int) -> None:
    async with connected(door) as client:
        for _ in range(count):
            client.again()
            client.transport.write(door.request())
            await client.over


async def _first_bytes(
    report: Report, vendor: str, runtime: Door, proxy: Door, product: Door, *, rounds: int, seconds: float
) -> None:
    """Time to the first byte of new streams, while STREAMS are open, each new one on a connection of its own."""
    chance = random.Random(17)
    found: dict[int, list[int]] = {runtime.port: [], proxy.port: [], product.port: []}
    for _ in range(max(rounds // 10, 1)):
        for door in (runtime, proxy, product):
            ends = time.monotonic() + seconds
            delays = [
                chance.uniform(0.0, min(seconds, 5.0)) for _ in range(STREAMS)
            ]  # else all pieces come at the same moments
            some = await asyncio.gather(*(_streaming(door, ends, delay=delay) for delay in delays))
            found[door.port] += [one for each in some for one in each]
    direct, bare, through = (sorted(found[door.port]) for door in (runtime, proxy, product))
    half, most = ((quantile(through, part) - quantile(direct, part)) / 1e6 for part in (0.5, 0.99))
    report.add(
        Figure(
            f"gateway, time to the first byte, {STREAMS} streams",
            vendor,
            "ms",
            quantile(through, 0.5) / 1e6,
            p99=quantile(through, 0.99) / 1e6,
            floor=quantile(direct, 0.5) / 1e6,
            floor_p99=quantile(direct, 0.99) / 1e6,
            samples=len(through),
            aims=[Aim("added p50 ≤ 3 ms", half, 3), Aim("added p99 ≤ 15 ms", most, 15)],
            note=f"a bare ASGI proxy adds {(quantile(bare, 0.5) - quantile(direct, 0.5)) / 1e6:.2f} ms",
        )
    )


async def _streaming(door: Door, ends: float, *, delay: float) -> list[int]:
    """One stream of 5 s after the other. Nanoseconds to each first byte.

    None begins in the last moments: timers of the loop end up to a millisecond early, so that a tenth of all streams
    would begin at the one moment at which all of them are broken off.
    """
    request = door.request(tokens=100, gap=0.05, stream=True)
    found: list[int] = []
    await asyncio.sleep(delay)
    while time.monotonic() < ends - LAST_SECONDS:
        async with connected(door) as client:
            began = time.monotonic_ns()
            client.transport.write(request)
            found.append(await client.first - began)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(ends - time.monotonic(), 0)):
                    await client.over
    return found


async def _dispatched(report: Report, vendor: str, runtime: Door, product: Door, *, seconds: float) -> None:
    """From the client to the runtime at RATE requests a second, whatever the answers take."""
    found: dict[int, list[int]] = {}
    for door in (runtime, product):
        clients: list[Client] = []

        async def one(door: Door, clients: list[Client]) -> int:
            if clients:
                client = clients.pop()
                client.again()
            else:
                _, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", door.port)
            began = time.monotonic_ns()
            client.transport.write(door.request())
            answer = await client.over
            clients.append(client)
            return int(answer) - began

        tasks, began = [], time.monotonic()
        for number in range(int(seconds * RATE)):
            await asyncio.sleep(max(began + number / RATE - time.monotonic(), 0))
            tasks.append(asyncio.create_task(one(door, clients)))
        found[door.port] = sorted(await asyncio.gather(*tasks))
        for client in clients:
            client.transport.abort()
    direct, through = found[runtime.port], found[product.port]
    p99 = quantile(through, 0.99) / 1e6
    report.add(
        Figure(
            f"gateway, warm dispatch, {RATE} requests a second",
            vendor,
            "ms",
            quantile(through, 0.5) / 1e6,
            p99=p99,
            floor=quantile(direct, 0.5) / 1e6,
            floor_p99=quantile(direct, 0.99) / 1e6,
            samples=len(through),
            aims=[Aim("p99 ≤ 20 ms", p99, 20)],
        )
    )


async def _chunks(report: Report, vendor: str, proxy: Door, product: Door, *, rounds: int) -> None:
    """CPU of the process for a piece of a stream, its request included."""
    found: dict[int, list[float]] = {proxy.port: [], product.port: []}
    for _ in range(max(rounds // 6, 1)):
        for door in (proxy, product):
            before = door.cpu_seconds()
            pieces = sum(await asyncio.gather(*(_pieces(door) for _ in range(50))))
            found[door.port].append((door.cpu_seconds() - before) / pieces * 1e6)
    floor, value = (statistics.median(found[door.port]) for door in (proxy, product))
    report.add(
        Figure(
            "gateway, CPU for a streamed piece",
            vendor,
            "µs",
            value,
            floor=floor,
            samples=len(found[product.port]),
            aims=[Aim("≤ 2 × floor", value / floor, 2)],
            note="the floor is a bare ASGI proxy",
        )
    )


async def _pieces(door: Door) -> int:
    async with connected(door) as client:
        client.transport.write(door.request(tokens=200, gap=0.01, stream=True))
        await client.over
        return client.pieces


async def _idle(report: Report, vendor: str, product: Door) -> None:
    """Streams that say nothing after their first piece: all are there, and what they cost."""
    before = _rss(product.pid)
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for _ in range(IDLE):
            client = await stack.enter_async_context(connected(product))
            client.transport.write(product.request(tokens=2, gap=600, stream=True))
            clients.append(client)
            if len(clients) % 20 == 0:
                await asyncio.gather(*(one.first for one in clients[-20:]))
        cpu = product.cpu_seconds()
        await asyncio.sleep(5)
        cpu = (product.cpu_seconds() - cpu) / 5
        held = sum(not one.over.done() for one in clients)
        kib = (_rss(product.pid) - before) / IDLE / 1024
    report.add(
        Figure(
            f"gateway, {IDLE:,} idle streams: held",
            vendor,
            "streams",
            held,
            aims=[Aim(f"all {IDLE:,}", IDLE - held, 0)],
            note=f"{kib:.0f} KiB each, CPU of the process meanwhile {cpu:.1%}",
        )
    )


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@contextlib.contextmanager
def _doors(folder: Path, vendor: str) -> Iterator[tuple[Door, Door, Door]]:
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(_program("runtime"))
        proxy = stack.enter_context(_program("proxy", f"127.0.0.1:{runtime.port}"))
        at = stack.enter_context(bench(vendor, folder / f"gateway-{vendor}", 0))
        world = SlotWorld()
        world.runner(gpus=1, memory=80)
        world.model(runtime="simulated", parallel=PARALLEL, keep_warm=1)
        world.converge()
        Slot.objects.update(address=f"127.0.0.1:{runtime.port}")
        port = int(at.app.url.rpartition(":")[2])
        yield runtime, proxy, Door(port, at.app.token(), _pid(port))


@contextlib.contextmanager
def _program(*words: str) -> Iterator[Door]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    name = f"{words[0]}-{next(_numbers)}"
    folder = session.enter() / name
    folder.mkdir()
    command = [sys.executable, "-m", "tests.bench.streaming", words[0], str(port), *words[1:]]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    session.start(name, command, folder=folder, environment=environment)
    try:
        _until(lambda: _listens(port))
        yield Door(port, pid=_pid(port))
    finally:
        session.stop(name)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("a process does not listen")
        time.sleep(0.05)


def _pid(port: int) -> int:
    """The process that listens at the port."""
    wanted = f":{port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(wanted) and fields[3] == "0A":
            inode = f"socket:[{fields[9]}]"
            break
    else:
        raise RuntimeError(f"nobody listens at {port}")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()) == inode:
                return int(link.parts[2])
    raise RuntimeError(f"nobody has {inode}")
