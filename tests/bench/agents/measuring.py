"""Agents by the thousand at one sample a second into one web process on SQLite, browsers, the scheduler's questions and
the worker's roll-up beside them.

Called by `run`. Two processes serve: one whose sockets drop every frame (the floor), then the product; at the end a
third answers the scheduler while the second has the agents. Invariants: both get the same crowd and the same bytes;
what is measured is measured between two marks, after every agent is connected; nothing is left out of the middle.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import orjson
import redis as redis_client
from django.conf import settings

from agent.protocol import decode
from nodes.history import ring
from nodes.live.samples import DETAILS_KEY, SAMPLES_KEY, SampleTable, SampleView
from nodes.models import Device
from tests.bench import bodies, fleets, over_http
from tests.bench.agents import frames
from tests.bench.agents.crowd import Task
from tests.bench.agents.printing import Run, report_run
from tests.bench.figures import Report
from tests.bench.over_http import Bench, placed
from tests.bench.serving import FLOOR, PULSE, SINK
from tests.bench.wire import Rounds
from tests.factories import PASSWORD, UserFactory, agent_tokens
from tests.servers import redis

FLOOR_SECONDS = 15.0
SETTLE_SECONDS = 5.0
APART_SECONDS = 20.0
QUESTIONS_A_SECOND = 4
LOOKS = ["utilisation", "core,memory,utilisation,memory_in_use,temperature,power,nvlink"]


class Crowd:
    """The process that makes the load."""

    def __init__(self, task: Task) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.agents.crowd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._say(orjson.dumps(msgspec.to_builtins(task)))
        self.ramp = self._hear()
        if self.ramp["lost"]:
            raise RuntimeError(f"{self.ramp['lost']} agents were not let in: {self.ramp['why']}")

    def _say(self, line: bytes) -> None:
        self._in.write(line + b"\n")
        self._in.flush()

    def _hear(self) -> dict[str, Any]:
        line = self._out.readline()
        if not line:
            raise RuntimeError("the crowd has ended; its words are above")
        return cast("dict[str, Any]", orjson.loads(line))

    def mark(self) -> None:
        """Count from here."""
        self._say(b"mark")

    def tell(self) -> dict[str, Any]:
        """What was counted since."""
        self._say(b"tell")
        return self._hear()

    def stop(self) -> None:
        """The end of it."""
        with contextlib.suppress(BrokenPipeError):
            self._say(b"stop")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def crowd(task: Task) -> Iterator[Crowd]:
    """Connected."""
    made = Crowd(task)
    try:
        yield made
    finally:
        made.stop()


def measure_agents(report: Report, folder: Path, *, agents: int, seconds: float) -> None:
    """All of it."""
    run = Run(agents=agents)
    run.decode_us = _decode_us()
    with over_http.bench("sqlite", folder / "sink", 0) as at:
        nodes = [(name, [""]) for name in fleets.names(agents)]
        run.floor_before = at.memory()
        with crowd(_task(at, nodes, path=SINK + "{}", speaks=False)) as them:
            run.floor_ramp = them.ramp
            time.sleep(SETTLE_SECONDS)
            them.mark()
            _pulse(at)
            time.sleep(FLOOR_SECONDS)
            run.floor_pulse, run.floor_crowd = _pulse(at), them.tell()
            run.floor_after = at.memory()
    redis.empty(redis.server_url("bench"))
    with over_http.bench("sqlite", folder / "agents", agents) as at:
        run.rest = over_http.measure_filter(at, Report({}, quiet=True), rounds=4, each=25, aims=False)
        run.before = at.memory()
        _pulse(at)
        task = _task(at, _nodes(), path="/ws/agents/{}/", cookie=_cookie(at.app.url), looks=LOOKS)
        with crowd(task) as them:
            run.ramp = them.ramp
            time.sleep(SETTLE_SECONDS)
            _measure(run, at, them, seconds)
            with over_http.beside(at) as apart:
                _ask_for(SETTLE_SECONDS, apart, Rounds())  # it has yet to read the fleet
                _ask_for(APART_SECONDS, apart, run.asked_apart)
                apart.give_back_all()
    report_run(report, run)


def _measure(run: Run, at: Bench, them: Crowd, seconds: float) -> None:
    """Between two marks, at least `seconds`, until a whole minute has been rolled up."""
    connection = redis_client.Redis.from_url(redis.server_url("bench"))
    them.tell()  # raises where a browser was not let in
    them.mark()
    run.pulse_before = _pulse(at)
    began, used = time.monotonic(), _redis_cpu(connection)
    until = max(seconds, -time.time() % 60 + 60 + 5)
    minute: subprocess.Popen[bytes] | None = None
    asked = 0
    while time.monotonic() < began + until or minute is None or minute.poll() is None:
        if minute is None and time.monotonic() > began + until - 1:
            minute = _roll_up(at)
        into = run.asked_in_minute if minute is not None else run.asked
        _ask(at, into, asked)
        asked += 1
        time.sleep(max(0.0, began + asked / QUESTIONS_A_SECOND - time.monotonic()))
    run.pulse, run.crowd = _pulse(at), them.tell()
    run.redis_cpu = (_redis_cpu(connection) - used) / run.pulse["seconds"]
    assert minute.stdout is not None
    run.minute = orjson.loads(minute.stdout.read())
    run.after = at.memory()
    _look_at_redis(run, connection)
    connection.close()
    at.give_back_all()


def _roll_up(at: Bench) -> subprocess.Popen[bytes]:
    environment = {
        **at.app.database.environment,
        "GPUPLANE_REDIS_URL": redis.server_url("bench"),
        "GPUPLANE_LOG_LEVEL": "warning",
    }
    command = [sys.executable, "-m", "tests.bench.agents.minute"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


def _ask_for(seconds: float, at: Bench, into: Rounds) -> None:
    began = time.monotonic()
    for asked in itertools.count():
        if time.monotonic() > began + seconds:
            return
        _ask(at, into, asked)
        time.sleep(max(0.0, began + asked / QUESTIONS_A_SECOND - time.monotonic()))


def _ask(at: Bench, into: Rounds, number: int) -> None:
    """One question of the scheduler and one of the floor."""
    [name] = at.fresh_names(1)
    pod = bodies.pod(name, bodies.MIX[number % len(bodies.MIX)])
    at.asked.append(pod["metadata"]["uid"])
    body = bodies.names_body(pod, at.lists[number % len(at.lists)])
    took, answer = at.wire.timed(at.wire.request("/extender/filter", body))
    placed(answer)
    into.product.append([took])
    into.floor.append([at.wire.timed(at.wire.request(f"{FLOOR}{len(answer)}", body))[0]])
    at.give_back_one()


def _task(at: Bench, nodes: list[tuple[str, list[str]]], **more: Any) -> Task:
    return Task(url=at.app.url, tokens=agent_tokens([name for name, _ in nodes]), nodes=nodes, **more)


def _nodes() -> list[tuple[str, list[str]]]:
    """Names, and the GPUs' UUIDs by minor."""
    found: dict[str, list[str]] = {}
    for name, uuid in Device.objects.filter(type="gpu").order_by("node_id", "minor").values_list("node__name", "uuid"):
        found.setdefault(name, []).append(uuid)
    return list(found.items())


def _cookie(url: str) -> str:
    """A browser's that has signed in."""
    with httpx.Client(base_url=url, timeout=30) as browser:
        browser.get("/sign-in/")
        said = {
            "username": UserFactory().username,
            "password": PASSWORD,
            "csrfmiddlewaretoken": browser.cookies["csrftoken"],
        }
        browser.post("/sign-in/", data=said, headers={"Referer": f"{url}/sign-in/"})
        return f"{settings.SESSION_COOKIE_NAME}={browser.cookies[settings.SESSION_COOKIE_NAME]}"


def _pulse(at: Bench) -> dict[str, Any]:
    return cast("dict[str, Any]", orjson.loads(at.wire.timed(at.wire.request(PULSE, method="GET"))[1]))


def _redis_cpu(connection: redis_client.Redis) -> float:
    told = connection.info("cpu")
    return float(told["used_cpu_user"] + told["used_cpu_sys"])


def _decode_us() -> float:
    """CPU microseconds of one sample decoded and put into a table, by itself: the floor of any server in this
    language.
    """
    table = SampleTable()
    table.advance("node", boot=frames.BOOT, seq=0, time=0.0, now=0.0)
    table.order("node", [f"GPU-{number}" for number in range(8)])
    made = [frames.payload(frames.sample(seq, float(seq), seq)) for seq in range(1, 5001)]
    gc.disable()
    began = time.process_time()
    for now, body in enumerate(made):
        table.put("node", decode(body), now=now, received_at=0.0)  # type: ignore[arg-type]  # these are samples
    took = time.process_time() - began
    gc.enable()
    return 1e6 * took / len(made)


def _look_at_redis(run: Run, connection: redis_client.Redis) -> None:
    """What lies there, and what a second of the ring costs to pack."""
    run.redis_memory = int(connection.info("memory")["used_memory"])
    streams = list(connection.scan_iter(f"{ring.KEY}*", count=1000))
    run.ring_bytes = sum(cast("int", connection.memory_usage(key, samples=0)) or 0 for key in streams)
    entries = [connection.xlen(key) for key in streams]
    run.ring_seconds = sum(entries) / max(len(entries), 1)
    run.samples_bytes = cast("int", connection.memory_usage(SAMPLES_KEY, samples=0)) or 0
    run.details_bytes = cast("int", connection.memory_usage(DETAILS_KEY, samples=0)) or 0
    stored = cast("dict[bytes, bytes]", connection.hgetall(SAMPLES_KEY))
    views = [msgspec.msgpack.decode(raw, type=SampleView) for raw in stored.values()]
    encoder = msgspec.msgpack.Encoder()
    for _ in range(5):
        for each, work in (
            (run.pack_ms, lambda: ring.pack(views)),
            (run.encode_ms, lambda: [encoder.encode(view) for view in views]),
        ):
            began = time.process_time()
            work()
            each.append(1000 * (time.process_time() - began))
