"""The pod watch: ends and failed schedulings reach the ledger within two seconds (DESIGN §3, Release; LEASE-4).

Called by `allocations.tasks.watch_pods`, one turn at a time. Kept true: an event says where to look, the row in
the ledger and its conditional move say what is true, so an event that comes twice, late or from a stalled
worker does no harm; where the watch has lost its place everything is compared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.db import DatabaseError, connections

from allocations import ledger, making_way
from allocations.attempts import refused_condition
from allocations.choices import State
from allocations.counters import Cause, collected
from allocations.models import PodRefusal
from allocations.outside import outside
from allocations.reconcile import reconcile
from allocations.reconcile.failed import NOT_SCHEDULED, failed_by_pod
from allocations.reconcile.rows import live_rows
from allocations.reconcile.run import why_over
from allocations.services import release_now
from allocations.sightings import cluster_missed, cluster_seen
from allocations.waiting import forget_waiting, is_waiting, note_waiting
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
        watching = Watching(threads, known=set(PodRefusal.objects.values_list("pod_uid", flat=True)))
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

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        *,
        known: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`known`: UIDs of pods that have a row of those that wait; what is not among them the next comparison finds."""
        self._threads = threads
        self._waiting = Waiting(known)
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
        if self._waiting.saw(pod, deleted=deleted):
            self._begin(self._waiting.write)
        if not (deleted or pod.finished or refused_condition(pod)):
            return
        for row in live_rows(pod_uid=pod.metadata.uid):
            why = "the pod is gone" if deleted else why_over(row, pod)
            if row.state is State.BOUND and why:
                self._begin(_release, row.id, why)
            elif row.state is State.HELD and (deleted or pod.finished or failed_by_pod(row, pod)):
                ended = deleted or pod.finished
                dropped = ledger.drop_hold(
                    allocation_id=row.id,
                    outcome=State.RELEASED if ended else State.FAILED,
                    reason=why if ended else NOT_SCHEDULED,
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


class Waiting:
    """Pods that wait, as the watch saw them last, until one thread has written them: however many change, reading goes on."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = set(known)
        self._lock = threading.Lock()
        self._unwritten: dict[str, Pod | None] = {}
        self._writing = False

    def saw(self, pod: Pod, *, deleted: bool) -> bool:
        """Note it where it is news; True where `write` is to be called for it."""
        uid = pod.metadata.uid
        waits = not deleted and refused_condition(pod) is not None and is_waiting(pod)
        over = uid in self._known and (deleted or pod.finished or bool(pod.spec.node_name))
        if not (waits or over):
            return False
        (self._known.add if waits else self._known.discard)(uid)
        with self._lock:
            self._unwritten[uid] = pod if waits else None
            begin, self._writing = not self._writing, True
        return begin

    def write(self) -> None:
        """In a thread of its own: everything that was noted, and what comes meanwhile. What fails here the next comparison does."""
        done = False
        try:
            while some := self._taken():
                note_waiting([pod for pod in some.values() if pod is not None], database_now())
                forget_waiting(uid for uid, pod in some.items() if pod is None)
            done = True
        except DatabaseError as error:
            log.warning("watch.waiting_unwritten", error=str(error))
        finally:
            if not done:
                with self._lock:
                    self._writing = False
            connections.close_all()

    def _taken(self) -> dict[str, Pod | None]:
        with self._lock:
            some, self._unwritten = self._unwritten, {}
            self._writing = bool(some)
        return some


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
