"""Threads for binds of slots on nodes in mode device-plugin, which wait until a reservation pod has got the GPU.

One object for each run of `inference.loop`. Invariants: a slot has at most one bind at a time; a run ends without
waiting for binds: they continue in their threads, and garbage collection undoes interrupted ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import structlog
from django.db import DatabaseError, connections

from inference.models import Slot
from kube.errors import KubeError

THREADS: Final = 4

log = structlog.get_logger(__name__)


class SlowBinds:
    """A pool of threads. `bind` takes a slot through the steps of its bind."""

    def __init__(self, bind: Callable[[Slot], object]) -> None:
        self._bind = bind
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="slot-bind")
        self._under_way: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, slot: Slot) -> None:
        """Start binding the slot in a thread, unless its bind is under way."""
        with self._lock:
            if slot.pk in self._under_way:
                return
            self._under_way.add(slot.pk)
        self._pool.submit(self._run, slot).add_done_callback(_report)

    def close(self) -> None:
        """Start no further bind. Those that run continue."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, slot: Slot) -> None:
        try:
            self._bind(slot)
        except (KubeError, DatabaseError) as error:
            log.warning("slots.bind_broken", slot=slot.pk, why=str(error))
        finally:
            with self._lock:
                self._under_way.discard(slot.pk)
            connections.close_all()


def _report(job: Future[None]) -> None:
    """Log an unexpected error, which the pool would hide; garbage collection ends the bind."""
    error = None if job.cancelled() else job.exception()
    if error is not None:
        log.error("slots.bind_failed", exc_info=error)
