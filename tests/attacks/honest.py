"""Those who must be served whatever happens, in a process of their own:
`python -m tests.attacks.honest TARGET.json RECORD`.

A prober (`/livez` each 100 ms on a connection of its own, as a kubelet does), a kube-scheduler (filter after filter on
the loopback extender), an API server (mutate over TLS), an agent's session, a browser's page and its stream; and beside
them the reference, which is no part of the product. Each request is two lines of RECORD: what and when it began (by the
machine's monotonic clock), and with its end the same, how many seconds it took, and what went wrong, if anything. Ends
with its stdin.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TextIO

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.typing import Origin

from agent.protocol import Hello, Inventory, Sample, decode_ack, encode
from tests.attacks.target import HOST, Target
from tests.attacks.wire import GONE, Wire, connected

PATIENCE_SECONDS = 10.0
LIVEZ, FILTER, MUTATE, AGENT, PAGE, STREAM = "livez", "filter", "mutate", "agent", "page", "stream"
REFERENCE = "compare"
"""The same work each time, in a process that nobody attacks: `tests.attacks.reference`."""
STILL = "still"
"""This process itself stood still, since others had the cores: no time of the product's."""
KINDS = (LIVEZ, FILTER, MUTATE, AGENT, PAGE, STREAM, REFERENCE)
LIVEZ_EACH_SECONDS = 0.1
FILTER_EACH_SECONDS = 0.05
TICK_SECONDS = 0.02
GPUS = 8


class Record:
    """The file of what was seen."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def begin(self, kind: str, began: float) -> None:
        """One request that begins: one that has no end yet must not go unseen."""
        self._file.write(json.dumps({"kind": kind, "at": began}) + "\n")

    def note(self, kind: str, began: float, problem: str = "") -> None:
        """One request that ended now."""
        line = {"kind": kind, "at": began, "seconds": time.monotonic() - began, "problem": problem}
        self._file.write(json.dumps(line) + "\n")

    async def asked(self, kind: str, ask: Callable[[], Awaitable[str]]) -> None:
        """Note one request: `ask` says what went wrong, or nothing."""
        began = time.monotonic()
        self.begin(kind, began)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                problem = await ask()
        except TimeoutError:
            problem = f"no answer within {PATIENCE_SECONDS:.0f} s"
        except (*GONE, WebSocketException) as error:
            problem = f"{type(error).__name__}: {error}"
        self.note(kind, began, problem)


async def tick(_target: Target, record: Record) -> None:
    """Note when this process was not run though it was due."""
    while True:
        due = time.monotonic() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        if time.monotonic() > due + TICK_SECONDS:
            record.note(STILL, due)


async def probe(target: Target, record: Record) -> None:
    """`/livez` at every moment: the next one is asked whether or not the last one was answered."""

    async def ask() -> str:
        async with connected(target.main) as wire:
            answer = await wire.ask("GET", "/livez", headers={"Connection": "close"})
        return "" if answer.status == 200 else f"status {answer.status}"

    async with asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(record.asked(LIVEZ, ask))
            await asyncio.sleep(LIVEZ_EACH_SECONDS)


async def kept(
    target: Target, record: Record, kind: str, each_seconds: float, ask: Callable[[Wire], Awaitable[str]]
) -> None:
    """Requests one after another on a connection that is kept; a new one after a failure."""
    listener = {FILTER: target.extender, MUTATE: target.webhook}.get(kind, target.main)
    while True:
        try:
            async with connected(listener, limit=1 << 20) as wire:
                failed = False

                async def once(wire: Wire = wire) -> str:
                    nonlocal failed
                    failed = True
                    problem = await ask(wire)
                    failed = False
                    return problem

                while not failed:
                    await record.asked(kind, once)
                    await asyncio.sleep(each_seconds)
        except OSError as error:
            record.note(kind, time.monotonic(), f"cannot connect: {error}")
            await asyncio.sleep(each_seconds)


def pod(name: str) -> dict[str, Any]:
    """A pod that waits for two whole GPUs."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "research", "uid": f"attack-{name}", "annotations": {}},
        "spec": {
            "schedulerName": "gpu-scheduler",
            "containers": [{"name": "main", "image": "cuda", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
        },
        "status": {"phase": "Pending"},
    }


async def schedule(target: Target, record: Record) -> None:
    """Filters of a few pods in turn, so that each plans anew."""
    names = list(target.nodes)
    bodies = itertools.cycle([json.dumps({"Pod": pod(f"p{n}"), "NodeNames": names}).encode() for n in range(4)])

    async def ask(wire: Wire) -> str:
        answer = await wire.ask(
            "POST", "/extender/filter", body=next(bodies), headers={"Content-Type": "application/json"}
        )
        if answer.status != 200:
            return f"status {answer.status}: {answer.body[:200]!r}"
        told = json.loads(answer.body)
        return told["Error"] or ("" if told["NodeNames"] else f"no node: {answer.body[:200]!r}")

    await kept(target, record, FILTER, FILTER_EACH_SECONDS, ask)


async def compare(_target: Target, record: Record) -> None:
    """What the machine takes for work like filter's, at filter's pace."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.attacks.reference",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    to_it, from_it = worker.stdin, worker.stdout

    async def ask() -> str:
        to_it.write(b"work\n")
        return "" if await from_it.readline() else "the reference ended"

    try:
        while True:
            await record.asked(REFERENCE, ask)
            await asyncio.sleep(FILTER_EACH_SECONDS)
    finally:
        to_it.close()
        await worker.wait()


async def admit(target: Target, record: Record) -> None:
    """Pods being created."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "honest",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "research",
            "name": "honest",
            "userInfo": {"username": "jane"},
            "object": pod("honest"),
            "oldObject": None,
            "dryRun": False,
        },
    }
    body = json.dumps(review).encode()

    async def ask(wire: Wire) -> str:
        answer = await wire.ask(
            "POST", "/webhooks/pods/mutate", body=body, headers={"Content-Type": "application/json"}
        )
        return "" if answer.status == 200 else f"status {answer.status}: {answer.body[:200]!r}"

    await kept(target, record, MUTATE, 0.5, ask)


async def look(target: Target, record: Record) -> None:
    """A page each second."""

    async def ask(wire: Wire) -> str:
        answer = await wire.ask("GET", "/nodes/", headers={"Cookie": target.session})
        return "" if answer.status == 200 else f"status {answer.status}"

    await kept(target, record, PAGE, 1.0, ask)


async def watch(target: Target, record: Record) -> None:
    """The stream of the fleet: what is noted is the time from frame to frame."""
    headers = {"Cookie": target.session}
    uri = f"ws://{HOST}:{target.main.port}/ws/fleet/"

    async def session() -> None:
        origin = Origin(f"http://{HOST}:{target.main.port}")
        async with connect(uri, additional_headers=headers, origin=origin, compression=None) as socket:

            async def ask() -> str:
                await socket.recv()
                return ""

            while socket.close_code is None:
                await record.asked(STREAM, ask)

    await again(record, STREAM, session)


async def speak(target: Target, record: Record) -> None:
    """An agent: a sample each 0.25 s, and a ping whose pong is waited for."""
    uri = f"ws://{HOST}:{target.main.port}/ws/agents/{target.agent_node}/"
    boots = itertools.count()

    async def session() -> None:
        headers = {"Authorization": f"Bearer {target.tokens['agent']}"}
        async with connect(uri, additional_headers=headers, compression=None, open_timeout=PATIENCE_SECONDS) as socket:
            boot, numbers = f"honest-{time.time()}-{next(boots)}", itertools.count(1)
            hello = Hello(boot, next(numbers), time.time(), target.agent_node, "attacks")
            await record.asked(AGENT, lambda: acknowledged(socket, encode(hello)))
            inventory = Inventory(boot, next(numbers), time.time(), shape(target.agent_node))
            await record.asked(AGENT, lambda: acknowledged(socket, encode(inventory)))
            while socket.close_code is None:

                async def ask() -> str:
                    sample = Sample(boot, next(numbers), time.time(), utilisation_percent=[50] * GPUS)
                    await socket.send(encode(sample))
                    await (await socket.ping())
                    return ""

                await record.asked(AGENT, ask)
                await asyncio.sleep(0.25)

    await again(record, AGENT, session)


async def acknowledged(socket: ClientConnection, frame: bytes) -> str:
    """The problem that the server's answer names."""
    await socket.send(frame)
    told = await socket.recv()
    assert isinstance(told, bytes)
    return decode_ack(told).problem


async def again(record: Record, kind: str, session: Callable[[], Awaitable[None]]) -> None:
    """Session after session; each end is a problem, since nobody but the server ends it."""
    while True:
        began = time.monotonic()
        try:
            await session()
            problem = "the session ended"
        except (*GONE, WebSocketException) as error:
            problem = f"{type(error).__name__}: {error}"
        record.note(kind, began, problem)
        await asyncio.sleep(0.5)


def shape(name: str) -> dict[str, Any]:
    """A node's inventory."""
    return {
        "name": name,
        "devices": [
            {"minor": minor, "type": "gpu", "uuid": f"GPU-{name}-{minor}", "model": "H100", "memory": "80Gi"}
            for minor in range(GPUS)
        ],
        "links": [],
    }


async def everybody(target: Target, record: Record) -> None:
    """Until stdin ends. Raises what any of them raises: a defect here must not look like a quiet product."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(
        target=wait, daemon=True
    ).start()  # asyncio would wait for a thread of its own, even after a failure
    tasks = [
        asyncio.create_task(one(target, record)) for one in (tick, probe, schedule, compare, admit, look, watch, speak)
    ]
    over = asyncio.create_task(ended.wait())
    done, _ = await asyncio.wait([*tasks, over], return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, over):
        task.cancel()
    for task in done - {over}:
        task.result()


def main() -> int:
    """Command line."""
    target, record = sys.argv[1:]
    with Path(record).open("w", buffering=1) as file:
        asyncio.run(everybody(Target.read(Path(target)), Record(file)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
