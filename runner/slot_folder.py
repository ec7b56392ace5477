"""The folder of one slot: what was started, by which process, and how it ended.

Used by `runner.slot_lifecycle` and, at the start of the program, to find what an earlier one left. A folder has `slot`
(what was asked for, and the port), `lock` (held by the keeper while it lives), and what `runner.keeper` writes.
Invariants:
- The lock is taken before the process is made and goes to it, so there is no moment in which a slot runs and its folder
  does not say so.
- A process is signalled as pid, start time and the start of the machine say: never another one that got its pid.
- `ended` answers once no process of the slot is left, also where the keeper was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import structlog

from runner import keeper
from runner.protocol import BadFrame, DesiredSlot, SlotId, decode_slot, encode_slot

MARK: Final = "GPUPLANE_SLOT_FOLDER"
"""Variable in the environment of a slot's processes."""
KEEPER: Final = Path(keeper.__file__)
FACTS_SECONDS: Final = 10.0
"""How long a keeper may take until it has written whom it keeps."""
LOOK_SECONDS: Final = 0.05

log = structlog.get_logger(__name__)


class Process(msgspec.Struct, frozen=True):
    """What `process.json` says."""

    pid: int
    started: int
    keeper: int
    keeper_started: int
    boot: str


class Ended(msgspec.Struct, frozen=True):
    """How a slot's command ended. `status`: negative for a signal, None where it is not known."""

    status: int | None = None
    problem: str = ""
    ended: float = 0.0

    @property
    def text(self) -> str:
        """For a reason."""
        if self.problem:
            return self.problem
        if self.status is None:
            return "its process is gone, and nobody saw how it ended"
        if self.status < 0:
            return f"its process was ended by {_signal_name(-self.status)}"
        return f"its process ended with status {self.status}"


@dataclass(slots=True)
class SlotFolder:
    """One slot's folder, there or about to be."""

    path: Path
    slot: DesiredSlot
    port: int
    _child: int = field(default=0, init=False)
    """Pid of the keeper where this process started it, and has to collect it."""

    @classmethod
    def create(cls, root: Path, slot: DesiredSlot, *, port: int) -> SlotFolder:
        """Make the folder. Raises OSError."""
        path = root / slot.id
        path.mkdir(parents=True, mode=0o700)
        (path / "slot.part").write_bytes(msgspec.msgpack.encode((port, encode_slot(slot))))
        (path / "slot.part").replace(path / "slot")
        return cls(path, slot, port)

    @classmethod
    def read(cls, path: Path) -> SlotFolder | None:
        """The folder that an earlier program left; None where it is none."""
        try:
            port, body = msgspec.msgpack.decode((path / "slot").read_bytes(), type=tuple[int, bytes])
            slot = decode_slot(body)
        except (OSError, msgspec.MsgspecError, BadFrame):
            return None
        return cls(path, slot, port) if slot.id == path.name else None

    def start(self, command: Sequence[str], environment: Mapping[str, str], *, end_with_runner: bool = False) -> None:
        """Start the command under a keeper. Raises OSError."""
        lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            flag = f"{keeper.END_WITH_RUNNER}:{os.getpid()}" if end_with_runner else "go-on"
            with (self.path / "keeper.log").open("ab") as errors:
                child = subprocess.Popen(  # noqa: S603 - a list of arguments, and no shell
                    [sys.executable, "-SE", str(KEEPER), str(self.path), flag, "--", *command],
                    env={**environment, MARK: str(self.path)},
                    cwd=self.path,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    pass_fds=(lock,),
                    start_new_session=True,
                )
            self._child, child.returncode = child.pid, 0  # it may outlive this process, of which Popen would warn
        finally:
            os.close(lock)

    def note(self, problem: str) -> None:
        """Write down why nothing was started."""
        with contextlib.suppress(OSError):
            keeper.write_whole(self.path / "exit.json", {"status": None, "problem": problem, "ended": 0.0})

    @property
    def running(self) -> bool:
        """Whether its keeper lives."""
        try:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def process(self) -> Process | None:
        """The process of `process.json`; None if there is no such file, or the machine was restarted since."""
        try:
            found = msgspec.json.decode((self.path / "process.json").read_bytes(), type=Process)
        except (OSError, msgspec.MsgspecError):
            return None
        return found if found.boot == keeper.boot_of_machine() else None

    async def ended(self) -> Ended:
        """Wait until no process of the slot is left."""
        while self.running:
            found = await self._facts()
            if found is not None and keeper.start_of(found.keeper) == found.keeper_started:
                await _gone(found.keeper)
            else:
                await asyncio.sleep(LOOK_SECONDS)
        if self._child:
            await _gone(self._child)
            _collect(self._child)
            self._child = 0
        try:
            ended = msgspec.json.decode((self.path / "exit.json").read_bytes(), type=Ended)
        except (OSError, msgspec.MsgspecError):
            ended = Ended()
        await self._kill_left()
        return ended

    def tell(self, number: signal.Signals) -> bool:
        """Signal the keeper: SIGTERM for its group, SIGUSR1 to kill it. False where it is not known, or gone."""
        found = self.process()
        return found is not None and _signal_process(found.keeper, found.keeper_started, number)

    async def told(self, number: signal.Signals) -> None:
        """As `tell`, once the keeper has written whom it keeps."""
        await self._facts()
        if not self.tell(number):
            log.info("slot.nobody_to_signal", slot=self.slot.id)

    def tail(self, most: int) -> str:
        """The end of its log, so many characters at most."""
        data = _end_of(self.path / "log", most)
        if len(data) < most:
            data = _end_of(self.path / "log.1", most - len(data)) + data
        return data.decode("utf-8", "replace").replace("\x00", " ")[-most:]

    def remove(self) -> None:
        """Delete the folder of a slot that has ended."""
        (self.path / "slot").unlink(missing_ok=True)  # first: half a folder is none
        shutil.rmtree(self.path, ignore_errors=True)

    async def _facts(self) -> Process | None:
        """Wait for `process.json`, while the keeper lives."""
        for _ in range(int(FACTS_SECONDS / LOOK_SECONDS)):
            if (found := self.process()) is not None or not self.running:
                return found
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def _kill_left(self) -> None:
        """Kill what a keeper left that was killed itself, or that could not write what it had started."""
        while kill_marked(self.path):  # noqa: ASYNC110 - they are others' children, whose end is no event here
            await asyncio.sleep(LOOK_SECONDS)


def folders(root: Path) -> dict[SlotId, SlotFolder]:
    """The slots that an earlier program left, by id; what is no slot's folder is deleted."""
    found = {}
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        folder = SlotFolder.read(path)
        if folder is not None:
            found[folder.slot.id] = folder
        elif path.is_dir():
            kill_marked(path)
            shutil.rmtree(path, ignore_errors=True)
    return found


def marked(path: Path) -> list[int]:
    """Pids of the processes of this user that carry the mark of a slot's folder."""
    mark = f"{MARK}={path}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            environment = Path(entry.path, "environ").read_bytes()
            if mark in environment.split(b"\0") and keeper.start_of(int(entry.name)):
                found.append(int(entry.name))
    return found


def kill_marked(path: Path) -> bool:
    """Kill the processes that carry the mark; whether there were any."""
    left = marked(path)
    for pid in left:
        log.warning("slot.left", folder=path.name, pid=pid)
        _signal_process(pid, keeper.start_of(pid), signal.SIGKILL)
    return bool(left)


async def _gone(pid: int) -> None:
    """Wait until the process has ended, as its descriptor says."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _collect(pid: int) -> None:
    """Collect the status of a child that has ended."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _signal_process(pid: int, started: int, number: signal.Signals) -> bool:
    """Signal the process that started then; the descriptor is opened first, so that its pid cannot pass to another."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not started or keeper.start_of(pid) != started:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def _end_of(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most))
            return file.read(most)
    except OSError:
        return b""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
