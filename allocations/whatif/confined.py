"""Starts, watches and ends the process of one what-if run.

Called by `allocations.whatif.run` in the thread of the request, which waits here and does nothing else; the event loop and the pools of
other doors are never waited on. Kept true: when `answer_to` returns or raises, the process has ended and is reaped, whether it answered,
passed its deadline, wrote too much, died, or lost its client; it was given nothing of the web process but the text (no environment, no
open file); no more of its answer is kept than `Confinement.answer_bytes`.
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
from allocations.whatif.program import Task, Told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from access.clients import Client

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = (sys.executable, "-s", "-B", "-m", "allocations.whatif.program")
ENVIRONMENT: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
"""What of the web process's environment the program needs to start. Nothing else of it is passed on: secrets are there."""
CHUNK_BYTES: Final = 1 << 18
HEADER_BYTES: Final = 1 << 16

log = structlog.get_logger(__name__)


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """What one run may take. `memory_bytes` is beside the program itself, which has some 60 MB."""

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
        env=_environment(os.environ),
    )
    try:
        with process:  # closes its pipes
            try:
                asked = msgspec.json.encode(task) + b"\n" + text
                said = _exchange(process, asked, ends=ends, confinement=confinement, client=client)
            finally:
                ended = _end(process)
    except OSError as error:
        raise Unavailable(f"the what-if's process failed: {error.strerror or error}") from error
    return _read(said, ended, confinement)


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    passed = {name: ours[name] for name in ENVIRONMENT if name in ours}
    return {**passed, "OPENBLAS_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}


def _end(process: subprocess.Popen[bytes]) -> int:
    """Kill it, if it has not ended, and reap it. Its exit status: minus the signal, where one ended it."""
    if process.poll() is None:
        process.kill()
    return process.wait()


def _exchange(
    process: subprocess.Popen[bytes], asked: bytes, *, ends: float, confinement: Confinement, client: Client
) -> bytes:
    """Write what is asked, read what is said until the process closes its output."""
    told, left = socket.socketpair()
    told.setblocking(False)
    with told, left, client.telling(lambda: _note(told)), selectors.DefaultSelector() as selector:
        to_it, from_it = _pipe(process.stdin), _pipe(process.stdout)
        selector.register(to_it, selectors.EVENT_WRITE)
        selector.register(from_it, selectors.EVENT_READ)
        selector.register(left, selectors.EVENT_READ)
        rest, said = memoryview(asked), bytearray()
        while True:
            seconds = ends - time.monotonic()
            if seconds <= 0:
                raise _late(confinement)
            for key, _ in selector.select(seconds):
                if key.fileobj is left:
                    log.info("what_if.left", process=process.pid)
                    raise Unavailable("nobody waits for this run any more")
                if key.fileobj is to_it:
                    rest = _write(to_it, rest)
                    if not rest:
                        selector.unregister(to_it)
                        to_it.close()
                    continue
                part = os.read(from_it.fileno(), CHUNK_BYTES)
                if not part:
                    return bytes(said)
                said += part
                if len(said) > confinement.answer_bytes + HEADER_BYTES:
                    raise _too_long(confinement)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise AssertionError("the process was started with pipes")
    os.set_blocking(pipe.fileno(), False)
    return pipe


def _write(pipe: IO[bytes], rest: memoryview) -> memoryview:
    """What is left to be written. A process that does not read any more is asked no more: it ends, and its status says why."""
    try:
        return rest[os.write(pipe.fileno(), rest[:CHUNK_BYTES]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]


def _note(told: socket.socket) -> None:
    """Wake the thread that waits. Once is enough; a full buffer means that it has been told."""
    try:
        told.send(b".")
    except BlockingIOError:
        return


def _read(said: bytes, ended: int, confinement: Confinement) -> bytes:
    """The answer out of what the process said."""
    line, separator, body = said.partition(b"\n")
    if not separator:
        raise _died(ended, confinement)
    told = msgspec.json.decode(line, type=Told)
    if told.status == "ok" and told.size == len(body):
        return body
    if told.status == "refused":
        raise (TooLarge if told.too_large else BadInput)(told.detail, field=told.field, rule=told.rule)
    if told.status == "memory":
        raise _out_of_memory(confinement)
    if told.status == "answer":
        raise _too_long(confinement)
    if told.status == "fault":
        log.error("what_if.fault", traceback=told.detail)
        raise RuntimeError("a what-if run failed")
    raise _died(ended, confinement)


def _died(ended: int, confinement: Confinement) -> Exception:
    """Why there is no answer, or half of one."""
    if ended in (-signal.SIGXCPU, -signal.SIGKILL):
        # Its CPU seconds are its deadline where it has a core to itself; a SIGKILL that is not ours comes from the kernel, short of memory.
        return _late(confinement) if ended == -signal.SIGXCPU else _out_of_memory(confinement)
    log.error("what_if.died", status=ended)
    if ended < 0:  # a library that cannot do without memory ends its process
        return _out_of_memory(confinement)
    return RuntimeError(f"a what-if's process ended with status {ended}")


def _late(confinement: Confinement) -> TookTooLong:
    return TookTooLong(
        f"the scenario was not worked out within {confinement.deadline_seconds:g} seconds, and was ended; "
        "make it smaller, or run it with manage.py simulate"
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
