"""The parent of one slot's processes: it bounds their log, waits for all of them, and writes down how they ended.

Started by `runner.slot_folder` as `python -SE keeper.py FOLDER FLAG -- COMMAND…` with the standard library alone, so
that a restart of the runner neither breaks the pipe of the log nor loses the exit status. In FOLDER it writes
`process.json` once the command has started, `log`, `log.1` and for moments `log.next`, and `exit.json` at the end.
Signals: SIGTERM is passed on to the process group, SIGUSR1 kills it. Invariants:
- It ends after every process that came from the command, also those that left its process group, and kills what is left
  when the command has ended.
- The log takes LOG_BYTES twice at most, and LOG_BYTES_A_SECOND; beyond them the newest lines are kept.
- It holds a file lock that it inherited from the runner. The kernel frees the lock when the keeper ends, in any way.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

LOG_BYTES = 1024 * 1024
LOG_BYTES_A_SECOND = 512 * 1024
KEPT_BYTES = 16 * 1024
"""Of what is left out: its end, which is written when there is room again."""
PIECE_BYTES = 128 * 1024
SWEEP_SECONDS = 0.05
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
END_WITH_RUNNER = "end-with-runner"


class Log:
    """The two files: `log` is renamed to `log.1` when it is full."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log"
        self._file = self._path.open("ab", buffering=0)
        self._size = self._file.tell()
        self._left = LOG_BYTES_A_SECOND
        self._second = time.monotonic()
        self._kept = b""
        self._dropped = 0

    @property
    def waiting(self) -> bool:
        """Whether something is left to be written."""
        return self._dropped > 0 or bool(self._kept)

    def write(self, data: bytes) -> None:
        """Write, or keep the end of it."""
        self.tick()
        if not self.waiting and len(data) <= self._left:
            self._left -= len(data)
            self._put(data)
            return
        together = self._kept + data
        self._kept = together[-KEPT_BYTES:]
        self._dropped += len(together) - len(self._kept)

    def tick(self) -> None:
        """Write what was kept, once a second has passed."""
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._left = now, LOG_BYTES_A_SECOND
            self.flush()

    def flush(self) -> None:
        """Write what was kept, and how much was not."""
        if self._dropped:
            self._put(b"\n[%d bytes of the log are left out]\n" % self._dropped)
        if self._kept:
            self._put(self._kept)
        self._kept, self._dropped = b"", 0

    def _put(self, data: bytes) -> None:
        try:
            if self._size + len(data) > LOG_BYTES:
                self._rotate()
            self._file.write(data)
            self._size += len(data)
        except OSError:  # a full disk ends no slot
            self._dropped += len(data)

    def _rotate(self) -> None:
        """Begin a new file. Raises OSError."""
        following = self._path.with_name("log.next")
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(following.open("wb", buffering=0))
            with contextlib.suppress(FileNotFoundError):  # the last try got no further than this
                self._path.replace(self._path.with_name("log.1"))
            following.replace(self._path)
            stack.pop_all()
        self._file.close()
        self._file, self._size = file, 0


class Keeper:
    """One command and all that comes from it."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self._folder = folder
        self._log = Log(folder)
        self._kill = False
        self.status: int | None = None
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - a list of arguments, and no shell
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, start_new_session=True
            )
        finally:
            os.close(writing)
        self._pid = self._process.pid
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._told)
        facts = {
            "pid": self._pid,
            "started": start_of(self._pid),
            "keeper": os.getpid(),
            "keeper_started": start_of(os.getpid()),
            "boot": boot_of_machine(),
        }
        try:
            write_whole(folder / "process.json", facts)
        except OSError:  # the disk is full: nobody could find the command again
            os.killpg(self._pid, signal.SIGKILL)
            self._process.wait()
            raise

    def run(self) -> None:
        """Return when no process is left."""
        waking, told = os.pipe()
        os.set_blocking(waking, False)
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        selector.register(self._reading, selectors.EVENT_READ)
        selector.register(waking, selectors.EVENT_READ)
        open_pipe = True
        while self._reap():
            ending = self._kill or self.status is not None
            timeout = SWEEP_SECONDS if ending else (1.0 if self._log.waiting else None)
            for key, _ in selector.select(timeout):
                if key.fd == waking:
                    os.read(waking, 512)
                elif self._read() == b"":
                    selector.unregister(self._reading)
                    open_pipe = False
            self._log.tick()
            if ending:
                self._sweep()
        while open_pipe and self._read():
            pass
        self._log.flush()

    def _read(self) -> bytes | None:
        """Take one piece of output: empty at its end, None where nothing is there."""
        try:
            data = os.read(self._reading, PIECE_BYTES)
        except BlockingIOError:
            return None
        self._log.write(data)
        return data

    def _reap(self) -> bool:
        """Collect those that have ended; whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._pid:
                self.status = self._process.returncode = os.waitstatus_to_exitcode(status)

    def _sweep(self) -> None:
        """Kill the group, if its leader is not collected yet, and every child: those that were left come here."""
        if self.status is None:
            self._signal_group(signal.SIGKILL)
        for pid in children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def _told(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            self._kill = True
        elif self.status is None:
            self._signal_group(signal.SIGTERM)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self._pid, number)
        except (ProcessLookupError, PermissionError):
            return


def children() -> list[int]:
    """Pids of this process's children."""
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [pid for pid in pids if parent_of(pid) == os.getpid()]


def parent_of(pid: int) -> int:
    """The parent's pid; 0 where the process is gone."""
    fields = stat_of(pid)
    return int(fields[1]) if fields else 0


def start_of(pid: int) -> int:
    """When it started, in the kernel's ticks since the machine did; 0 where it is gone, or only its status is left."""
    fields = stat_of(pid)
    return 0 if not fields or fields[0] in "ZX" else int(fields[19])


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; the second, the name, may have spaces and brackets."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def boot_of_machine() -> str:
    """Another text after each start of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def write_whole(path: Path, facts: dict[str, object]) -> None:
    """Write a file that is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(facts), encoding="utf-8")
    part.replace(path)


def main(arguments: list[str]) -> int:
    """Keep one command."""
    folder, flag, _, *command = arguments
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # wakes `run`; unlike SIG_IGN it is not inherited by the command
    status: int | None = None
    problem = ""
    try:
        keeper = Keeper(Path(folder), command)
    except OSError as error:
        problem = f"{command[0]} cannot be started: {error.strerror}"
    else:
        if flag.partition(":")[0] == END_WITH_RUNNER:
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGUSR1), 0, 0, 0)
            if os.getppid() != int(flag.partition(":")[2]):
                os.kill(os.getpid(), signal.SIGUSR1)
        keeper.run()
        status = keeper.status
    write_whole(Path(folder) / "exit.json", {"status": status, "problem": problem, "ended": time.time()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
