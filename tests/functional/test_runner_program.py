"""`python -m runner` as it runs on a node: slots of the simulated runtime, against the real web process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from pytest_django import Settings

from inference.choices import RunnerState, State
from inference.models import Model, Runner, Slot
from inference.runner_liveness import notice_silent
from runner import slot_folder
from tests.runner_machine import (
    QUICK,
    ROOT,
    Machine,
    all_is_well,
    completion,
    connected,
    eventually,
    is_now,
    is_past,
    machine_of,
    moment,
    ready_slot,
    through_the_gateway,
)
from tests.servers import redis
from tests.servers.web import LiveApp
from tests.slots import SlotWorld


@pytest.fixture
def world(live_app: LiveApp, settings: Settings) -> SlotWorld:
    """In the web process's database, which each test leaves without slots."""
    settings.GPUPLANE_REDIS_URL = redis.server_url("web")
    return SlotWorld()


@pytest.fixture
def machine(live_app: LiveApp, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:
    with machine_of(live_app, tmp_path, request.node.name) as found:
        yield found


def test_a_slot_on_a_runner(machine: Machine, world: SlotWorld, live_app: LiveApp) -> None:
    """SLOT-1c SLOT-4c SLOT-5b planned in the ledger, started by the runner, serving; its model deleted, it stops, and
    its memory is free once its process is gone.
    """
    connected(machine, world)
    slot = ready_slot(world)
    assert world.used(machine.node) == [10]
    answer = completion(slot.address, max_tokens=3).json()
    assert answer["choices"][0]["text"] == "word0 word1 word2 "
    with live_app.client() as client:
        path = f"/api/v1/slots/{slot.pk}/"
        eventually(lambda: "ready" in client.get(path).json()["log_tail"], "its log, read from the runner")
    assert len(machine.pids(slot)) == 2
    Model.objects.all().delete()
    world.round()
    assert world.used(machine.node) == [10]
    eventually(lambda: is_now(slot, State.STOPPED), "stopped")
    assert machine.pids(slot) == []
    assert "stopped" in slot.log_tail
    world.round()
    assert world.used(machine.node) == [0]
    all_is_well()


def test_a_request_through_the_gateway(machine: Machine, world: SlotWorld, live_app: LiveApp) -> None:
    """SLOT-3b a request whose model has no slot waits until one is started for it, and is answered by it; the next one
    is answered by the same.
    """
    connected(machine, world)
    world.model(runtime="simulated", args=QUICK)
    for _ in range(2):
        words = through_the_gateway(live_app, world, model="chat", max_tokens=5)
        assert words == [f"word{number} " for number in range(5)]
    eventually(lambda: Slot.objects.get().active == 0, "the end of the last request noted by the gateway")
    slot = Slot.objects.get()
    assert (slot.state, len(machine.pids(slot))) == (State.READY, 2)
    all_is_well()


def test_a_restart_of_gpuplane(machine: Machine, world: SlotWorld, live_app: LiveApp) -> None:
    """SLOT-2 slots serve on while gpuplane is away; after it they are the same, and others are started."""
    connected(machine, world)
    slot = ready_slot(world)
    before = machine.pids(slot)
    live_app.stop()
    assert completion(slot.address).status_code == 200
    live_app.start()
    session = Runner.objects.get(node__name=machine.node).session
    eventually(partial(is_past, machine.node, session), "another session")
    other = ready_slot(world, "code")
    assert is_now(slot, State.READY)
    assert machine.pids(slot) == before
    assert other.address != slot.address
    all_is_well()


def test_restarts_of_the_runner(machine: Machine, world: SlotWorld) -> None:
    """SLOT-2 its slots serve on, are found again, and none is started twice: ended with SIGTERM, and killed."""
    connected(machine, world)
    slot = ready_slot(world)
    before, address = machine.pids(slot), slot.address
    for number, model in ((signal.SIGTERM, "code"), (signal.SIGKILL, "draw")):
        session = Runner.objects.get(node__name=machine.node).session
        machine.processes[-1].send_signal(number)
        machine.processes[-1].wait(10)
        assert completion(slot.address).status_code == 200
        machine.start()
        eventually(partial(is_past, machine.node, session), "another session")
        other = ready_slot(world, model)
        assert is_now(slot, State.READY)
        assert (machine.pids(slot), slot.address, len(machine.pids(other))) == (before, address, 2)
    all_is_well()


def test_a_runtime_that_dies(machine: Machine, world: SlotWorld) -> None:
    """SLOT-2 SLOT-5b the slot has failed with its last words, its memory is free, and the next one waits a little."""
    connected(machine, world)
    slot = ready_slot(world, "chat", "--die-after=1")
    with contextlib.suppress(httpx.HTTPError):
        completion(slot.address)
    eventually(lambda: is_now(slot, State.STOPPED), "stopped")
    assert slot.reason == "its process was ended by SIGABRT: illegal memory access"
    assert "illegal memory access" in slot.log_tail
    world.round()
    assert world.used(machine.node) == [0]
    all_is_well()


def test_a_runner_that_comes_back_to_other_slots(machine: Machine, world: SlotWorld) -> None:
    """SLOT-2 what changed while it was cut off is made so: slots of models that are gone stop, new ones start."""
    connected(machine, world, gpus=2)
    old = ready_slot(world, "old")
    machine.processes[0].kill()
    machine.processes[0].wait(10)
    Model.objects.all().delete()
    world.model("new", runtime="simulated", keep_warm=1, args=QUICK)
    world.round()
    new = Slot.objects.get(model_name="new")
    machine.start()
    eventually(lambda: is_now(new, State.READY) and is_now(old, State.STOPPED), "as it is wanted now")
    assert (machine.pids(old), len(machine.pids(new))) == ([], 2)
    world.round()
    all_is_well()


def test_a_machine_that_lost_its_slots(machine: Machine, world: SlotWorld) -> None:
    """SLOT-2 a runner that is back without them says so, and their memory is free: a machine that was started anew."""
    connected(machine, world)
    slot = ready_slot(world)
    machine.processes[0].kill()
    machine.processes[0].wait(10)
    while slot_folder.kill_marked(machine.folder / "state" / "slots" / slot.pk):
        pass
    (machine.folder / "state").rename(machine.folder / "lost")
    Runner.objects.filter(node__name=machine.node).update(seen_at=moment(-20))
    machine.start()
    eventually(lambda: is_now(slot, State.STOPPED), "gone")
    assert slot.reason == "its runner does not have it any more"
    world.round()
    assert world.used(machine.node) == [0]


def test_two_runners_of_one_node(machine: Machine, world: SlotWorld) -> None:
    """SLOT-2 the one that is connected stays, the other is refused and starts nothing, until the first is silent."""
    connected(machine, world)
    slot = ready_slot(world)
    machine.start(state="state-2")
    eventually(lambda: "another runner of" in machine.log.read_text(), "refused")
    other = ready_slot(world, "code")
    assert is_now(slot, State.READY)
    assert [len(machine.pids(one)) for one in (slot, other)] == [2, 2]
    assert not list(machine.folder.glob("state-2/slots/*"))
    all_is_well()


def test_a_runner_that_was_given_up(machine: Machine, world: SlotWorld) -> None:
    """SLOT-2 its slots have failed, hold their memory until it is back, and are gone then."""
    connected(machine, world)
    slot = ready_slot(world)
    machine.processes[0].kill()
    machine.processes[0].wait(10)
    found = notice_silent(now=moment(100))
    assert found[RunnerState.FAILED] == [machine.node]
    assert is_now(slot, State.FAILED)
    world.round()
    assert world.used(machine.node) == [10]
    assert len(machine.pids(slot)) == 2
    machine.start()
    eventually(lambda: is_now(slot, State.STOPPED), "gone")
    assert machine.pids(slot) == []
    assert Runner.objects.get(node__name=machine.node).state == RunnerState.CONNECTED


def test_a_runner_speaks_for_its_own_node(machine: Machine, world: SlotWorld) -> None:
    """VIEW-6 the token of one node is refused for another."""
    world.node(machine.node)
    machine.start(node="other-node")
    eventually(lambda: "status=403" in machine.log.read_text(), "refused")
    assert not Runner.objects.filter(node__name="other-node").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--ports", "70000"], "a range is first-last"),
        (["--ports", "22-21"], "a range is first-last"),
        (["--token-file", "/nowhere"], "/nowhere"),
        (["--state", "/proc/nowhere"], "/proc/nowhere"),
    ],
    ids=["no port", "backwards", "a token that is not there", "a folder that cannot be made"],
)
def test_options_that_cannot_be(options: list[str], told: str, tmp_path: Path) -> None:
    given = [sys.executable, "-m", "runner", "--state", str(tmp_path / "state"), *options]
    done = subprocess.run(given, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
