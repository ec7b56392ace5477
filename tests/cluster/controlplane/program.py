"""One program of the cluster: started, stopped, killed, paused and restarted by its own process id, its log kept.

Used for every process here, Kubernetes' and gpuplane's. Invariants: a program dies with the process that started it, by
SIGKILL too (gpuplane/run/parent_death.py); one that does not become ready, or ends by itself, is told with the end of
its log.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PARENT_DEATH = ROOT / "gpuplane" / "run" / "parent_death.py"
READY_SECONDS = 90.0
STOP_SECONDS = 20.0
LOG_LINES = 40


class ProgramFailed(Exception):
    """A program ended or did not become ready; the text has the end of its log."""


class Program:
    """A program by name. `environment` is asked for at each start; `ready` until it is true, while the process runs."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        folder: Path,
        environment: Callable[[], Mapping[str, str]] | None = None,
        ready: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self.command = [str(word) for word in command]
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._environment = environment or (lambda: os.environ)
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id. ProgramFailed where none runs."""
        if self._process is None:
            raise ProgramFailed(f"{self.name} was not started")
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs (paused counts)."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start, and with `wait` return when it is ready."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-SE", str(PARENT_DEATH), str(os.getpid()), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(self._environment()),
                cwd=ROOT,
                start_new_session=True,
            )
        if wait:
            self.wait_ready()

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Return when it is ready. ProgramFailed when it ends or takes longer."""
        deadline = time.monotonic() + seconds
        while self._ready is not None and not self._ready():
            if not self.alive:
                raise ProgramFailed(f"{self.name} ended with {self._status()}:\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ProgramFailed(f"{self.name} was not ready after {seconds:.0f} s:\n{self.tail()}")
            time.sleep(0.05)  # another process announces its readiness to nobody

    def stop(self) -> None:
        """SIGTERM, then SIGKILL; returns when it is gone."""
        if self._process is None:
            return
        self.resume()
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL to it and whatever it started; returns when it is gone."""
        if self._process is None:
            return
        self._signal(signal.SIGKILL)
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def cpu_seconds(self) -> float:
        """CPU time used by the running process so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def tail(self, lines: int = LOG_LINES) -> str:
        """The end of its log."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _status(self) -> str:
        code = None if self._process is None else self._process.returncode
        return "nothing" if code is None else f"signal {-code}" if code < 0 else f"status {code}"


PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to outgoing connections: else one of these may take the port of a server that is
being restarted.
"""
WORKERS = 4
"""Of pytest, at most."""
_given: set[int] = set()
"""What was given to somebody, who may not listen there yet."""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on; taken together, so that they differ. None is given twice, and each
    worker of pytest has its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
    own = set(PORTS[worker::WORKERS]) - _given
    with ExitStack() as stack:
        found: list[int] = []
        for port in random.sample(sorted(own), len(own)):
            one = stack.enter_context(socket.socket())
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue  # somebody has it
            found.append(port)
            if len(found) == count:
                _given.update(found)
                return found
    raise ProgramFailed(f"no {count} ports of {PORTS} are free")


def listens(port: int) -> bool:
    """Whether somebody accepts connections on this port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
