"""The runner's program with real processes of the simulated runtime."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys

import httpx
import pytest

from runner import program as program_module
from runner import slot_lifecycle
from runner.program import NoPort, Ports, State, StateTaken
from runner.protocol import Desired, DesiredSlot
from runner.runtimes import Launch, Place, base_environment
from runner.runtimes.simulated import PROGRAM, Simulated
from runner.simulated import held_memory
from tests.unit.runner.machine import Machine, ask, one, state, until, wanted


async def test_a_slot_from_start_to_end(machine: Machine) -> None:
    """SLOT-4c a slot is started on its GPUs, serves at the address that is reported, and is gone with its memory."""
    async with machine.program() as program:
        program.apply(one(wanted()))
        ready = await state(program, "ready")
        assert (await ask(ready.address)).json()["choices"][0]["message"]["content"].startswith("word0")
        assert held_memory(machine.folder / "memory", "GPU-0") == 10
        program.apply(one(wanted(run=False)))
        ended = await state(program, "stopped")
        assert (ended.address, ended.pid) == ("", 0)
        assert (machine.pids(), held_memory(machine.folder / "memory", "GPU-0")) == ([], 0)
        program.apply(Desired())
        assert (program.reports(), machine.slot_folder().exists()) == ([], False)


@pytest.mark.parametrize(
    ("slot", "want_reason", "want_line"),
    [
        pytest.param(
            wanted("s1", "--die-at-start"),
            "its process ended with status 3: something is missing: the model cannot be loaded",
            "something is missing",
            id="dies at start",
        ),
        pytest.param(
            wanted("s1", "--never-ready", start_seconds=3),
            "it was not ready within 3 s",
            "still loading",
            id="never ready",
        ),
        pytest.param(
            wanted(memory=101),
            "its process ended with status 1: CUDA out of memory: GPU-0 has 100 of 100 bytes left, and 101 are needed",
            "CUDA out of memory",
            id="more memory than there is",
        ),
        pytest.param(
            DesiredSlot(id="s1", run=True, runtime="vllm"),
            "this runner does not have the runtime vllm",
            "",
            id="a runtime that is not there",
        ),
        pytest.param(
            wanted("s1", "--no-such-option"),
            "its process ended with status 2: simulated: error: unrecognized arguments: --no-such-option",
            "usage:",
            id="an argument that it refuses",
        ),
    ],
)
async def test_slots_that_fail(machine: Machine, slot: DesiredSlot, want_reason: str, want_line: str) -> None:
    """SLOT-4c a slot that fails says why, with its last lines; it is not started again, and nothing of it is left."""
    async with machine.program() as program:
        program.apply(one(slot))
        failed = await state(program, "failed")
        assert failed.reason == want_reason
        assert want_line in failed.lines
        assert machine.pids() == []
        program.apply(one(slot))
        assert [report.state for report in program.reports()] == ["failed"]
    async with machine.program() as program:
        program.apply(one(slot))
        again = await state(program, "failed")
        assert want_line in again.lines
        program.apply(one(wanted(run=False)))
        assert [report.state for report in program.reports()] == ["stopped"]


async def test_a_defect_at_the_start_of_a_slot(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-4c the slot has failed and says so, whatever was raised; it can be stopped and forgotten."""

    def launch(_runtime: Simulated, _slot: DesiredSlot, _place: Place) -> Launch:
        raise ModuleNotFoundError("No module named 'pynvml'")

    monkeypatch.setattr(Simulated, "launch", launch)
    async with machine.program() as program:
        program.apply(one(wanted()))
        failed = await state(program, "failed")
        assert (failed.reason, machine.pids()) == ("No module named 'pynvml'", [])
        program.apply(one(wanted(run=False)))
        assert [report.state for report in program.reports()] == ["stopped"]


async def test_the_last_line_of_a_slot_that_fails_while_it_is_asked(machine: Machine) -> None:
    """SLOT-4c the last line of a process tells of its end, whatever connections are open to it then."""
    options = [f"--host={machine.host}", "--port=22000", "--start-seconds=1", "--die-at-start"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-SE", str(PROGRAM), *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"loading simulated\n", "it listens by now"
    _, writer = await asyncio.open_connection(machine.host, 22000)
    output, _ = await process.communicate()
    writer.close()
    assert (process.returncode, output) == (3, b"something is missing: the model cannot be loaded\n")


async def test_a_runtime_that_dies_under_load(machine: Machine) -> None:
    """SLOT-4c streams of it end, and the report says by which signal it died."""
    async with machine.program() as program:
        program.apply(one(wanted("s1", "--die-after=1", "--first-token-seconds=0.5", parallel=3)))
        ready = await state(program, "ready")
        streams = [ask(ready.address, stream=True, max_tokens=count) for count in (1, 100_000, 100_000)]
        answers = await asyncio.gather(*streams, return_exceptions=True)
        assert [isinstance(answer, httpx.HTTPError) for answer in answers[1:]] == [True, True]
        failed = await state(program, "failed")
        assert failed.reason == "its process was ended by SIGABRT: illegal memory access"


async def test_a_runtime_that_ignores_sigterm(machine: Machine) -> None:
    """SLOT-5b it is killed after its grace time, and only then reported as gone."""
    async with machine.program() as program:
        slot = wanted("s1", "--ignore-sigterm", grace_seconds=0.3)
        program.apply(one(slot))
        await state(program, "ready")
        program.apply(one(wanted("s1", run=False)))
        stopping = await state(program, "stopping")
        assert machine.pids(), stopping
        ended = await state(program, "stopped")
        assert ended.reason == "it ignored SIGTERM for 0.3 s and was killed"
        assert "SIGTERM is ignored" in ended.lines
        assert machine.pids() == []


async def test_a_runtime_that_does_not_answer_any_more(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-4c a process that stands still has failed, and is killed though it takes no SIGTERM."""
    monkeypatch.setattr(slot_lifecycle, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(slot_lifecycle, "ANSWER_SECONDS", 0.2)
    async with machine.program() as program:
        program.apply(one(wanted(grace_seconds=0.2)))
        ready = await state(program, "ready")
        os.kill(ready.pid, signal.SIGSTOP)
        failed = await state(program, "failed")
        assert failed.reason == "it did not answer 3 times in a row"
        assert machine.pids() == []


async def test_a_restart_of_the_runner(machine: Machine) -> None:
    """SLOT-2 the next program finds the slot, its process goes on, and no second one is started."""
    async with machine.program() as program:
        program.apply(one(wanted()))
        before = await state(program, "ready")
    assert machine.pids()
    async with machine.program() as program:
        found = await state(program, "ready")
        assert (found.pid, found.address) == (before.pid, before.address)
        program.apply(one(wanted()))
        await ask(found.address)
        assert len(machine.pids()) == 2  # the keeper and the runtime
        program.apply(one(wanted(run=False)))
        await state(program, "stopped")
        assert machine.pids() == []


async def test_what_happened_while_no_runner_was_there(machine: Machine) -> None:
    """SLOT-2 a slot that died meanwhile is reported with its status; its id is not started again."""
    async with machine.program() as program:
        program.apply(one(wanted()))
        ready = await state(program, "ready")
    os.kill(ready.pid, signal.SIGKILL)
    async with machine.program() as program:
        program.apply(one(wanted()))
        failed = await state(program, "failed")
        assert failed.reason.startswith("its process was ended by SIGKILL")


async def test_slots_that_nobody_wants(machine: Machine) -> None:
    """SLOT-2 a runner that was cut off stops what the server does not list any more, and starts what it lists."""
    async with machine.program() as program:
        program.apply(one(wanted("s1"), wanted("s2")))
        await until(program, lambda found: {one.state for one in found.values()} == {"ready"})
    async with machine.program() as program:
        program.apply(one(wanted("s2"), wanted("s3")))
        reports = await until(
            program, lambda found: set(found) == {"s2", "s3"} and {one.state for one in found.values()} == {"ready"}
        )
        assert reports["s2"].address != reports["s3"].address
        assert (machine.pids("s1"), machine.slot_folder("s1").exists()) == ([], False)


async def test_a_slot_that_was_stopped_before_it_was_started(machine: Machine) -> None:
    """SLOT-5b a slot that is not here is reported as stopped, and is not started by an older wish."""
    async with machine.program() as program:
        program.apply(one(wanted(run=False)))
        assert [report.state for report in program.reports()] == ["stopped"]
        program.apply(one(wanted()))
        assert [report.state for report in program.reports()] == ["stopped"]
        program.apply(Desired())
        assert program.reports() == []


ENDLESS = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b"x")
            time.sleep(0.01)
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""


async def test_a_runtime_whose_answer_does_not_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-2 its status says that it serves; nothing more of the answer is read."""

    def launch(_runtime: Simulated, _slot: DesiredSlot, place: Place) -> Launch:
        command = (sys.executable, "-SEc", ENDLESS, place.listen, str(place.port))
        return Launch(command=command, environment=base_environment())

    monkeypatch.setattr(Simulated, "launch", launch)
    async with machine.program() as program:
        program.apply(one(wanted(start_seconds=5)))
        reports = await until(program, lambda found: found["s1"].state != "starting")
        assert reports["s1"].state == "ready"


async def test_a_slot_in_place_of_one_that_has_ended(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-2 also by a runner that has as many slots as it may have, once the server does not list that one."""
    monkeypatch.setattr(program_module, "MOST_SLOTS", 1)
    async with machine.program() as program:
        program.apply(one(wanted("s1")))
        await state(program, "ready")
        program.apply(one(wanted("s1", run=False)))
        await state(program, "stopped")
        program.apply(one(wanted("s2")))
        await state(program, "ready", "s2")
        assert [report.id for report in program.reports()] == ["s2"]


async def test_a_kill_between_the_folder_and_the_process(machine: Machine) -> None:
    """SLOT-2 a folder without a process has failed; half a folder is no slot."""
    async with machine.program() as program:
        program.apply(one(wanted()))
        await state(program, "ready")
        program.apply(one(wanted(run=False)))
        await state(program, "stopped")
        folder = machine.slot_folder()
        kept = (folder / "slot").read_bytes()
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "slot").write_bytes(kept)
    (folder.parent / "s9").mkdir()
    (folder.parent / "s9" / "slot").write_bytes(b"half")
    async with machine.program() as program:
        failed = await state(program, "failed")
        assert failed.reason == "its process is gone, and nobody saw how it ended"
        assert not (folder.parent / "s9").exists()


async def test_one_runner_a_folder(machine: Machine) -> None:
    """SLOT-2 a second program on one machine does not begin."""
    async with machine.program():
        with pytest.raises(StateTaken, match="another runner uses"):
            State.open(machine.folder / "state")


async def test_slots_that_end_with_the_runner(machine: Machine) -> None:
    """With `--end-slots` nothing is left."""
    async with machine.program(end_slots=True) as program:
        program.apply(one(wanted("s1"), wanted("s2", "--ignore-sigterm", grace_seconds=0.2)))
        await until(program, lambda reports: {one.state for one in reports.values()} == {"ready"})
    assert machine.pids("s1") + machine.pids("s2") == []


def test_ports() -> None:
    """The next port each time, none that is used, and an end to it."""
    ports = Ports("127.0.0.1", 21_500, 21_502)
    first = ports.take(set())
    second = ports.take(set())
    third = ports.take({first})
    assert len({first, second, third}) == 3
    with pytest.raises(NoPort, match="is free"):
        ports.take({21_500, 21_501, 21_502})
