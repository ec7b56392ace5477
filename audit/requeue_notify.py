"""Announces to the cluster what no Kubernetes event shows: that capacity or a claim has appeared.

Services call it inside the transaction that makes the change. Invariants: nothing is sent before the commit, after a
rollback or without a cluster; the caller never waits and never fails. A process that serves agents alone may not write
to nodes: a worker announces for it (`audit.tasks.announce_for_another`), while the broker is away the next comparison.
At most one announcement in `EVERY_SECONDS` over all processes that share a Redis, without Redis one a process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import structlog
from django.conf import settings
from django.db import transaction

from audit.queue_wake import wake_queues
from kube.requeue_notify import Announcer
from kube.shared import shared_cluster
from storage.enqueue import send_after_commit
from storage.redis_client import REDIS_ERRORS, Purpose, shared_client

TASK: Final = "audit.tasks.announce_for_another"
EVERY_SECONDS: Final = 1.0
GATE_KEY: Final = "gpuplane:announced"

log = structlog.get_logger(__name__)


def announce(*, node: str = "") -> None:
    """Requeue kube-scheduler's refused pods after the commit. `node`: where capacity appeared, if known."""
    wake_queues()
    if settings.GPUPLANE_KUBECONFIG and settings.GPUPLANE_AGENTS_ONLY:
        send_after_commit(TASK, node)
    elif settings.GPUPLANE_KUBECONFIG:
        own = announcer(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_REDIS_URL)
        transaction.on_commit(lambda: own.ask(node=node))


def announced(*, seconds: float) -> bool:
    """Wait until this process's announcements are sent; False if that takes longer. For commands before they exit."""
    if not settings.GPUPLANE_KUBECONFIG:
        return True
    return announcer(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_REDIS_URL).settled(seconds=seconds)


_lock = threading.Lock()


def announcer(kubeconfig: str, redis_url: str) -> Announcer:
    """The process's announcer for a cluster (kubeconfig as for `kube.shared`)."""
    with _lock:  # lru_cache alone makes one for each thread that asks before the first is made
        return _announcer(kubeconfig, redis_url)


@lru_cache(maxsize=4)
def _announcer(kubeconfig: str, redis_url: str) -> Announcer:
    return Announcer(lambda: shared_cluster(kubeconfig), SharedGate(redis_url))


class LocalGate:
    """One pass a process. `clock` in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = float("-inf")

    def pass_seconds(self) -> float:
        """0 for a pass, which closes the gate for `EVERY_SECONDS`; else the seconds until the next try."""
        now = self._clock()
        if now < self._next:
            return self._next - now
        self._next = now + EVERY_SECONDS
        return 0.0


class SharedGate:
    """One pass over all processes on a Redis; while it is away, one a process."""

    def __init__(self, url: str) -> None:
        self._client = shared_client(url, Purpose.STATUS)
        self._local = LocalGate()

    def pass_seconds(self) -> float:
        """0 for a pass, which closes the gate for `EVERY_SECONDS`; else the seconds until the next try."""
        try:
            if self._client.set(GATE_KEY, b"", nx=True, px=int(EVERY_SECONDS * 1000)):
                return 0.0
            left = self._client.pttl(GATE_KEY)
        except REDIS_ERRORS as error:
            log.info("announce.without_redis", why=str(error))
            return self._local.pass_seconds()
        return max(int(left), 1) / 1000
