"""The agent by itself: what it takes from a GPU node, against a server that only acknowledges; and what a look at a
node costs the driver.

Called by `run`. Invariants: the agent is the real program in a process of its own; the floor is an interpreter with an
event loop that wakes as often and sends as many bytes. The driver is the tests' make-believe one, so calls are counted,
and times are those of Python around them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from agent.protocol import Ack, Details, Sample, decode, encode
from agent.sources.nvml import NvmlSource
from tests.bench.figures import Aim, Figure, Report, timed_figure
from tests.bench.in_process import timed
from tests.bench.wire import Rounds
from tests.unit.agent.fake_nvml import Card, FakeNvml

SETTLE_SECONDS = 5.0
MOST_CPU_MS = 10.0
MOST_MB = 60.0
GPUS = 8
LINKS = 18
PROCESSES = 8
_FLOOR = """
import asyncio, socket, sys
async def main():
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as wire:
        while True:
            await asyncio.to_thread(wire.sendall, bytes(420))
            await asyncio.sleep(1)
asyncio.run(main())
"""


@dataclass
class Used:
    """By a process, over a while."""

    cpu_ms_a_second: float
    rss_mb: float
    pss_mb: float
    threads: int


def measure_alone(report: Report, *, seconds: float) -> None:
    """All of it."""
    with _acknowledging() as (port, samples), socket.create_server(("127.0.0.1", 0)) as dumb:
        place = dumb.getsockname()[1]
        floor = subprocess.Popen([sys.executable, "-c", _FLOOR, str(place)])
        command = [sys.executable, "-m", "agent", "--source", "simulated:h100-8", "--node", "bench", "--checkpoint", ""]
        agent = subprocess.Popen(
            [*command, "--server", f"http://127.0.0.1:{port}"], env={**os.environ, "GPUPLANE_TOKEN": "bench"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wire, _ = dumb.accept()
        threading.Thread(target=_drain, args=(wire,), daemon=True).start()
        try:
            time.sleep(SETTLE_SECONDS)
            before, began = len(samples), time.monotonic()
            marks = [_cpu_ms(one.pid) for one in (agent, floor)]
            time.sleep(seconds)
            took = time.monotonic() - began
            used, least = (_used(one.pid, mark, took) for one, mark in zip((agent, floor), marks, strict=True))
            told = len(samples) - before
        finally:
            for one in (agent, floor):
                one.terminate()
                one.wait(20)
            wire.close()
    _report_used(report, used, least, told=told, seconds=took)
    _report_driver(report)


def _report_used(report: Report, used: Used, least: Used, *, told: int, seconds: float) -> None:
    note = f"{told} samples in {seconds:.0f} s; the floor wakes as often and sends as much"
    report.add(
        Figure(
            "agent, 8 GPUs: CPU a second",
            "",
            "ms",
            used.cpu_ms_a_second,
            floor=least.cpu_ms_a_second,
            aims=[Aim(f"at most {MOST_CPU_MS:.0f} ms", used.cpu_ms_a_second, MOST_CPU_MS)],
            note=note,
        )
    )
    report.add(
        Figure(
            "agent, 8 GPUs: memory (rss)",
            "",
            "MB",
            used.rss_mb,
            floor=least.rss_mb,
            aims=[Aim(f"at most {MOST_MB:.0f} MB", used.rss_mb, MOST_MB)],
            note=f"pss {used.pss_mb:.0f}; {used.threads} threads",
        )
    )


def _report_driver(report: Report) -> None:
    calls, times = count_calls(links=LINKS, processes=PROCESSES)
    for name in ("machine", "read"):
        report.add(
            Figure(
                f"agent, driver calls of {name}(), {GPUS} GPUs × {LINKS} links",
                "",
                "",
                sum(calls[name].values()),
                note=", ".join(f"{call.removeprefix('nvml')} {count}" for call, count in calls[name].most_common(4)),
            )
        )
    rounds = Rounds(product=[[took] for took, _ in times], floor=[[inside] for _, inside in times])
    report.add(timed_figure("agent, read()", rounds, note="the floor is the make-believe driver's own part"))


def count_calls(
    *, links: int, processes: int, looks: int = 50
) -> tuple[dict[str, Counter[str]], list[tuple[int, int]]]:
    """(function → driver calls of one of it, nanoseconds of each `read` and of the driver in it)."""
    cards = [
        Card(f"GPU-{minor}", minor, links=["switch"] * links, processes={1000 + pid: 2**30 for pid in range(processes)})
        for minor in range(GPUS)
    ]
    driver = Counting(FakeNvml(*cards))
    with tempfile.TemporaryDirectory() as empty:
        source = NvmlSource(sys=Path(empty), nv=driver)
        machine = source.machine()
        found = {"machine": driver.taken()}
        source.read(machine)
        driver.taken()  # names of processes are asked for once
        source.read(machine)
        found["read"] = driver.taken()
        driver.inside = 0
        return found, [(timed(lambda: source.read(machine)), driver.taken_inside()) for _ in range(looks)]


class Counting:
    """A driver, and how often each of its functions was called."""

    def __init__(self, nv: FakeNvml) -> None:
        self._nv = nv
        self._calls: Counter[str] = Counter()
        self._known: dict[str, Any] = {}
        self.inside = 0

    def taken_inside(self) -> int:
        """Nanoseconds since the last time."""
        inside, self.inside = self.inside, 0
        return inside

    def taken(self) -> Counter[str]:
        """Since the last time."""
        calls, self._calls = self._calls, Counter()
        return calls

    def __getattr__(self, name: str) -> Any:
        known = self._known.get(name)
        if known is None:
            known = getattr(self._nv, name)
            if name.startswith("nvml") and not name.startswith("nvmlEventType"):
                known = self._counted(name, known)
            self._known[name] = known
        return known

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self._calls[name] += 1
            began = time.perf_counter_ns()
            try:
                return call(*args)
            finally:
                self.inside += time.perf_counter_ns() - began

        return counted


@contextmanager
def _acknowledging() -> Iterator[tuple[int, Sequence[float]]]:
    """(port of a server that acknowledges everything, when samples came)."""
    logging.getLogger("websockets.server").setLevel(logging.WARNING)
    samples: list[float] = []
    opened: list[int] = []
    begun, loop, over = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def one(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            async for body in connection:
                frame = decode(body)  # type: ignore[arg-type]  # frames are binary
                if isinstance(frame, Sample):
                    samples.append(time.monotonic())
                elif not isinstance(frame, Details):
                    await connection.send(encode(Ack(frame.boot, frame.seq, time.time())))

    async def run() -> None:
        async with serve(one, "127.0.0.1", 0, compression=None) as server:
            opened.append(next(iter(server.sockets)).getsockname()[1])
            begun.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    begun.wait(10)
    try:
        yield opened[0], samples
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
        loop.close()


def _drain(wire: socket.socket) -> None:
    try:
        while wire.recv(1 << 16):
            pass
    except OSError:
        return  # closed at the end


def _cpu_ms(pid: int) -> float:
    """Of all its threads, to the nanosecond, where `stat` counts hundredths of seconds."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6


def _used(pid: int, mark: float, seconds: float) -> Used:
    told = dict(
        line.split(":", 1)
        for name in ("status", "smaps_rollup")
        for line in Path(f"/proc/{pid}/{name}").read_text().splitlines()
        if ":" in line
    )
    return Used(
        (_cpu_ms(pid) - mark) / seconds,
        int(told["VmRSS"].split()[0]) / 1000,
        int(told["Pss"].split()[0]) / 1000,
        int(told["Threads"]),
    )
