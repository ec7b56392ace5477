"""The pod watch: ends and failed schedulings reach the ledger within two seconds (DESIGN §3, Release; LEASE-4).

Called by `allocations.tasks.watch_pods`, one turn at a time. Kept true: an event says where to look, the row in
the ledger and its conditional move say what is true, so an event that comes twice, late or from a stalled
worker does no harm; where the watch has lost its place everything is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, connections

from allocations import ledger, making_way
from allocations.choices import State
from allocations.counters import Cause, collected
from allocations.outside import outside
from allocations.reconcile import reconcile
from allocations.reconcile.rows import live_rows
from allocations.reconcile.run import refused_since, why_over
from allocations.services import release_now
from allocations.sightings import cluster_missed, cluster_seen
from audit.clock import database_now
from kube.client import Cluster
from kube.errors import KubeError
from kube.following import TURN_SECONDS, Followed, follow
from kube.objects import Pod
from kube.resources import PODS
from kube.watch import Changed, Event, Relisted

log = structlog.get_logger(__name__)

ACTOR = "watch"
NAME = "pods"
RELEASES_AT_ONCE = 4
SEEN_EVERY = 5.0
"""Seconds between two notes that the cluster was seen."""


def watch_pods(*, cluster: Cluster, seconds: float = TURN_SECONDS) -> Followed:
    """One turn. Raises `kube.errors` when it ends with the cluster out of reach, and Redis' errors."""
    with ThreadPoolExecutor(RELEASES_AT_ONCE, thread_name_prefix="release") as threads:
        watching = Watching(threads)
        try:
            return follow(
                cluster,
                redis_url=settings.GPUPLANE_REDIS_URL,
                name=NAME,
                resource=PODS,
                kind=Pod,
                handle=watching.handle,
                settle=watching.settle,
                seconds=seconds,
            )
        except KubeError as error:
            cluster_missed(str(error))
            raise


class Watching:
    """Handles the events of one turn; what takes requests to the API server is done beside the reading."""

    def __init__(self, threads: ThreadPoolExecutor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._threads = threads
        self._clock = clock
        self._begun: set[Future[None]] = set()
        self._noted = float("-inf")

    def handle(self, event: Event[Pod]) -> None:
        """One event. Raises DatabaseError: the next turn gets it again."""
        if self._clock() - self._noted >= SEEN_EVERY:
            self._noted = self._clock()
            cluster_seen(database_now())
        if isinstance(event, Relisted):
            reconcile(world=outside(), now=database_now())
        elif isinstance(event, Changed):
            self._changed(event.object, deleted=event.type == "DELETED")

    def settle(self) -> None:
        """Return when everything begun is complete."""
        wait(self._begun)
        self._begun = set()

    def _changed(self, pod: Pod, *, deleted: bool) -> None:
        if not (deleted or pod.finished or _refused(pod)):
            return
        for row in live_rows(pod_uid=pod.metadata.uid):
            why = "the pod is gone" if deleted else why_over(row, pod)
            if row.state is State.BOUND and why:
                self._begin(_release, row.id, why)
            elif row.state is State.HELD and (deleted or pod.finished or refused_since(pod, row.changed_at)):
                ended = deleted or pod.finished
                dropped = ledger.drop_hold(
                    allocation_id=row.id,
                    outcome=State.RELEASED if ended else State.FAILED,
                    reason=why if ended else "the pod was not scheduled",
                    now=database_now(),
                    actor=ACTOR,
                    unchanged_since=row.changed_at,
                )
                collected(Cause.HOLD_OVER, dropped)
        if (deleted or pod.finished) and making_way.is_promised(pod.metadata.uid):
            self._begin(_take_back, pod.metadata.uid)

    def _begin(self, work: Callable[..., None], *given: Any) -> None:
        self._begun = {job for job in self._begun if not job.done()}
        self._begun.add(self._threads.submit(work, *given))


def _refused(pod: Pod) -> bool:
    return any(one.type == "PodScheduled" and one.status == "False" for one in pod.status.conditions or ())


def _take_back(pod_uid: str) -> None:
    """In a thread of its own. What fails here the beat does."""
    try:
        making_way.gone(pod_uid, database_now())
    except DatabaseError as error:
        log.warning("watch.promise_kept", pod_uid=pod_uid, error=str(error))
    finally:
        connections.close_all()


def _release(allocation_id: UUID, why: str) -> None:
    """In a thread of its own. What fails here is done again by collection or by reconciling."""
    try:
        released = release_now(allocation_id=allocation_id, reason=why, now=database_now(), actor=ACTOR)
        collected(Cause.POD_ENDED, released)
    except DatabaseError as error:
        log.warning("watch.release_failed", allocation=str(allocation_id), error=str(error))
    finally:
        connections.close_all()
