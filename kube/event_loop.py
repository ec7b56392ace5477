"""The event loop on which threads of this process send their requests.

The web process lends its own loop; every other process starts one in a thread at the first request, and again in a
forked child.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, Final, TypeVar

import uvloop

T = TypeVar("T")

CHECK_SECONDS: Final = 1.0
"""How often a waiting thread checks whether the loop was closed."""


class LoopEnded(Exception):
    """The loop ended before the work did; it may have been done."""


class _Process:
    """State of the process."""

    lent: asyncio.AbstractEventLoop | None = None
    own: asyncio.AbstractEventLoop | None = None
    guard = threading.Lock()


def lend(loop: asyncio.AbstractEventLoop | None) -> None:
    """Have threads use this running loop; None for one of their own again."""
    _Process.lent = loop


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine on the process's loop, and block the calling thread until it returns or raises.

    Raises `LoopEnded`, and RuntimeError in the loop's own thread, which would wait for itself.
    """
    loop = _loop()
    if running_here() is loop:
        work.close()
        raise RuntimeError("a coroutine waits for the API server by `await`, not by a call that blocks its loop")
    future = asyncio.run_coroutine_threadsafe(work, loop)
    while True:
        try:
            return future.result(CHECK_SECONDS)
        except CancelledError as error:
            raise LoopEnded("the process ends") from error
        except TimeoutError as error:
            if not future.done():
                if loop.is_closed():
                    raise LoopEnded("the process ends") from error
            elif not future.cancelled() and future.exception() is error:
                raise  # the coroutine's own; else it ended just after the wait, and the next look takes what it gave
        except BaseException:
            future.cancel()  # no effect on a failed coroutine; of an interrupted thread nobody waits for the answer
            raise


def running_here() -> asyncio.AbstractEventLoop | None:
    """The loop that runs in the calling thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _loop() -> asyncio.AbstractEventLoop:
    lent = _Process.lent
    if lent is not None and not lent.is_closed():
        return lent
    own = _Process.own
    if own is not None:
        return own
    with _Process.guard:
        if _Process.own is None:
            own = uvloop.new_event_loop()
            threading.Thread(target=own.run_forever, name="kube-requests", daemon=True).start()
            _Process.own = own
        return _Process.own


def _forget() -> None:
    """A child has none of its parent's threads."""
    _Process.lent = _Process.own = None
    _Process.guard = threading.Lock()


os.register_at_fork(after_in_child=_forget)
