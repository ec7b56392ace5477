"""The product's own web process with floors added: what the same server costs when it answers a constant.

Started as `python -m tests.bench.serving` in place of `python -m gpuplane.serve`. `POST /bench/floor/<n>` reads the
whole body and answers n bytes of JSON, through the same door, event loop and functions for reading and answering;
`POST /bench/commit/<n>` first commits one event in a thread; `GET /bench/memory` says what this process occupies;
`WS /bench/sink/<name>` takes frames and drops them; `GET /bench/pulse` says what `Pulse` counted since it was asked
last. Invariants: nothing of the product is changed, and a request to any other path takes the product's way after one
comparison.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from gpuplane.listeners import App, Receive, Scope, Send

FLOOR = "/bench/floor/"
COMMIT = "/bench/commit/"
MEMORY = "/bench/memory"
SINK = "/bench/sink/"
PULSE = "/bench/pulse"
BEAT_SECONDS = 0.005


def with_floor(application: App) -> App:
    """The application, and the paths of the bench."""
    from gpuplane.listeners.answers import send_json
    from gpuplane.listeners.bodies import BudgetHold, read_body
    from gpuplane.listeners.body_limits import Budget
    from gpuplane.listeners.threads import FILTERS, in_thread

    threads = ThreadPoolExecutor(FILTERS, thread_name_prefix="bench")
    budget = Budget("bench", 1 << 30)
    pulse = Pulse()

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if not path.startswith("/bench/"):
            await application(scope, receive, send)
        elif scope["type"] == "websocket":
            await sink(receive, send)
        elif path == PULSE:
            await send_json(send, 200, orjson.dumps(pulse.told()))
        elif path == MEMORY:
            await send_json(send, 200, orjson.dumps(memory_bytes()))
        else:
            with BudgetHold(budget) as held:
                await read_body(scope, receive, limit=1 << 30, held=held)
            if path.startswith(COMMIT):
                await in_thread(threads, commit_one)
            await send_json(send, 200, constant(int(path.rpartition("/")[2])))

    return served


async def sink(receive: Receive, send: Send) -> None:
    """The least that a socket costs: frames are taken and dropped."""
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] == "websocket.receive":
        pass


class Pulse:
    """How long the event loop was kept from a timer that is due every BEAT_SECONDS, and the CPU time of the process.

    It beats once it was asked.
    """

    def __init__(self) -> None:
        self._late: deque[tuple[float, float, float]] = deque(maxlen=200_000)
        self._beating: asyncio.Task[None] | None = None
        self._cpu = 0.0
        self._began = 0.0
        self._collected: list[float] = []
        self._collecting = 0.0
        gc.callbacks.append(self._collects)

    def told(self) -> dict[str, Any]:
        """Since it was asked last: seconds, CPU seconds, each delay with the CPU time of the loop's thread and of the
        process in it, collections of garbage; samples taken and refused, in all.
        """
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat())
        late, self._late = list(self._late), deque(maxlen=200_000)
        cpu, now = time.process_time(), time.monotonic()
        collected, self._collected = self._collected, []
        found = {
            "seconds": now - self._began,
            "cpu": cpu - self._cpu,
            "late": late,
            "garbage": {"seconds": sum(collected), "most": max(collected, default=0.0)},
            **_frames(),
        }
        self._cpu, self._began = cpu, now
        return found

    def _collects(self, phase: str, _: dict[str, int]) -> None:
        """Called by the collector of garbage; times are CPU time of the thread that it came upon."""
        if phase == "start":
            self._collecting = time.thread_time()
        else:
            self._collected.append(time.thread_time() - self._collecting)

    async def _beat(self) -> None:
        while True:
            began, own, whole = time.perf_counter(), time.thread_time(), time.process_time()
            await asyncio.sleep(BEAT_SECONDS)
            self._late.append(
                (time.perf_counter() - began - BEAT_SECONDS, time.thread_time() - own, time.process_time() - whole)
            )


def _frames() -> dict[str, float]:
    from prometheus_client import REGISTRY

    from nodes.live.ingest import REFUSED

    taken = REGISTRY.get_sample_value("gpuplane_agent_frames_total", {"kind": "sample"}) or 0.0
    refused = sum(one.value for family in REFUSED.collect() for one in family.samples if one.name.endswith("_total"))
    return {"taken": taken, "refused": refused}


def commit_one() -> None:
    """The least that is lasting: one event in a transaction of its own."""
    from django.db import transaction

    from audit.choices import EventKind
    from audit.services import record

    with transaction.atomic():
        record(kind=EventKind.ALLOCATION_HELD, message="bench", actor="bench", now=datetime.now(UTC))


def constant(size: int) -> bytes:
    """A JSON string of `size` bytes, made once."""
    if size not in _constants:
        _constants[size] = b'"' + b"x" * max(size - 2, 0) + b'"'
    return _constants[size]


_constants: dict[int, bytes] = {}


def memory_bytes() -> dict[str, int]:
    """`rss` and `pss` of this process, in bytes, after a collection of garbage."""
    gc.collect()
    found = {"rss": 0, "pss": 0}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.lower() in found:
            found[name.lower()] = int(rest.split()[0]) * 1024
    return found


def main() -> int:
    """`gpuplane.serve` with the application wrapped."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuplane.settings")
    from gpuplane import asgi, serve

    asgi.application = with_floor(asgi.application)  # type: ignore[assignment]  # serve only calls it
    return serve.main()


if __name__ == "__main__":
    sys.exit(main())
