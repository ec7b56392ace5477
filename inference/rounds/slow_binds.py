"""Binds that wait for a kubelet, beside the rounds: on nodes in mode device-plugin a reservation pod has to get the
GPU first.

Made by `inference.loop`, one for each run. Invariants: one bind of a slot at a time; a run that ends waits for none: a
bind goes on in its thread, and one that was interrupted is undone by garbage collection.
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
    """Some threads. `bind`: takes a slot through, as far as it comes."""

    def __init__(self, bind: Callable[[Slot], object]) -> None:
        self._bind = bind
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="slot-bind")
        self._under_way: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, slot: Slot) -> None:
        """Bind it beside the rounds, unless that is under way."""
        with self._lock:
            if slot.pk in self._under_way:
                return
            self._under_way.add(slot.pk)
        self._pool.submit(self._run, slot).add_done_callback(_report)

    def close(self) -> None:
        """Begin no more."""
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
    """Log what nothing foresaw, which the pool would keep to itself; garbage collection ends such a bind."""
    error = None if job.cancelled() else job.exception()
    if error is not None:
        log.error("slots.bind_failed", exc_info=error)
