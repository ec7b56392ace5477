"""One comparison of the ledger with the cluster: read the ledger, then the cluster, then act on unchanged rows.

Called every 25 s by `allocations.tasks.reconcile`, on start, after a watch has lost its place, and by
`manage.py reconcile`. Invariants: it is level-based and idempotent, so any number may run; nothing changes while the
API server does not answer; every move is conditional on the row as it was read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
import structlog
from django.conf import settings

from allocations import ledger
from allocations.backends import Backends
from allocations.choices import State
from allocations.cluster_health import cluster_answered, cluster_failed
from allocations.component_pods import is_slot
from allocations.counters import (
    COMPARISONS,
    DIFFERENCES,
    REPAIRED,
    CollectionCause,
    ComparisonOutcome,
    RepairKind,
    collected,
)
from allocations.reconcile.adoption import (
    Closed,
    adopt_running,
    runs_with_devices,
)
from allocations.reconcile.closing import close, closed_devices, undecodable_devices, unreported_devices
from allocations.reconcile.conflicts import conflicts_note, overlaps
from allocations.reconcile.failed import NOT_SCHEDULED, failed_by_pod
from allocations.reconcile.kubelets import Corrected, correct_choices
from allocations.reconcile.leases import compare_leases, compare_rows, take_leases
from allocations.reconcile.report import ACTOR, Difference, Found, Reconciled, differences_report
from allocations.reconcile.requeue import REMINDER
from allocations.reconcile.reservation_pods import (
    adopt_groups,
    groups_of,
    is_reservation,
    reservations_of,
)
from allocations.reconcile.rows import Row, live_rows
from allocations.reconcile.unallocated import awaiting_checkpoint, bound_elsewhere, without_devices
from allocations.reconcile.unverified_devices import UnverifiedDevices, open_devices, unverified
from allocations.scheduling.binder import release_now
from allocations.scheduling.reservation_pods.settle import settle_groups
from allocations.scheduling.resizing import write_result
from allocations.waiting import compare_waiting
from claims.dialects.adopted import Adoption, Unreadable
from claims.dialects.read_back import read_allocation
from kube import leases, nodes, pods
from kube.client import Cluster
from kube.errors import KubeError, PermanentKubeError
from kube.keys import ALLOCATED, CHOSEN_BY
from kube.listing import Unreadable as UnreadableObject
from kube.objects import Pod
from nodes.advertise import advertise
from nodes.checkpoints import grants_by_kubelets
from nodes.choices import NodeState, Presence
from nodes.cluster import follow_all
from nodes.models import Device, Node
from storage.clock import RunningClock

log = structlog.get_logger(__name__)

SETTLED = timedelta(seconds=60)
"""A bound row is so old before its pod, where the cluster shows it unbound, counts as unbound."""


class _Seen(msgspec.Struct, frozen=True):
    """The cluster. `leases` are read before `pods`: what holds a lease has a pod."""

    pods: dict[str, Pod]
    leases: list[leases.Lease]
    nodes: list[nodes.Node]
    unreadable_nodes: frozenset[str]
    unreadable: list[UnreadableObject]
    reserving: list[Pod]
    """Reservation pods, which are not among `pods`."""

    @property
    def unreadable_pods(self) -> list[tuple[str, str]]:
        """(namespace, name) of each."""
        return [item.key for item in self.unreadable]


class _Before(NamedTuple):
    """The ledger as it was read before the cluster."""

    rows: Sequence[Row]
    closed: Closed
    unverified: UnverifiedDevices


def reconcile(*, backends: Backends, now: datetime, may_write_results: bool = True) -> Reconciled:
    """Compare and repair. Never raises `kube.errors`: what went wrong with the cluster is the result's `problem`.

    `may_write_results`: whether admission takes results of allocations from this process (GPUPLANE_SERVICE_ACCOUNT).
    """
    done = _compare(backends, now, may_write_results)
    COMPARISONS.labels((ComparisonOutcome.INTERRUPTED if done.problem else ComparisonOutcome.DONE).value).inc()
    DIFFERENCES.inc(done.differences)
    for what in RepairKind:
        REPAIRED.labels(what.value).inc(getattr(done, what.value))
    collected(CollectionCause.POD_GONE, done.released)
    collected(CollectionCause.HOLD_OVER, done.holds_dropped)
    collected(CollectionCause.LEASE_LEFT_OVER, done.leases_deleted)
    return done


def _compare(backends: Backends, now: datetime, may_write_results: bool) -> Reconciled:
    found = [_recount(now)]
    closed = closed_devices()
    if backends.cluster is None:
        found += [compare_rows(backends=backends, now=now), Found(close({}, before=closed, now=now))]
        return _report(Found.total(found), now)
    clock = RunningClock(now)
    before = _Before(live_rows(), closed, unverified())
    try:
        seen = _look(backends.cluster)
    except KubeError as error:
        cluster_failed(str(error))
        log.warning("reconcile.cluster_unseen", error=str(error))
        unseen = Found(Reconciled(problem=f"the API server does not answer: {error}"))
        return Found.total([*found, unseen]).done
    cluster_answered(clock.now)
    problem = ""
    try:
        for part in _parts(backends, backends.cluster, before, seen, now, may_write_results):
            found.append(part)  # one by one: what came before a failure counts
    except KubeError as error:
        problem = f"the API server stopped answering: {error}"
        log.warning("reconcile.interrupted", error=str(error), permanent=isinstance(error, PermanentKubeError))
    parts = Found.total([*found, Found(Reconciled(problem=problem))])
    labels = [f"{namespace}/{name}" for namespace, name in seen.unreadable_pods]
    opened = conflicts_note(differences=parts.differences, unreadable=labels, complete=not problem, now=now)
    done = _report(Found.total([parts, Found(Reconciled(lines=tuple(opened)))]), now)
    if not done.quiet:
        counts = {key: value for key, value in msgspec.to_builtins(done).items() if value and key != "lines"}
        log.info("reconcile.done", **counts)
    return done


def _report(found: Found, now: datetime) -> Reconciled:
    """Everything done; the differences are written as events."""
    differences = found.differences
    reported = Reconciled(
        differences=len(differences),
        reported=differences_report(differences=differences, now=now),
        lines=tuple(difference.message for difference in differences),
    )
    return Reconciled.total([found.done, reported])


def _parts(
    backends: Backends, cluster: Cluster, before: _Before, seen: _Seen, now: datetime, may_write_results: bool
) -> Iterator[Found]:
    """The parts of a comparison, in their order. Raises KubeError."""
    yield _nodes(cluster, seen, now)
    yield from _pods(before.rows, seen, now)
    if may_write_results:
        yield _results(cluster, before.rows, seen)
    given = grants_by_kubelets()
    corrected = correct_choices(pods=seen.pods, given=given, now=now)
    yield from _follow(corrected, backends, now)
    reservations = reservations_of(seen.reserving)
    running = [pod for pod in seen.pods.values() if runs_with_devices(pod, given, reservations)]
    adopted = adopt_running(pods=running, given=given, reservations=reservations, since=now, now=now)
    lines = tuple(f"adopted {live.holder.label}, which runs on {live.node}" for live in adopted.allocations)
    yield Found(Reconciled(adopted=len(adopted.allocations), lines=lines), adopted.differences)
    yield from (take_leases(live, backends, now) for live in adopted.allocations)
    sharing = {name for pod in seen.pods.values() if not pod.finished for name in groups_of(pod)}
    regrouped, unread = adopt_groups(reservations, shared=sharing, now=now)
    yield Found(Reconciled(adopted=len(regrouped), lines=tuple(regrouped)), unread)
    settled = settle_groups(cluster, now=now, sharing=sharing)
    yield Found(Reconciled(lines=tuple(settled.lines())))
    known = {live.holder.pod_uid for live in adopted.allocations}.union(row.pod_uid for row in before.rows)
    suspects = without_devices(cluster, seen.pods.values(), known)
    yield Found(differences=[*bound_elsewhere(suspects, given), *overlaps()])
    waiting = awaiting_checkpoint(suspects, now)
    causes = {
        **unreported_devices(suspects, waiting),
        **undecodable_devices(objects=seen.unreadable, known={(row.namespace, row.pod_name) for row in before.rows}),
        **corrected.closed,
        **adopted.closed,
    }
    yield Found(close(causes, before=before.closed, now=now))
    running_uids = {uid for uid, pod in seen.pods.items() if pod.spec.node_name and not pod.finished}
    leased = compare_leases(before=before.rows, seen=seen.leases, running=running_uids, backends=backends, now=now)
    yield leased
    if leased.done.strangers_marked:
        yield Found(close({}, now=now))  # the MIG instances of a GPU with an external holder
    ready = {node: ids for node, ids in before.unverified.items() if node not in waiting}
    yield Found(Reconciled(opened=open_devices(ready, now=now)))
    ended = compare_waiting(pods=seen.pods, unreadable=seen.unreadable_pods, listed_at=now)
    yield Found(Reconciled(waiting_ended=ended))
    yield Found(Reconciled(reminded=REMINDER.remind(pods=seen.pods, now=now)))


def _recount(now: datetime) -> Found:
    """Correct what devices say of their use; those that cannot be corrected are differences."""
    found = ledger.recount(now=now, actor=ACTOR)
    corrected = tuple(one.message for one in found if one.corrected)
    differences = [Difference(one.message, node=one.node) for one in found if not one.corrected]
    return Found(Reconciled(recounted=len(corrected), lines=corrected), differences)


def _look(cluster: Cluster) -> _Seen:
    held = leases.list_all(cluster, namespace=settings.GPUPLANE_NAMESPACE)
    listed = pods.list_all(cluster)
    machines = nodes.list_all(cluster)
    return _Seen(
        pods={pod.metadata.uid: pod for pod in listed.items if not (is_reservation(pod) or is_slot(pod))},
        leases=held,
        nodes=machines.items,
        unreadable_nodes=frozenset(item.key[1] for item in machines.unreadable),
        unreadable=listed.unreadable,
        reserving=[pod for pod in listed.items if is_reservation(pod)],
    )


def _nodes(cluster: Cluster, seen: _Seen, now: datetime) -> Found:
    changed = follow_all(machines=seen.nodes, unreadable=seen.unreadable_nodes, now=now)
    advertised = advertise(cluster=cluster, machines=seen.nodes, now=now)
    lines = (*changed, *(f"advertised the devices of {name}" for name in advertised))
    return Found(Reconciled(nodes_changed=len(changed), nodes_advertised=len(advertised), lines=lines))


def _pods(before: Sequence[Row], seen: _Seen, now: datetime) -> Iterator[Found]:
    """End rows whose pod has ended or was not scheduled; report pods that run otherwise than their row says."""
    going = [uid for uid, pod in seen.pods.items() if pod.metadata.deletion_timestamp]
    ledger.note_leaving(going, now=now)
    unreadable = set(seen.unreadable_pods)
    gone_nodes = set(Node.objects.filter(state=NodeState.GONE).values_list("name", flat=True))
    for row in before:
        if (row.namespace, row.pod_name) in unreadable:
            message = f"pod {row.label} cannot be read"
            yield Found(differences=[Difference(message, row.namespace, row.pod_name, row.node, row.id)])
        elif row.pod_uid:
            yield _pod(row, seen.pods.get(row.pod_uid), now)
        elif row.state is State.BOUND and row.node in gone_nodes:
            yield _released(row, "its node is gone", now)


def _results(cluster: Cluster, before: Sequence[Row], seen: _Seen) -> Found:
    """Write the annotations of pods whose share was resized, where the resize was cut off before it did."""
    resized = [row for row in before if row.resized and row.state is State.BOUND and row.pod_uid in seen.pods]
    written = []
    for row in resized:
        try:
            if write_result(cluster, row.id):
                written.append(row)
        except PermanentKubeError as error:  # this pod takes no annotations: the others, and the comparison, go on
            log.warning("reconcile.result_refused", pod=row.label, error=str(error))
    lines = tuple(f"pod {row.label} is told of the new amounts of its share" for row in written)
    return Found(Reconciled(corrected=len(written), lines=lines))


def _pod(row: Row, pod: Pod | None, now: datetime) -> Found:
    if row.state is State.BOUND:
        why = why_over(row, pod) or _unbound(row, pod, now)
        if why:
            return _released(row, why, now)
        if pod is not None:
            return Found(differences=_compared(row, pod))
    elif row.state is State.HELD:
        if pod is None or pod.finished:
            return _dropped(row, State.RELEASED, "the pod is gone" if pod is None else "the pod has finished", now)
        if failed_by_pod(row, pod):
            return _dropped(row, State.FAILED, NOT_SCHEDULED, now)
    # A reservation is left to its bind, and later to collection, which reads the pod.
    return Found()


def why_over(row: Row, pod: Pod | None) -> str:
    """Why a bound allocation has ended, empty while its pod holds the devices. A deletionTimestamp still holds."""
    if pod is None or pod.metadata.uid != row.pod_uid:
        return "the pod is gone"
    if pod.finished:
        return f"the pod has {pod.status.phase.lower()}"
    if pod.spec.node_name and pod.spec.node_name != row.node:
        return f"the pod runs on {pod.spec.node_name}"
    return ""


def _unbound(row: Row, pod: Pod | None, now: datetime) -> str:
    """The pod is bound nowhere, since the cluster was restored to before the Binding, say, and would wait for ever."""
    unbound = pod is not None and not pod.spec.node_name and now - row.changed_at > SETTLED
    return "the pod is not bound" if unbound else ""


def _compared(row: Row, pod: Pod) -> list[Difference]:
    written = read_allocation(pod) if pod.spec.node_name else None
    problem = ""
    if not pod.spec.node_name:
        problem = f"is not bound, while the ledger has it on {row.node}"
    elif isinstance(written, Unreadable):
        problem = f"carries an allocation that cannot be read: {written.problem}"
    elif written is None:
        problem = "" if row.adopted or CHOSEN_BY in pod.annotations else "lost its allocation annotation"
    elif not _same_devices(written, row):
        problem = "carries other devices in its annotation than the ledger gave it"
    if not problem:
        return []
    message = f"pod {row.label} ({row.pod_uid}) {problem}"
    disputed = _disputed(written, row) if isinstance(written, Adoption) else ()
    return [Difference(message, row.namespace, row.pod_name, row.node, row.id, disputed)]


def _disputed(written: Adoption, row: Row) -> tuple[tuple[int, str], ...]:
    """Devices that the pod's annotation names and the ledger did not give to it."""
    named = {
        (device.type, device.minor, "") if device.minor is not None else ("", -1, device.uuid)
        for device in written.devices
    }
    there = Device.objects.filter(node__name=row.node).exclude(presence=Presence.REMOVED)
    own = {grant.uuid for grant in row.grants}
    others = sorted(
        pk
        for pk, kind, minor, uuid in there.values_list("pk", "type", "minor", "uuid")
        if uuid not in own and {(kind, minor, ""), ("", -1, uuid)} & named
    )
    return tuple((pk, f"{row.namespace}/{row.pod_name}") for pk in others)


def _same_devices(written: Adoption, row: Row) -> bool:
    by_minor = {(device.type, device.minor) for device in written.devices if device.minor is not None}
    by_uuid = {device.uuid for device in written.devices if device.minor is None}
    ours = {(grant.type, grant.minor) for grant in row.grants}
    if by_uuid:
        return by_uuid == {grant.uuid for grant in row.grants}
    if written.source == ALLOCATED and len({kind for kind, _ in ours}) == 1:
        # minors alone, read as GPUs, whatever their type is
        return {minor for _, minor in by_minor} == {minor for _, minor in ours}
    return by_minor == ours


def _released(row: Row, why: str, now: datetime) -> Found:
    if not release_now(allocation_id=row.id, reason=why, now=now, actor=ACTOR):
        return Found()
    return Found(Reconciled(released=1, lines=(f"released the devices of {row.label} on {row.node}: {why}",)))


def _dropped(row: Row, outcome: State, why: str, now: datetime) -> Found:
    dropped = ledger.drop_hold(
        allocation_id=row.id, outcome=outcome, reason=why, now=now, actor=ACTOR, unchanged_since=row.changed_at
    )
    if not dropped:
        return Found()
    return Found(Reconciled(holds_dropped=1, lines=(f"dropped the hold of {row.label} on {row.node}: {why}",)))


def _follow(corrected: Corrected, backends: Backends, now: datetime) -> Iterator[Found]:
    """Follow the kubelets' records; leases are dropped first, since devices may pass from one pod to another."""
    yield Found(Reconciled(corrected=len(corrected.moved)), corrected.differences)
    for moved in corrected.moved:
        line = f"{moved.holder.label} has other devices of {moved.node}: the kubelet chose"
        yield Found(Reconciled(lines=(line,)))
        backends.leases.drop(moved.left, moved.holder.identity)
    for moved in corrected.moved:
        live = ledger.read_live(moved.allocation_id)
        if live is not None:
            yield take_leases(live, backends, now)
