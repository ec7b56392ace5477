"""Starts, watches and ends the process of one what-if run.

Called by `allocations.whatif.run` in the thread of the request, which waits here. Invariants: when `answer_to` returns
or raises, the process has ended and is reaped; it is given the text and nothing else of the web process (no
environment, no open file); of its answer `Confinement.answer_bytes` are read at most.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import msgspec
import structlog

from access.errors import BadInput, TooCostly, TookTooLong, TooLarge, Unavailable
from allocations.whatif.program import RunOutcome, Task

if TYPE_CHECKING:
    from access.clients import Client

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = (sys.executable, "-s", "-B", "-m", "allocations.whatif.program")
ENVIRONMENT: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
"""Variables that the program needs to start. No others are passed on: they hold secrets."""
CHUNK_BYTES: Final = 1 << 18
HEADER_BYTES: Final = 1 << 16

log = structlog.get_logger(__name__)


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one run. `memory_bytes` comes on top of the program itself, which takes some 60 MB."""

    deadline_seconds: float = 10.0
    cpu_seconds: int = 10
    memory_bytes: int = 256 << 20
    answer_bytes: int = 16 << 20
    program: tuple[str, ...] = PROGRAM


def answer_to(task: Task, text: bytes, *, confinement: Confinement, client: Client) -> bytes:
    """The answer's bytes. Raises BadInput, TooLarge; TooCostly, TookTooLong; Unavailable where the client has left."""
    limits = (confinement.cpu_seconds, confinement.memory_bytes, confinement.answer_bytes)
    ends = time.monotonic() + confinement.deadline_seconds
    process = subprocess.Popen(  # noqa: S603 - our own program
        [*confinement.program, str(os.getpid()), *map(str, limits)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=_environment(),
    )
    try:
        with process:  # closes its pipes
            try:
                request = msgspec.json.encode(task) + b"\n" + text
                output = _exchange(process, request, ends=ends, confinement=confinement, client=client)
            finally:
                process.kill()
                status = process.wait()
    except OSError as error:
        raise Unavailable(f"the what-if's process failed: {error.strerror or error}") from error
    return _answer(output, status, confinement)


def _environment() -> dict[str, str]:
    passed = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    return {**passed, "OPENBLAS_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}


def _exchange(
    process: subprocess.Popen[bytes], request: bytes, *, ends: float, confinement: Confinement, client: Client
) -> bytes:
    """Write the request, and read until the process closes its output."""
    sender, gone = socket.socketpair()

    def wake() -> None:
        sender.send(b".")

    with sender, gone, client.on_disconnect(wake), selectors.DefaultSelector() as selector:
        stdin, stdout = _unblocked(process.stdin), _unblocked(process.stdout)
        selector.register(stdin, selectors.EVENT_WRITE)
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(gone, selectors.EVENT_READ)
        rest, output = memoryview(request), bytearray()
        while True:
            seconds = ends - time.monotonic()
            if seconds <= 0:
                raise _late(confinement)
            for key, _ in selector.select(seconds):
                if key.fileobj is gone:
                    log.info("what_if.left", process=process.pid)
                    raise Unavailable("nobody waits for this run any more")
                if key.fileobj is stdin:
                    rest = _write(stdin, rest)
                    if not rest:
                        selector.unregister(stdin)
                        stdin.close()
                    continue
                part = os.read(stdout.fileno(), CHUNK_BYTES)
                if not part:
                    return bytes(output)
                output += part
                if len(output) > confinement.answer_bytes + HEADER_BYTES:
                    raise _too_long(confinement)


def _unblocked(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("the process was started with pipes")
    os.set_blocking(pipe.fileno(), False)
    return pipe


def _write(pipe: IO[bytes], rest: memoryview) -> memoryview:
    """What is left to write; nothing where the process has ended, whose status says why."""
    try:
        return rest[os.write(pipe.fileno(), rest[:CHUNK_BYTES]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]


def _answer(output: bytes, status: int, confinement: Confinement) -> bytes:
    """The answer out of the output of a process that ended with this status."""
    line, separator, body = output.partition(b"\n")
    if not separator:
        raise _died(status, confinement)
    outcome = msgspec.json.decode(line, type=RunOutcome)
    if outcome.status == "ok" and outcome.size == len(body):
        return body
    if outcome.status == "refused":
        raise (TooLarge if outcome.too_large else BadInput)(outcome.detail, field=outcome.field, rule=outcome.rule)
    if outcome.status == "memory":
        raise _out_of_memory(confinement)
    if outcome.status == "answer":
        raise _too_long(confinement)
    if outcome.status == "fault":
        log.error("what_if.fault", traceback=outcome.detail)
        raise RuntimeError("a what-if run failed")
    raise _died(status, confinement)


def _died(status: int, confinement: Confinement) -> Exception:
    """Why there is no answer, or half of one."""
    if status == -signal.SIGXCPU:
        return _late(confinement)
    if status == -signal.SIGKILL:  # by the kernel, short of memory
        return _out_of_memory(confinement)
    log.error("what_if.died", status=status)
    if status < 0:  # a library that cannot handle lack of memory aborts
        return _out_of_memory(confinement)
    return RuntimeError(f"a what-if's process ended with status {status}")


def _late(confinement: Confinement) -> TookTooLong:
    return TookTooLong(
        f"the scenario was not worked out within {confinement.deadline_seconds:g} seconds, and was ended; "
        "make it smaller, or run it with manage.py simulate",
        rule="deadline",
    )


def _out_of_memory(confinement: Confinement) -> TooCostly:
    mebibytes = confinement.memory_bytes >> 20
    return TooCostly(
        f"the scenario needs more than {mebibytes} MiB of memory; make it smaller, or run it with manage.py simulate",
        rule="memory",
    )


def _too_long(confinement: Confinement) -> TooCostly:
    mebibytes = confinement.answer_bytes >> 20
    return TooCostly(
        f"the answer has more than {mebibytes} MiB; make the scenario smaller, or run it with manage.py simulate",
        rule="answer",
    )
