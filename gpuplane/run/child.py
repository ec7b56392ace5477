"""One supervised process: its lines are shown, and it is restarted when it dies.

Used by the supervisor, in its event loop and main thread (the kernel ties a child to the thread that made it).
Invariants: a child that keeps dying is restarted ever more slowly; an essential one that dies GIVE_UP times in a row
within QUICK_SECONDS of its start ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from gpuplane.run.console import Console

PARENT_DEATH = Path(__file__).with_name("parent_death.py")
QUICK_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
GIVE_UP = 8
LONGEST_LINE = 16 * 1024


class GaveUp(Exception):
    """An essential process keeps dying; the text says which."""


def pause_seconds(failures: int) -> float:
    """The pause before the next start after `failures` (1..) quick deaths in a row: doubling, bounded."""
    return float(min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS))


@dataclass
class Child:
    """A process by name. `environment` is complete; `lock_fd` is inherited by the child."""

    name: str
    command: Sequence[str]
    _: KW_ONLY
    environment: Mapping[str, str]
    folder: Path
    console: Console
    lock_fd: int
    essential: bool = False
    _process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _supervision: asyncio.Task[None] | None = field(default=None, init=False)
    _stopping: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _started_at: float = field(default=0.0, init=False)

    @property
    def up_seconds(self) -> float:
        """Age of the present process; 0 when there is none."""
        if self._process is None or self._process.returncode is not None:
            return 0.0
        return time.monotonic() - self._started_at

    def start(self) -> asyncio.Task[None]:
        """Start, and restart when it dies. The task ends after `stop`, or raises GaveUp."""
        self._supervision = asyncio.create_task(self._supervise(), name=self.name)
        return self._supervision

    def restart(self) -> None:
        """Kill the present process; supervision starts another."""
        self._signal(signal.SIGKILL)

    async def stop(self, *, grace_seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace_seconds`. Returns when it has ended and its lines are shown."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        if self._supervision is None:
            return
        done, _ = await asyncio.wait([self._supervision], timeout=grace_seconds)
        if not done:
            self.console.say("process.killed", name=self.name, after_seconds=grace_seconds)
            self._signal(signal.SIGKILL)
            await asyncio.wait([self._supervision])

    def kill(self) -> None:
        """Kill it; supervision does not start another."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    async def _supervise(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            status = await self.once()
            if self._stopping.is_set():
                return
            quick = time.monotonic() - self._started_at < QUICK_SECONDS
            failures = failures + 1 if quick else 1
            if self.essential and failures >= GIVE_UP:
                raise GaveUp(f"{self.name} died {failures} times in a row; its last lines are above and in var/log")
            pause = pause_seconds(failures)
            self.console.say("process.died", name=self.name, status=_status(status), again_in_seconds=pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def once(self) -> int:
        """Run to the end without a restart. Returns the exit status."""
        self._started_at = time.monotonic()
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-SE",
            str(PARENT_DEATH),
            str(os.getpid()),
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(self.environment),
            cwd=self.folder,
            start_new_session=True,
            pass_fds=(self.lock_fd,),
        )
        if self._stopping.is_set():  # stopped while the process was being made
            self._signal(signal.SIGKILL)
        reading = asyncio.create_task(self._read(process))
        status = await process.wait()
        await asyncio.wait([reading], timeout=2)
        reading.cancel()
        return status

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        rest = b""
        while chunk := await process.stdout.read(64 * 1024):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                self.console.line(self.name, line.decode("utf-8", "replace").rstrip("\r"))
        if rest:
            self.console.line(self.name, rest.decode("utf-8", "replace"))

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            # it leads a process group, so nothing it started is left behind
            os.killpg(self._process.pid, number)


def _status(status: int) -> str:
    """The exit status for people: a number, or the signal's name."""
    if status >= 0:
        return str(status)
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
