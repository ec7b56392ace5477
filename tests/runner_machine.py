"""A node's machine, on which `python -m runner` runs against the real web process, in a world of slots.

For functional tests and those of a real runtime. The rounds of the slots' loop are run by the test; the runner does
what the web process tells it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec

from access.actors import SYSTEM
from access.choices import Role
from access.token_services import agent_token
from allocations.models import Allocation, Lease
from inference.choices import State
from inference.models import Model, Runner, Slot
from nodes.models import Node
from runner import slot_folder
from storage.clock import database_now
from tests import ledger_truth
from tests.servers.web import LiveApp
from tests.slots import SlotWorld, problems

ROOT = Path(__file__).resolve().parents[1]
SOON = 30.0
QUICK = ("--start-seconds=0", "--first-token-seconds=0")


@dataclass
class Machine:
    """A node's machine: its runner may be started, ended and killed; what it started is found by its folder."""

    app: LiveApp
    node: str
    folder: Path
    number: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.node}.log"

    def start(self, *options: str, state: str = "state", node: str = "") -> subprocess.Popen[bytes]:
        """`python -m runner`, with a token of the node."""
        token = self.folder / "token"
        if not token.exists():
            token.write_text(agent_token(node=self.node, actor=SYSTEM, now=database_now()))
        environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUPLANE_")}
        host = f"127.78.{os.getpid() % 256}.{self.number}"
        given = ("--node", node or self.node, "--url", self.app.url, "--token-file", str(token), "--host", host)
        places = ("--state", str(self.folder / state), "--simulated", str(self.folder / "memory"))
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "runner", *given, *places, *options],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def pids(self, slot: Slot, state: str = "state") -> list[int]:
        """Processes of the slot: the keeper and the runtime."""
        return slot_folder.marked(self.folder / state / "slots" / slot.pk)

    def log_of(self, slot: Slot) -> str:
        """The log of a slot that runs."""
        return (self.folder / "state" / "slots" / slot.pk / "log").read_text(errors="replace")

    def kill_runtime(self, slot: Slot) -> None:
        """Kill the slot's command, as the kernel does where memory runs out."""
        found = slot_folder.SlotFolder.read(self.folder / "state" / "slots" / slot.pk)
        process = None if found is None else found.process()
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)

    def end(self) -> None:
        """End every runner and every slot."""
        for process in self.processes:
            process.kill()
            process.wait(10)
        for path in self.folder.glob("state*/slots/*"):
            while slot_folder.kill_marked(path):
                pass


def eventually(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not true():
        assert time.monotonic() < deadline, f"after {SOON:.0f} s still not: {what}"
        time.sleep(0.05)


def is_now(slot: Slot, *states: State) -> bool:
    slot.refresh_from_db()
    return slot.state in states


def is_past(node: str, session: int) -> bool:
    return Runner.objects.get(node__name=node).session > session


def completion(address: str, **body: object) -> httpx.Response:
    return httpx.post(f"http://{address}/v1/completions", json={"prompt": "x", **body}, timeout=SOON, verify=False)


@contextmanager
def machine_of(app: LiveApp, folder: Path, name: str) -> Iterator[Machine]:
    """A machine for one test, of which nothing is left after it: no process, no slot, no node."""
    number = 1 + sum(name.encode()) % 250
    found = Machine(app, f"run-{number}", folder, number)
    try:
        yield found
    finally:
        found.end()
        Slot.objects.all().delete()
        Model.objects.all().delete()
        Lease.objects.all().delete()
        Allocation.objects.filter(node__name=found.node).delete()
        Node.objects.filter(name=found.node).delete()


def connected(machine: Machine, world: SlotWorld, *options: str, gpus: int = 1) -> None:
    """The node with its runner, which is connected and has said what it can."""
    world.node(machine.node, gpus=gpus)
    machine.start(*options)
    offering = Runner.objects.filter(node__name=machine.node, session__gt=0).exclude(runtimes=[])
    eventually(offering.exists, "connected")


def ready_slot(world: SlotWorld, model: str = "chat", *args: str, **fields: Any) -> Slot:
    """A slot of a new model, once its runner says that it is ready."""
    world.model(model, runtime="simulated", keep_warm=1, args=[*QUICK, *args], **fields)
    world.round()
    slot = Slot.objects.get(model_name=model)
    eventually(lambda: is_now(slot, State.READY), "ready")
    return slot


def through_the_gateway(app: LiveApp, world: SlotWorld, **body: object) -> list[str]:
    """The pieces of text of a streamed chat, for which a slot is planned and started if need be."""
    token = app.token(role=Role.VIEWER)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(_chat, app.url, token, {"messages": [{"role": "user", "content": "hi"}], **body})
        while not answer.done():
            world.round()
            wait([answer], timeout=0.1)
    return answer.result()


def _chat(url: str, token: str, body: dict[str, object]) -> list[str]:
    headers = {"Authorization": f"Bearer {token}"}
    with (
        httpx.Client(base_url=url, headers=headers, timeout=SOON, verify=False) as client,
        client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer,
    ):
        lines = list(answer.iter_lines())
        assert answer.status_code == 200, lines
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [msgspec.json.decode(event)["choices"] for event in events[:-1]]
    return [text for one in choices if one and (text := one[0]["delta"].get("content"))]


def moment(seconds: float) -> datetime:
    """So many seconds from now, by the database's clock."""
    return database_now() + timedelta(seconds=seconds)


def all_is_well() -> None:
    assert ledger_truth.problems() == []
    assert problems() == []
