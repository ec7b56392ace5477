"""A slot's folder and its keeper, with real processes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import keeper
from runner.slot_folder import Ended, SlotFolder, folders, marked
from tests.unit.runner.machine import Machine, wanted

ROOT = Path(__file__).resolve().parents[3]
PYTHON = (sys.executable, "-SE", "-c")
IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def folder_of(machine: Machine, *command: str, slot_id: str = "s1", **environment: str) -> SlotFolder:
    folder = SlotFolder.create(machine.folder / "state" / "slots", wanted(slot_id), port=1)
    folder.start(command, {"PATH": os.environ["PATH"], **environment})
    return folder


async def says(folder: SlotFolder, text: str) -> None:
    for _ in range(1500):
        if text in folder.tail(10_000):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"it did not say {text!r}")


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with slots."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def runner_with_a_slot(machine: Machine) -> Iterator[subprocess.Popen[str]]:
    """A process that has started a slot that ends with it."""
    program = f"""
import time
from pathlib import Path
from runner.slot_folder import SlotFolder
from tests.unit.runner.machine import wanted
folder = SlotFolder.create(Path({str(machine.folder)!r}) / "state" / "slots", wanted(), port=1)
folder.start(["sleep", "600"], {{"PATH": "/usr/bin:/bin"}}, end_with_runner=True)
while folder.process() is None:
    time.sleep(0.02)
print("up", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


@pytest.mark.parametrize(
    ("program", "want"),
    [
        pytest.param("print('hello')", Ended(status=0), id="well"),
        pytest.param("raise SystemExit(7)", Ended(status=7), id="with a status"),
        pytest.param("import os; os.kill(os.getpid(), 9)", Ended(status=-9), id="by a signal"),
    ],
)
async def test_how_a_command_ends(machine: Machine, program: str, want: Ended) -> None:
    """SLOT-4c the status of a command is kept, for this runner and for a later one."""
    folder = folder_of(machine, *PYTHON, program)
    ended = await folder.ended()
    assert (ended.status, ended.problem) == (want.status, want.problem)
    found = folders(machine.folder / "state" / "slots")["s1"]
    assert (found.slot, await found.ended()) == (folder.slot, ended)


async def test_a_command_that_is_not_there(machine: Machine) -> None:
    """SLOT-4c"""
    ended = await folder_of(machine, "/nowhere/vllm").ended()
    assert ended.text == "/nowhere/vllm cannot be started: No such file or directory"


async def test_gigabytes_of_log(machine: Machine) -> None:
    """SLOT-4c two megabytes are kept of a log that has two thousand, with its last lines and how much is left out."""
    size = 2 * 1024**3
    program = f"""
import os
piece = b"y" * 1023 + b"\\n"
for _ in range({size} // (1024 * 512)):
    os.write(1, piece * 512)
os.write(2, b"the last words\\n")
raise SystemExit(1)
"""
    folder = folder_of(machine, *PYTHON, program)
    most = 0
    ended = asyncio.create_task(folder.ended())
    while not ended.done():
        await asyncio.wait({ended}, timeout=0.05)
        most = max(most, sum(path.stat().st_size for path in folder.path.glob("log*")))
    assert (await ended).status == 1
    assert most <= 2 * keeper.LOG_BYTES
    assert folder.tail(100).endswith("yyyy\nthe last words\n")
    assert "bytes of the log are left out" in folder.tail(2 * keeper.LOG_BYTES)


@pytest.mark.parametrize("failing", ["open", "replace"])
def test_a_log_that_cannot_be_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """SLOT-5b a disk without room for a new file ends no slot, and the next try succeeds."""
    monkeypatch.setattr(keeper, "LOG_BYTES", 10)
    log = keeper.Log(tmp_path)
    log._put(b"first....\n")
    real = getattr(Path, failing)

    def fails(path: Path, *given: object, **named: object) -> object:
        if path.name == "log.next":
            raise OSError(errno.ENOSPC, "no space left")
        return real(path, *given, **named)

    with monkeypatch.context() as full:
        full.setattr(Path, failing, fails)
        log._put(b"lost\n")
        log._put(b"lost\n")
    log._put(b"second...\n")
    assert log._dropped == 10
    log._dropped = 0
    log._put(b"third\n")
    log._file.close()
    assert (tmp_path / "log").read_bytes() == b"third\n"
    assert (tmp_path / "log.1").read_bytes() == b"second...\n"


async def test_what_a_command_leaves_behind(machine: Machine) -> None:
    """SLOT-5b a slot has ended when its processes have, also those that left its group and closed their output."""
    program = """
import os, subprocess, sys
subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 600"])
"""
    folder = folder_of(machine, *PYTHON, program)
    assert (await folder.ended()).status == 0
    assert marked(folder.path) == []


async def test_a_keeper_that_is_killed(machine: Machine) -> None:
    """SLOT-5b the slot has not ended before what its keeper kept has."""
    folder = folder_of(machine, *PYTHON, IGNORES)
    await says(folder, "up")
    process = folder.process()
    assert process is not None
    os.kill(process.keeper, signal.SIGKILL)
    ended = await folder.ended()
    assert ended.text == "its process is gone, and nobody saw how it ended"
    assert (marked(folder.path), keeper.start_of(process.pid)) == ([], 0)


async def test_signals(machine: Machine) -> None:
    """SLOT-5b SIGTERM reaches the whole group, and SIGUSR1 kills what ignores it."""
    folder = folder_of(machine, *PYTHON, IGNORES)
    await says(folder, "up")
    await folder.told(signal.SIGTERM)
    ended = asyncio.create_task(folder.ended())
    await asyncio.wait({ended}, timeout=0.3)
    assert not ended.done()
    await folder.told(signal.SIGUSR1)
    assert (await ended).status == -signal.SIGKILL


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"keeper_started": 1}, id="another start time"),
        pytest.param({"boot": "another"}, id="another start of the machine"),
    ],
)
async def test_a_pid_that_is_somebody_elses(
    machine: Machine, change: dict[str, object], bystander: subprocess.Popen[bytes]
) -> None:
    """SLOT-2 nobody is signalled whose start time is not that of the slot's process."""
    folder = SlotFolder.create(machine.folder / "state" / "slots", wanted(), port=1)
    facts: dict[str, object] = {
        "pid": bystander.pid,
        "started": keeper.start_of(bystander.pid),
        "keeper": bystander.pid,
        "keeper_started": keeper.start_of(bystander.pid),
        "boot": keeper.boot_of_machine(),
    }
    keeper.write_whole(folder.path / "process.json", facts | change)
    assert not folder.tell(signal.SIGTERM)
    assert (await folder.ended()).status is None
    await asyncio.sleep(0.05)
    assert bystander.poll() is None


async def test_the_folder_is_not_started_twice(machine: Machine) -> None:
    """SLOT-2 whoever tries a second time is refused, by the lock and by the folder."""
    folder = folder_of(machine, "sleep", "600")
    with pytest.raises(BlockingIOError):
        folder.start(("sleep", "600"), {})
    with pytest.raises(FileExistsError):
        SlotFolder.create(folder.path.parent, folder.slot, port=2)
    await folder.told(signal.SIGUSR1)
    await folder.ended()


async def test_the_runner_killed_with_slots_that_end_with_it(
    machine: Machine, runner_with_a_slot: subprocess.Popen[str]
) -> None:
    """Killed by SIGKILL it leaves nothing, where it was told so."""
    folder = folders(machine.folder / "state" / "slots")["s1"]
    assert folder.running
    runner_with_a_slot.kill()
    assert (await folder.ended()).status == -signal.SIGKILL
    assert json.loads((folder.path / "exit.json").read_text())["status"] == -9


async def test_a_command_that_nobody_could_find_again(machine: Machine) -> None:
    """SLOT-5b the keeper cannot write whom it keeps, as on a full disk: the command ends with it."""
    folder = SlotFolder.create(machine.folder / "state" / "slots", wanted("s1"), port=1)
    (folder.path / "process.json").mkdir()
    folder.start(["sleep", "600"], {"PATH": os.environ["PATH"]})
    async with asyncio.timeout(30):
        ended = await folder.ended()
    assert "Is a directory" in ended.text
    assert marked(folder.path) == []
