"""One supervised process: started tied to the runner, its lines shown, started again when it dies.

Used by the runner, in its event loop and main thread (the kernel ties a child to the thread that made it).
Kept true: a child that keeps dying is started again ever more slowly, never in a hot loop; an essential one
that dies GIVE_UP times in a row within QUICK_SECONDS of its start ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuplane.run.board import Board

TETHER = Path(__file__).with_name("tether.py")
QUICK_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
GIVE_UP = 8
LONGEST_LINE = 16 * 1024


class GaveUp(Exception):
    """An essential process keeps dying; the text says which."""


def pause_seconds(failures: int) -> float:
    """Wait before the next start after `failures` (1..) quick deaths in a row: doubling, bounded."""
    return float(min(FIRST_PAUSE_SECONDS * 2 ** (failures - 1), LONGEST_PAUSE_SECONDS))


class Child:
    """A process by name. `environment` is complete; `lock` is held along by the child."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        board: Board,
        lock: int,
        essential: bool = False,
    ) -> None:
        self.name = name
        self._command = command
        self._environment = environment
        self._folder = folder
        self._board = board
        self._lock = lock
        self._essential = essential
        self._process: asyncio.subprocess.Process | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._started_at = 0.0

    @property
    def up_seconds(self) -> float:
        """For how long the present process has run; 0 when there is none."""
        if self._process is None or self._process.returncode is not None:
            return 0.0
        return time.monotonic() - self._started_at

    def start(self) -> asyncio.Task[None]:
        """Start and keep running. The task ends after `stop`, or raises GaveUp."""
        self._supervision = asyncio.create_task(self._supervise(), name=self.name)
        return self._supervision

    async def once(self) -> int:
        """Run to the end without starting again; the exit status."""
        return await self._run()

    def restart(self) -> None:
        """End the present process; supervision starts another."""
        self._signal(signal.SIGKILL)

    async def stop(self, *, grace_seconds: float) -> None:
        """Ask it to end, and end it after `grace_seconds`. Returns when it and its lines are through."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        if self._supervision is None:
            return
        done, _ = await asyncio.wait([self._supervision], timeout=grace_seconds)
        if not done:
            self._board.say("process.killed", name=self.name, after_seconds=grace_seconds)
            self._signal(signal.SIGKILL)
            await asyncio.wait([self._supervision])

    def kill(self) -> None:
        """End it now; supervision does not start another."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    async def _supervise(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            status = await self._run()
            if self._stopping.is_set():
                return
            quick = time.monotonic() - self._started_at < QUICK_SECONDS
            failures = failures + 1 if quick else 1
            if self._essential and failures >= GIVE_UP:
                raise GaveUp(f"{self.name} died {failures} times in a row; its last lines are above and in var/log")
            pause = pause_seconds(failures)
            self._board.say("process.died", name=self.name, status=_status(status), again_in_seconds=pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _run(self) -> int:
        self._started_at = time.monotonic()
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-SE",
            str(TETHER),
            str(os.getpid()),
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=dict(self._environment),
            cwd=self._folder,
            start_new_session=True,
            pass_fds=(self._lock,),
        )
        if self._stopping.is_set():  # asked to stop while the process was being made
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
                self._board.line(self.name, line.decode("utf-8", "replace").rstrip("\r"))
        if rest:
            self._board.line(self.name, rest.decode("utf-8", "replace"))

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            # the tether made it a leader of its own group, so nothing it started is left behind
            os.killpg(self._process.pid, number)


def _status(status: int) -> str:
    """Exit status for people: a number, or the signal's name."""
    if status >= 0:
        return str(status)
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
