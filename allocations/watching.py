"""The watches of pods and of events FailedScheduling: ends and failed attempts reach the ledger within two seconds
(LEASE-3, LEASE-4).

Called by `allocations.tasks`, one run at a time. kube-scheduler patches a pod only where the text of its failure
changes, so a second failure of one kind shows in the event alone. Invariants: rows change by conditional moves alone,
so an event that comes twice, late or from a stalled worker does no harm. Where the watch of pods has lost its place
everything is compared; the watch of events has no list, and a hold whose event was missed expires. An event of no hold
takes one query.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

import structlog
from django.conf import settings
from django.db import DatabaseError, connections

from allocations import ledger
from allocations.attempts import refused_condition
from allocations.backends import current_backends
from allocations.choices import GroupState, State
from allocations.cluster_health import cluster_answered, cluster_failed
from allocations.component_pods import is_slot
from allocations.counters import CollectionCause, collected
from allocations.models import Allocation, GpuGroup, PodRefusal
from allocations.reconcile import reconcile
from allocations.reconcile.failed import NOT_SCHEDULED, failed_by_event, failed_by_pod
from allocations.reconcile.reservation_pods import is_reservation
from allocations.reconcile.rows import Row, live_rows
from allocations.reconcile.run import why_over
from allocations.reconcile.unverified_devices import verify_devices
from allocations.scheduling import preemption
from allocations.scheduling.binder import release_now
from allocations.scheduling.reservation_pods.settle import settle_groups
from allocations.waiting import forget_waiting, is_waiting, note_waiting
from audit.queue_wake import wake_queues
from claims.dialects.parse import may_run_with_devices
from kube.client import Cluster
from kube.errors import KubeError
from kube.keys import KAI_GPU_GROUP_LABEL
from kube.objects import Pod
from kube.resources import EVENTS, PODS
from kube.scheduling_events import SELECTOR, SchedulingEvent
from kube.watch import Changed, Event, Relisted
from kube.watch_loop import RUN_SECONDS, Followed, follow
from storage.clock import database_now
from storage.leader_lock import leader_lock

log = structlog.get_logger(__name__)

ACTOR = "watch"
RELEASES_AT_ONCE = 4
NEVER_TRIED = "SchedulingGated"
"""PodScheduled=False for this reason says of no attempt that it failed."""
SEEN_EVERY = 5.0
"""Seconds between two notes that the cluster was seen."""


def watch_scheduling_events(*, cluster: Cluster, seconds: float = RUN_SECONDS) -> Followed:
    """One run. Raises `kube.errors` when it ends with the cluster out of reach, and Redis' errors."""
    return follow(
        cluster,
        lock=partial(leader_lock, settings.GPUPLANE_REDIS_URL),
        name="scheduling-events",
        resource=EVENTS,
        kind=SchedulingEvent,
        handle=_handle_scheduling_event,
        field_selector=SELECTOR,
        from_now=True,
        seconds=seconds,
    )


def _handle_scheduling_event(event: Event[SchedulingEvent]) -> None:
    """One event. Raises DatabaseError: the next run gets it again."""
    if not isinstance(event, Changed) or event.type == "DELETED":
        return
    about = event.object.involved_object
    held = Allocation.objects.filter(pod_uid=about.uid, state=State.HELD, attempt_version=about.resource_version)
    if not about.uid or not held.exists():
        return
    for row in live_rows(pod_uid=about.uid):
        if row.state is State.HELD and failed_by_event(row, event.object):
            _drop_hold(row, State.FAILED, NOT_SCHEDULED)


def _drop_hold(row: Row, outcome: State, reason: str) -> None:
    dropped = ledger.drop_hold(
        allocation_id=row.id,
        outcome=outcome,
        reason=reason,
        now=database_now(),
        actor=ACTOR,
        unchanged_since=row.changed_at,
    )
    collected(CollectionCause.HOLD_OVER, dropped)


def watch_pods(*, cluster: Cluster, seconds: float = RUN_SECONDS) -> Followed:
    """One run. Raises `kube.errors` when it ends with the cluster out of reach, and Redis' errors."""
    with ThreadPoolExecutor(RELEASES_AT_ONCE, thread_name_prefix="release") as threads:
        watching = Watching(threads, known=set(PodRefusal.objects.values_list("pod_uid", flat=True)))
        try:
            return follow(
                cluster,
                lock=partial(leader_lock, settings.GPUPLANE_REDIS_URL),
                name="pods",
                resource=PODS,
                kind=Pod,
                handle=watching.handle,
                settle=watching.settle,
                seconds=seconds,
            )
        except KubeError as error:
            cluster_failed(str(error))
            raise


class Watching:
    """Handles the events of one run; what sends requests to the API server runs in threads."""

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        *,
        known: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`known`: UIDs of waiting pods that have a row; rows of others are found by the next comparison."""
        self._threads = threads
        self._waiting = WaitingPods(known)
        self._clock = clock
        self._begun: set[Future[None]] = set()
        self._noted = float("-inf")

    def handle(self, event: Event[Pod]) -> None:
        """One event. Raises DatabaseError: the next run gets it again."""
        if self._clock() - self._noted >= SEEN_EVERY:
            self._noted = self._clock()
            cluster_answered(database_now())
        if isinstance(event, Relisted):
            # the worker's comparison writes results: admission takes none from the watch
            reconcile(backends=current_backends(), now=database_now(), may_write_results=False)
        elif isinstance(event, Changed):
            self._changed(event.object, deleted=event.type == "DELETED")

    def settle(self) -> None:
        """Return when all that was begun has ended. Raises what failed and nothing foresaw, each time: such a
        run stores no newer place, so that its events come again.
        """
        wait(self._begun)
        self._begun = {job for job in self._begun if job.exception() is not None}
        for job in self._begun:
            job.result()

    def _changed(self, pod: Pod, *, deleted: bool) -> None:
        if is_reservation(pod):
            self._reservation_changed(pod, deleted=deleted)
            return
        if is_slot(pod):
            wake_queues()  # the slots' loop listens as well
            return
        if self._waiting.note(pod, deleted=deleted):
            self._begin("watch.waiting_unwritten", self._waiting.write)
        if pod.metadata.deletion_timestamp and not deleted:
            ledger.note_leaving([pod.metadata.uid], now=database_now())
        refused = refused_condition(pod)
        if not (deleted or pod.finished or (refused is not None and refused.reason != NEVER_TRIED)):
            return
        rows = live_rows(pod_uid=pod.metadata.uid)
        for row in rows:
            why = "the pod is gone" if deleted else why_over(row, pod)
            if row.state in (State.RESERVED, State.BOUND) and why:
                self._begin("watch.release_failed", partial(_release, row, why), allocation=str(row.id))
            elif row.state is State.HELD and (deleted or pod.finished or failed_by_pod(row, pod)):
                ended = deleted or pod.finished
                _drop_hold(row, State.RELEASED if ended else State.FAILED, why if ended else NOT_SCHEDULED)
        if (deleted or pod.finished) and pod.spec.node_name and not rows and may_run_with_devices(pod):
            self._begin("watch.devices_not_verified", _verify_devices)
        if (deleted or pod.finished) and preemption.has_reservation(pod.metadata.uid):
            uid = pod.metadata.uid
            self._begin("watch.reservation_kept", lambda: preemption.pod_gone(uid, database_now()), pod_uid=uid)

    def _reservation_changed(self, pod: Pod, *, deleted: bool) -> None:
        """A reservation pod that is lost, or one of a group without protection, moves its group on."""
        group = pod.labels[KAI_GPU_GROUP_LABEL]
        lost = deleted or pod.finished or pod.metadata.deletion_timestamp
        if lost or GpuGroup.objects.filter(name=group, state=GroupState.UNPROTECTED).exists():
            self._begin("watch.group_not_settled", partial(_settle_group, group), group=group)

    def _begin(self, failure: str, work: Callable[[], None], **about: str) -> None:
        """Run in a thread. What fails is logged as `failure`, and done later by collection or a comparison."""
        self._begun = {job for job in self._begun if not job.done() or job.exception() is not None}
        self._begun.add(self._threads.submit(_run, failure, work, about))


class WaitingPods:
    """Changes of waiting pods that a thread is to write, so that the watch reads on however many there are."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = set(known)
        self._lock = threading.Lock()
        self._unwritten: dict[str, Pod | None] = {}
        self._writing = False

    def note(self, pod: Pod, *, deleted: bool) -> bool:
        """Note a pod that waits, or no longer does; True where `write` is to be called."""
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
        """Write all that was noted, and what is noted meanwhile."""
        try:
            while some := self._taken():
                note_waiting([pod for pod in some.values() if pod is not None], database_now())
                forget_waiting(uid for uid, pod in some.items() if pod is None)
        except BaseException:
            with self._lock:
                self._writing = False
            raise

    def _taken(self) -> dict[str, Pod | None]:
        with self._lock:
            some, self._unwritten = self._unwritten, {}
            self._writing = bool(some)
        return some


def _release(row: Row, why: str) -> None:
    if row.state is State.RESERVED and ledger.note_ended(allocation_id=row.id, reason=why):
        return  # the answer to its Binding is under way; who confirms the bind releases it
    released = release_now(allocation_id=row.id, reason=why, now=database_now(), actor=ACTOR)
    collected(CollectionCause.POD_ENDED, released)


def _verify_devices() -> None:
    """A pod without a row has gone: it may have kept the devices of a new node closed, as a trigger pod does."""
    try:
        verify_devices(backends=current_backends(), now=database_now())
    except KubeError as error:
        log.info("watch.devices_not_verified", error=str(error))


def _settle_group(name: str) -> None:
    cluster = current_backends().cluster
    if cluster is None:
        return
    try:
        settle_groups(cluster, now=database_now(), names=[name])
    except KubeError as error:
        log.info("watch.group_not_settled", group=name, error=str(error))


def _run(failure: str, work: Callable[[], None], about: Mapping[str, str]) -> None:
    try:
        work()
    except DatabaseError as error:
        log.warning(failure, error=str(error), **about)
    finally:
        connections.close_all()
