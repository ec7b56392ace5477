"""One comparison of the ledger with the cluster: read the ledger, then the cluster, then act on what is unchanged.

Called every 25 s by `allocations.tasks.reconcile`, on start, after a watch has lost its place, and by
`manage.py reconcile`. Kept true: it is level-based and idempotent, so any number may run; a cluster that does
not answer changes nothing (DESIGN §6); every move is conditional on the row as it was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
import structlog
from django.conf import settings

from allocations import ledger
from allocations.choices import State
from allocations.counters import COMPARISONS, DIFFERENCES, REPAIRED, Cause, Outcome, What, collected
from allocations.outside import Outside
from allocations.reconcile.adoption import (
    Closed,
    GivenByPod,
    adopt_running,
    awaiting_checkpoint,
    ran_past,
    runs_with_devices,
)
from allocations.reconcile.closing import Changes, close, shut_devices, undecoded, untold
from allocations.reconcile.conflicts import conflicts_note, overlaps
from allocations.reconcile.failed import NOT_SCHEDULED, failed_by_pod
from allocations.reconcile.forgotten import REMINDER
from allocations.reconcile.kubelets import correct_choices
from allocations.reconcile.leases import Leased, compare_leases, compare_rows, take_leases
from allocations.reconcile.newcomers import newcomers, open_devices
from allocations.reconcile.report import ACTOR, Difference, differences_report
from allocations.reconcile.rows import Row, live_rows
from allocations.services import release_now
from allocations.sightings import cluster_missed, cluster_seen
from allocations.waiting import compare_waiting
from audit.clock import database_now
from claims.dialects import Adoption, Unreadable, read_allocation
from kube import leases, nodes, pods
from kube.client import Cluster
from kube.errors import KubeError, PermanentKubeError
from kube.keys import ALLOCATED, CHOSEN_BY
from kube.listing import Unreadable as UnreadableObject
from kube.objects import Pod
from nodes.advertise import advertise
from nodes.checkpoints import given_by_kubelets
from nodes.choices import NodeState, Presence
from nodes.cluster import follow_all
from nodes.models import Device, Node

log = structlog.get_logger(__name__)

SETTLED = timedelta(seconds=60)
"""A bound row is that old before a pod that the cluster shows unbound counts as such."""


class Reconciled(msgspec.Struct):
    """What one comparison did. `problem`: why nothing (more) was done, empty when all went well."""

    recounted: int = 0
    released: int = 0
    holds_dropped: int = 0
    adopted: int = 0
    leases_taken: int = 0
    leases_deleted: int = 0
    strangers_marked: int = 0
    strangers_cleared: int = 0
    opened: int = 0
    closed: int = 0
    reopened: int = 0
    reminded: int = 0
    waiting_ended: int = 0
    corrected: int = 0
    nodes_changed: int = 0
    nodes_advertised: int = 0
    differences: int = 0
    reported: int = 0
    problem: str = ""
    lines: list[str] = []
    """One sentence for each thing done or found, for people."""

    @property
    def quiet(self) -> bool:
        """Nothing was done and nothing was wrong."""
        return not (self.lines or self.problem)


class _Seen(msgspec.Struct, frozen=True):
    """The cluster, at about one moment. `leases` before `pods`: what holds a lease has a pod."""

    pods: dict[str, Pod]
    leases: list[leases.Lease]
    nodes: list[nodes.Node]
    unreadable_nodes: frozenset[str]
    unreadable: list[UnreadableObject]


def reconcile(*, world: Outside, now: datetime) -> Reconciled:
    """Compare and repair. Never raises `kube.errors`: what went wrong with the cluster is the result's `problem`."""
    done = _compare(world, now)
    COMPARISONS.labels((Outcome.INTERRUPTED if done.problem else Outcome.DONE).value).inc()
    DIFFERENCES.inc(done.differences)
    for what in What:
        REPAIRED.labels(what.value).inc(getattr(done, what.value))
    collected(Cause.POD_GONE, done.released)
    collected(Cause.HOLD_OVER, done.holds_dropped)
    collected(Cause.LEASE_LEFT_OVER, done.leases_deleted)
    return done


def _compare(world: Outside, now: datetime) -> Reconciled:
    done = Reconciled()
    differences = _recount(now, done)
    shut = shut_devices()
    if world.cluster is None:
        _leased(compare_rows(world=world, now=now), done)
        _closed(close({}, before=shut, now=now), done)
        _report(differences, now, done)
        return done
    before = live_rows()
    unread = newcomers()
    try:
        seen = _look(world.cluster)
    except KubeError as error:
        done.problem = f"the API server does not answer: {error}"
        cluster_missed(str(error))
        log.warning("reconcile.cluster_unseen", error=str(error))
        return done
    cluster_seen(database_now())
    unreadable = [item.key for item in seen.unreadable]
    try:
        _nodes(world.cluster, seen, now, done)
        _pods(before, seen, now, done, differences)
        given = given_by_kubelets()
        closed = _choices(seen, given, world, now, done, differences)
        adopted = _adopt(seen, given, world, now, done, differences, closed)
        known = adopted.union(row.pod_uid for row in before)
        differences += ran_past(pods=seen.pods.values(), known=known)
        differences += overlaps()
        waiting = awaiting_checkpoint(pods=seen.pods.values(), known=known, now=now)
        closed = {
            **untold(pods=seen.pods.values(), known=known, waiting=waiting),
            **undecoded(objects=seen.unreadable, known={(row.namespace, row.pod_name) for row in before}),
            **closed,
        }
        _closed(close(closed, before=shut, now=now), done)
        found = compare_leases(before=before, seen=seen.leases, running=_running(seen), world=world, now=now)
        _leased(found, done)
        if found.marked:
            _closed(close({}, now=now), done)  # the MIG instances of a GPU that a stranger has go with it
        differences += found.differences
        done.opened = open_devices({node: ids for node, ids in unread.items() if node not in waiting}, now=now)
        done.waiting_ended = compare_waiting(pods=seen.pods, unreadable=unreadable, listed_at=now)
        done.reminded = REMINDER.remind(pods=seen.pods, now=now)
    except KubeError as error:
        done.problem = f"the API server stopped answering: {error}"
        log.warning("reconcile.interrupted", error=str(error), permanent=isinstance(error, PermanentKubeError))
    labels = [f"{namespace}/{name}" for namespace, name in unreadable]
    done.lines += conflicts_note(differences=differences, unreadable=labels, complete=not done.problem, now=now)
    _report(differences, now, done)
    if not done.quiet:
        counts = {key: value for key, value in msgspec.to_builtins(done).items() if value and key != "lines"}
        log.info("reconcile.done", **counts)
    return done


def _recount(now: datetime, done: Reconciled) -> list[Difference]:
    """Correct what devices say of their use; those that cannot be corrected."""
    found = ledger.recount(now=now, actor=ACTOR)
    done.recounted = sum(one.corrected for one in found)
    done.lines += [one.message for one in found if one.corrected]
    return [Difference(one.message, node=one.node) for one in found if not one.corrected]


def _report(differences: list[Difference], now: datetime, done: Reconciled) -> None:
    done.differences = len(differences)
    done.lines += [difference.message for difference in differences]
    done.reported = differences_report(differences=differences, now=now)


def _look(cluster: Cluster) -> _Seen:
    held = leases.list_all(cluster, namespace=settings.GPUPLANE_NAMESPACE)
    listed = pods.list_all(cluster)
    machines = nodes.list_all(cluster)
    return _Seen(
        pods={pod.metadata.uid: pod for pod in listed.items},
        leases=held,
        nodes=machines.items,
        unreadable_nodes=frozenset(item.key[1] for item in machines.unreadable),
        unreadable=listed.unreadable,
    )


def _running(seen: _Seen) -> set[str]:
    """UIDs of pods that have a node. One that waits holds nothing but by a row: a Lease of it without one came late."""
    return {uid for uid, pod in seen.pods.items() if pod.spec.node_name and not pod.finished}


# nodes


def _nodes(cluster: Cluster, seen: _Seen, now: datetime, done: Reconciled) -> None:
    changed = follow_all(machines=seen.nodes, unreadable=seen.unreadable_nodes, now=now)
    done.nodes_changed = len(changed)
    done.lines += changed
    advertised = advertise(cluster=cluster, machines=seen.nodes)
    done.nodes_advertised = len(advertised)
    done.lines += [f"advertised the devices of {name}" for name in advertised]


# pods


def _pods(before: Sequence[Row], seen: _Seen, now: datetime, done: Reconciled, differences: list[Difference]) -> None:
    """Rows whose pod has ended, or never got so far, are ended; what runs otherwise than the row says is reported."""
    unreadable = {item.key for item in seen.unreadable}
    gone_nodes = set(Node.objects.filter(state=NodeState.GONE).values_list("name", flat=True))
    for row in before:
        if (row.namespace, row.pod_name) in unreadable:
            differences.append(
                Difference(f"pod {row.label} cannot be read", row.namespace, row.pod_name, row.node, row.id)
            )
        elif row.pod_uid:
            _pod(row, seen.pods.get(row.pod_uid), now, done, differences)
        elif row.state is State.BOUND and row.node in gone_nodes:
            _release(row, "its node is gone", now, done)


def _pod(row: Row, pod: Pod | None, now: datetime, done: Reconciled, differences: list[Difference]) -> None:
    if row.state is State.BOUND:
        why = why_over(row, pod) or _unbound(row, pod, now)
        if why:
            _release(row, why, now, done)
        elif pod is not None:
            differences += _compared(row, pod)
    elif row.state is State.HELD:
        if pod is None or pod.finished:
            _drop(row, State.RELEASED, "the pod is gone" if pod is None else "the pod has finished", now, done)
        elif failed_by_pod(row, pod):
            _drop(row, State.FAILED, NOT_SCHEDULED, now, done)
    # A reservation belongs to its bind for as long as that may live, then to collection, which reads the pod.


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
    """The cluster was set back to before the Binding, say: the pod is bound nowhere, and would wait for ever."""
    unbound = pod is not None and not pod.spec.node_name and now - row.changed_at > SETTLED
    return "the pod is not bound" if unbound else ""


def _compared(row: Row, pod: Pod) -> list[Difference]:
    told = read_allocation(pod) if pod.spec.node_name else None
    problem = ""
    if not pod.spec.node_name:
        problem = f"is not bound, while the ledger has it on {row.node}"
    elif isinstance(told, Unreadable):
        problem = f"carries an allocation that cannot be read: {told.problem}"
    elif told is None:
        problem = "" if row.adopted or CHOSEN_BY in pod.annotations else "lost its allocation annotation"
    elif not _same_devices(told, row):
        problem = "carries other devices in its annotation than the ledger gave it"
    if not problem:
        return []
    message = f"pod {row.label} ({row.pod_uid}) {problem}"
    disputed = _disputed(told, row) if isinstance(told, Adoption) else ()
    return [Difference(message, row.namespace, row.pod_name, row.node, row.id, disputed)]


def _disputed(told: Adoption, row: Row) -> tuple[tuple[int, str], ...]:
    """Devices that the pod's annotation names and the ledger did not give it: to others, or to nobody yet."""
    named = {
        (device.type, device.minor, "") if device.minor is not None else ("", -1, device.uuid)
        for device in told.devices
    }
    there = Device.objects.filter(node__name=row.node).exclude(presence=Presence.REMOVED)
    own = {grant.uuid for grant in row.grants}
    others = sorted(
        pk
        for pk, kind, minor, uuid in there.values_list("pk", "type", "minor", "uuid")
        if uuid not in own and {(kind, minor, ""), ("", -1, uuid)} & named
    )
    return tuple((pk, f"{row.namespace}/{row.pod_name}") for pk in others)


def _same_devices(told: Adoption, row: Row) -> bool:
    by_minor = {(device.type, device.minor) for device in told.devices if device.minor is not None}
    by_uuid = {device.uuid for device in told.devices if device.minor is None}
    ours = {(grant.type, grant.minor) for grant in row.grants}
    if by_uuid:
        return by_uuid == {grant.uuid for grant in row.grants}
    if told.source == ALLOCATED and len({kind for kind, _ in ours}) == 1:
        # minors alone, read as GPUs, whatever their type is
        return {minor for _, minor in by_minor} == {minor for _, minor in ours}
    return by_minor == ours


def _release(row: Row, why: str, now: datetime, done: Reconciled) -> None:
    if release_now(allocation_id=row.id, reason=why, now=now, actor=ACTOR):
        done.released += 1
        done.lines.append(f"released the devices of {row.label} on {row.node}: {why}")


def _drop(row: Row, outcome: State, why: str, now: datetime, done: Reconciled) -> None:
    dropped = ledger.drop_hold(
        allocation_id=row.id, outcome=outcome, reason=why, now=now, actor=ACTOR, unchanged_since=row.changed_at
    )
    if dropped:
        done.holds_dropped += 1
        done.lines.append(f"dropped the hold of {row.label} on {row.node}: {why}")


def _choices(
    seen: _Seen,
    given: GivenByPod,
    world: Outside,
    now: datetime,
    done: Reconciled,
    differences: list[Difference],
) -> Closed:
    """Follow the kubelets' records; leases are let go of first, since devices may change hands. What they close."""
    corrected = correct_choices(pods=seen.pods, given=given, now=now)
    done.corrected = len(corrected.moved)
    differences += corrected.differences
    for moved in corrected.moved:
        done.lines.append(f"{moved.holder.label} has other devices of {moved.node}: the kubelet chose")
        world.leases.drop(moved.left, moved.holder.identity)
    lives = [ledger.read_live(moved.allocation_id) for moved in corrected.moved]
    differences += _take_leases([live for live in lives if live is not None], world, done)
    return corrected.closed


def _adopt(
    seen: _Seen,
    given: GivenByPod,
    world: Outside,
    now: datetime,
    done: Reconciled,
    differences: list[Difference],
    closed: Closed,
) -> set[str]:
    """UIDs of the pods that were adopted. `closed`: gets what the others hold, or may hold."""
    running = [pod for pod in seen.pods.values() if runs_with_devices(pod, given)]
    adopted = adopt_running(pods=running, given=given, since=now, now=now)
    done.adopted = len(adopted.allocations)
    differences += adopted.differences
    closed.update(adopted.closed)
    done.lines += [f"adopted {live.holder.label}, which runs on {live.node}" for live in adopted.allocations]
    differences += _take_leases(adopted.allocations, world, done)
    return {live.holder.pod_uid for live in adopted.allocations}


def _take_leases(lives: Iterable[ledger.Live], world: Outside, done: Reconciled) -> list[Difference]:
    """Those of pods that run already; what stands in the way."""
    found = Leased()
    for live in lives:
        take_leases(live, world, found)
    _leased(found, done)
    return found.differences


def _closed(changes: Changes, done: Reconciled) -> None:
    done.closed, done.reopened = changes.closed, changes.opened
    done.lines += changes.lines


def _leased(found: Leased, done: Reconciled) -> None:
    counts: Mapping[str, tuple[str, list[str]]] = {
        "leases_taken": ("took lease", found.taken),
        "leases_deleted": ("deleted lease", found.deleted),
        "strangers_marked": ("a stranger holds lease", found.marked),
        "strangers_cleared": ("a stranger let go of lease", found.cleared),
    }
    for name, (verb, names) in counts.items():
        setattr(done, name, getattr(done, name) + len(names))
        done.lines += [f"{verb} {lease}" for lease in names]
