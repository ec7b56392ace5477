"""A process that dies between two of its steps: after each commit to the ledger, and after each write to the API
server.

`killing()` is for a process of its own, which dies by SIGKILL; `Deaths` plays it within the test's process, for a
machine: the step raises `Died`, and so does every later step of the same "process" until `rise()`. What counts as a
step is what others can see: a verb of the ledger that has returned, a write of a Lease, a Binding or a pod that the API
server was asked for.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from allocations import ledger
from allocations.scheduling.reservation_pods import steps
from kube.http1 import Request
from kube.transport import Transport

VERBS = (
    "hold",
    "reserve_held",
    "reserve",
    "take_up",
    "bound",
    "all_bound",
    "begin_release",
    "finish_release",
    "drop_hold",
    "resize",
)
GROUP_VERBS = ("join_groups", "note_pods", "place_group", "fail_group", "release_unused", "end_groups")
"""Those that the steps of reservation pods call."""
WRITES = re.compile(r"/leases|/binding$|/pods/[^/]+$|/pods$")


class Died(Exception):
    """The process is dead, as far as anybody else can tell."""


class Deaths:
    """Counts steps while armed; the last one is made, and then the process is dead."""

    def __init__(self, patch: pytest.MonkeyPatch, *, die: Callable[[], None] | None = None) -> None:
        """`die`: what happens at the step; by default `Died` is raised."""
        self._die = die
        self._left: int | None = None
        self._dead = False
        self._lock = threading.Lock()
        for name in VERBS:
            patch.setattr(ledger, name, self._verb(getattr(ledger, name)))
        for name in GROUP_VERBS:
            patch.setattr(steps, name, self._verb(getattr(steps, name)))
        patch.setattr(Transport, "send", self._write(Transport.send))

    @property
    def dead(self) -> bool:
        """Whether it died since it was armed."""
        return self._dead

    def arm(self, steps: int) -> None:
        """Die when so many steps were made."""
        self._left = steps

    def rise(self) -> None:
        """The process that comes after it lives."""
        self._left, self._dead = None, False

    def _before(self) -> None:
        if self._dead:
            raise Died

    def _after(self) -> None:
        with self._lock:
            if self._left is None:
                return
            self._left -= 1
            if self._left > 0:
                return
            self._dead = True
        if self._die is not None:
            self._die()
        raise Died

    def _verb(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(verb)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._before()
            outcome = verb(*args, **kwargs)
            self._after()
            return outcome

        return counted

    def _write(self, send: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(send)
        async def counted(transport: Transport, request: Request) -> Any:
            if not request.write or not WRITES.search(request.target):
                return await send(transport, request)
            self._before()
            answer = await send(transport, request)
            self._after()
            return answer

        return counted


def killing(steps: int) -> Deaths:
    """This process kills itself after so many steps, counted from now."""
    deaths = Deaths(pytest.MonkeyPatch(), die=lambda: os.kill(os.getpid(), signal.SIGKILL))
    deaths.arm(steps)
    return deaths
