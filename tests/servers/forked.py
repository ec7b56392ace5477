"""Processes that run a module of the product or the tests, forked from one that has the packages of others in memory
(`tests.servers.forkserver`): a quarter of the CPU of `python -m MODULE`, and otherwise the same.

`start` gives a process that runs, `run` one that has ended. Standard output and errors go to files, so that nobody has
to read them meanwhile. Without pidfds (not Linux) each process is started anew.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from tests.servers import session

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
_PROGRAM = Path(__file__).with_name("forkserver.py")


class _Runs(Protocol):
    """What `subprocess.Popen` has of this."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class _Forked:
    """A child of the fork server, by the connection that asked for it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._said = b""
        self._status: int | None = None
        while b"\n" not in self._said:
            self._read()
        number, _, self._said = self._said.partition(b"\n")
        self.pid = int(number)

    def poll(self) -> int | None:
        if self._status is None and select.select([self._connection], [], [], 0)[0]:
            self._read()
            if self._said.endswith(b"\n"):
                self._status = int(self._said)
                self._connection.close()
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        ends = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if ends is None else ends - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            select.select([self._connection], [], [], left)
        assert self._status is not None
        return self._status

    def _read(self) -> None:
        part = self._connection.recv(64)
        if not part:
            raise RuntimeError("the fork server has ended")
        self._said += part


class Process:
    """A process that runs, or has ended. As a context: it is killed at the end of it."""

    def __init__(self, runs: _Runs, streams: tuple[IO[bytes], ...]) -> None:
        self._runs = runs
        self._streams = streams
        self._kept: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.wait(START_SECONDS)
        self._kept = [_content(stream) for stream in self._streams]
        for stream in self._streams:
            stream.close()

    @property
    def pid(self) -> int:
        return self._runs.pid

    @property
    def output(self) -> bytes:
        """Standard output so far."""
        return self._kept[0] if self._kept else _content(self._streams[0])

    @property
    def errors(self) -> str:
        """Standard errors so far."""
        return (self._kept[-1] if self._kept else _content(self._streams[-1])).decode(errors="replace")

    def poll(self) -> int | None:
        """The status once it has ended, negative for a signal."""
        return self._runs.poll()

    def wait(self, seconds: float) -> int:
        """The status at its end. Raises subprocess.TimeoutExpired."""
        return self._runs.wait(seconds)

    def send_signal(self, number: int) -> None:
        """Nothing happens to one that has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its parent may wait for it at this moment
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    module: str,
    *arguments: str,
    environment: Mapping[str, str],
    folder: Path = ROOT,
    given: bytes = b"",
    log: Path | None = None,
    new_session: bool = False,
) -> Process:
    """`python -m module arguments…` in `folder`, with `given` as standard input; a module called `-c` is a program.

    `log` takes standard output and errors both; without it each has a file of its own. `new_session` is for servers.
    """
    streams = (log.open("ab+"),) if log else (_unnamed_file(), _unnamed_file())
    with tempfile.TemporaryFile() as source:
        source.write(given)
        source.seek(0)
        numbers = [source.fileno(), streams[0].fileno(), streams[-1].fileno()]
        if hasattr(os, "pidfd_open"):
            asked: dict[str, object] = {"arguments": [module, *arguments], "environment": dict(environment)}
            asked |= {"folder": str(folder), "new_session": new_session}
            return Process(_forked(asked, numbers), streams)
        command = [sys.executable, *(() if module == "-c" else ("-m",)), module, *arguments]
        kept: Any = dict(zip(("stdin", "stdout", "stderr"), numbers, strict=True))
        kept |= {"env": dict(environment), "cwd": folder, "start_new_session": new_session}
        return Process(subprocess.Popen(command, **kept), streams)


def run(
    module: str, *arguments: str, environment: Mapping[str, str], given: bytes = b"", seconds: float = 120.0
) -> Process:
    """The same, ended. Raises subprocess.TimeoutExpired."""
    with start(module, *arguments, environment=environment, given=given) as process:
        process.wait(seconds)
    return process


def _unnamed_file() -> IO[bytes]:
    """Process closes it."""
    return tempfile.TemporaryFile()


def _content(stream: IO[bytes]) -> bytes:
    """All of it; where the process writes next stays as it is."""
    return os.pread(stream.fileno(), os.fstat(stream.fileno()).st_size, 0)


def _forked(asked: Mapping[str, object], streams: list[int]) -> _Forked:
    """`asked`: a `forkserver.Request`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(session.once("forkserver", _start)["path"])
    line = json.dumps(asked).encode() + b"\n"
    sent = socket.send_fds(connection, [line], streams)
    connection.sendall(line[sent:])
    return _Forked(connection)


def _start() -> dict[str, str]:
    folder = session.enter() / "forkserver"
    folder.mkdir(mode=0o700)
    path = folder / "forkserver.sock"
    # -P: the folder of the program has modules that are called as packages are
    guard = session.start("forkserver", [sys.executable, "-P", str(_PROGRAM), str(path)], folder=folder)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and not session.ended(guard):
        if path.exists():
            return {"path": str(path)}
        time.sleep(0.02)  # it announces itself by its socket alone
    raise RuntimeError(f"the fork server did not start:\n{(folder / 'server.log').read_text()}")
