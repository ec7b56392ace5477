"""What the worker of test_broker_lost loads with `--include`: two tasks, and Redis dying at one exact moment.

The moment: a task runs, so its message is not acknowledged; a BRPOP is under way; and the kernel tells of the
lost pub/sub connection first, of the one that waits in BRPOP later. Celery then closes that one's channel
twice, the second time after the transport let go of its settings.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from pathlib import Path

from kombu.transport import redis

from gpuplane.celery import app

LONGEST_SECONDS = 60.0

_held = threading.Event()
_gone = threading.Event()
_noticed = threading.Event()
_back = threading.Event()

_brpop_start = redis.Channel._brpop_start
_on_readable = redis.MultiChannelPoller.on_readable


@app.task(name="tests.hold")
def hold(folder: str) -> None:
    """Run from before Redis dies until the worker consumes again, so that the acknowledgement is a late one."""
    _held.set()
    if _back.wait(LONGEST_SECONDS):
        Path(folder, "held").touch()


@app.task(name="tests.note")
def note(path: str) -> None:
    """Show that tasks are worked on."""
    Path(path).touch()


def _start_and_lose(channel: redis.Channel, timeout: float | None = None) -> None:
    _brpop_start(channel, timeout)
    if _gone.is_set():
        _back.set()
    elif _held.is_set():
        _kill(int(os.environ["REDIS_TO_KILL"]))
        _gone.set()


def _listen_first(poller: redis.MultiChannelPoller, fileno: int) -> None:
    kind = poller._fd_to_chan.get(fileno, (None, ""))[1]
    if _gone.is_set() and not _noticed.is_set():
        if kind == "BRPOP":
            return  # still readable the next time round
        _noticed.set()
    _on_readable(poller, fileno)


def _kill(process: int) -> None:
    """End a process that is no child of ours, and wait: its sockets are closed then."""
    handle = os.pidfd_open(process)
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], LONGEST_SECONDS)
    finally:
        os.close(handle)


if "REDIS_TO_KILL" in os.environ:
    redis.Channel._brpop_start = _start_and_lose  # type: ignore[method-assign]  # the stub
    redis.MultiChannelPoller.on_readable = _listen_first  # type: ignore[method-assign]  # the stub
