"""Which node is reserved for which preemptor: rows of `nodes.models.PreemptionReservation` that end by time.

Called by the other modules of this package, by bind (the pod is bound), by the watch (the pod is gone), and by the
beat. Invariants: the rows are the only record, no process remembers any of it; in the same transaction the reserved
devices say for whom they are kept, so every verb that takes devices sees it in its snapshot, and the ledger refuses
whoever did not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.db import IntegrityError
from django.db.models import Q, QuerySet

from allocations.backends import Backends, current_backends
from allocations.choices import LIVE, State
from allocations.counters import RESERVATIONS_BEGUN, RESERVATIONS_ENDED
from allocations.engine.amounts import Amounts
from allocations.engine.victims import EvictionPlan
from allocations.ledger import Live
from allocations.ledger.device_reservations import keep
from allocations.models import Allocation
from allocations.pod_request import PodRequest
from audit.requeue_notify import announce
from claims.dialects.request import DeviceRequest
from kube import pods
from kube.errors import KubeError
from kube.objects import Pod
from nodes.advertise import advertise_pods, advertise_soon
from nodes.models import Device, Node, PreemptedInVain, PreemptionReservation
from storage.transactions import atomic_retry

LASTS = timedelta(seconds=30)
"""How long a reservation lasts; once its victims are being evicted, for as long as one of them still holds devices."""
LONGEST = timedelta(hours=1)
"""But no longer than that."""
AHEAD = timedelta(seconds=12)
"""The beat prolongs reservations that would end before the run after the next."""
SHUNNED = timedelta(minutes=5)
"""A node that was reserved for a pod, and where kube-scheduler looked for no victims, is not reserved for it again for
so long.
"""
REQUEST_SECONDS = 2.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Preemptor:
    """A pod that asks for devices and may evict others; `own`: what it holds itself."""

    pod: Pod
    priority: int
    request: DeviceRequest
    own: dict[int, Amounts] | None

    @classmethod
    def of(cls, pod: Pod, pod_request: PodRequest, live: Live | None) -> Preemptor | None:
        """None for a pod that kube-scheduler does not count, which takes no part in preemption."""
        if pod_request.priority is None:
            return None
        return cls(pod, pod_request.priority, pod_request.request, None if live is None else live.amounts)

    @property
    def uid(self) -> str:
        """The pod's."""
        return self.pod.metadata.uid


def _rows() -> QuerySet[PreemptionReservation]:
    return PreemptionReservation.objects.select_related("node").defer("node__links", "node__disputed")


def live(now: datetime) -> list[PreemptionReservation]:
    """All reservations that have not ended, the oldest first; one query on a table of a few rows."""
    return list(_rows().filter(until__gt=now).order_by("made_at", "pk"))


def reserve(
    preemptor: Preemptor, eviction: EvictionPlan, *, node: str, pods_there: int, victims_sent: bool, now: datetime
) -> bool:
    """Write, or move, the pod's reservation, and advertise it on the node.

    `pods_there`: what the node is to advertise of `gpu.scheduling/pods`. `victims_sent`: to kube-scheduler.
    False when the node is gone, or another process wrote a reservation of the pod meanwhile.
    """
    meta = preemptor.pod.metadata
    before = _rows().filter(pod_uid=meta.uid).first()
    row = Node.objects.filter(name=node).first()
    if row is None:
        return False
    made = PreemptionReservation(
        node=row,
        pod_uid=meta.uid,
        namespace=meta.namespace,
        pod_name=meta.name,
        priority=preemptor.priority,
        pods=pods_there,
        victims=sorted(victim.pod_uid for victim in eviction.victims),
        devices=sorted(eviction.devices),
        victims_sent=victims_sent,
        made_at=now,
        until=now + LASTS,
    )
    try:
        write(made)
    except IntegrityError as error:
        log.info("preemption.reserved_elsewhere", pod=meta.name, error=str(error))
        return False
    RESERVATIONS_BEGUN.inc()
    log.info(
        "preemption.reserved",
        node=node,
        pod=meta.name,
        victims=len(made.victims),
        pods=pods_there,
        victims_sent=victims_sent,
    )
    _advertise(node, now)
    if before is not None and before.node.name != node:
        _advertise(before.node.name, now)
    return True


@atomic_retry
def write(made: PreemptionReservation) -> None:
    """Replace the pod's reservation. Raises IntegrityError: another process just did, or the node is gone."""
    before = _locked(Q(pod_uid=made.pod_uid))
    PreemptionReservation.objects.filter(pod_uid=made.pod_uid).delete()
    made.pk = None
    PreemptionReservation.objects.bulk_create([made])
    PreemptionReservation.objects.filter(node=made.node).update(pods=made.pods)
    keep(devices_of([made, *before]), now=made.made_at)
    _note_vain([one for one in before if not one.victims_sent and one.until <= made.made_at], made.made_at)


def _locked(which: Q) -> list[PreemptionReservation]:
    """These reservations, locked by the current transaction."""
    return list(_rows().select_for_update(of=("self",)).filter(which).order_by("pk"))


def _note_vain(reservations: Iterable[PreemptionReservation], now: datetime) -> None:
    for one in reservations:
        PreemptedInVain.objects.update_or_create(pod_uid=one.pod_uid, node=one.node, defaults={"until": now + SHUNNED})


def end(reservations: Iterable[PreemptionReservation], now: datetime, *, vain: bool = False) -> None:
    """End reservations; their nodes advertise plenty again, or what is left for others. `vain`: the node did not
    help.
    """
    ended = list(reservations)
    if not ended:
        return
    deleted = _delete([one.pk for one in ended], now, vain=vain)
    RESERVATIONS_ENDED.labels("yes" if vain else "no").inc(deleted)
    for node in sorted({one.node.name for one in ended}):
        log.info("preemption.ended", node=node, vain=vain)
        _advertise(node, now)


@atomic_retry
def _delete(ids: Collection[int], now: datetime, *, vain: bool) -> int:
    """How many there were: two processes may end the same one, and the pod may have another by now, which stays."""
    found = _locked(Q(pk__in=ids))
    PreemptionReservation.objects.filter(pk__in=[one.pk for one in found]).delete()
    keep(devices_of(found), now=now)
    if vain:
        _note_vain(found, now)
    return len(found)


def _advertise(node: str, now: datetime) -> None:
    """Update the node's status at once; where the API server does not answer a worker does it, or reconciling."""
    cluster = current_backends().cluster
    if cluster is None:
        return
    try:
        advertise_pods(cluster=cluster, node=node, now=now, timeout=REQUEST_SECONDS)
    except KubeError as error:
        log.warning("preemption.status_unwritten", node=node, error=str(error))
        advertise_soon(node=node)


def has_reservation(pod_uid: str) -> bool:
    """Whether a node is reserved for the pod."""
    return PreemptionReservation.objects.filter(pod_uid=pod_uid).exists()


def pod_bound(pod_uid: str, now: datetime) -> None:
    """End the reservation of a pod that is bound."""
    end(_rows().filter(pod_uid=pod_uid), now)


def pod_gone(pod_uid: str, now: datetime) -> None:
    """End the reservation of a pod that is gone, and wake the pods that wait for its devices."""
    ended = list(_rows().filter(pod_uid=pod_uid))
    end(ended, now)
    for one in ended:
        announce(node=one.node.name)


def nodes_in_vain(pod_uid: str, now: datetime) -> set[str]:
    """Nodes that were reserved for the pod in vain, lately; also one whose reservation has just ended unused."""
    noted = PreemptedInVain.objects.filter(pod_uid=pod_uid, until__gt=now)
    lapsed = PreemptionReservation.objects.filter(pod_uid=pod_uid, victims_sent=False, until__lte=now)
    return {*noted.values_list("node__name", flat=True), *lapsed.values_list("node__name", flat=True)}


def end_stale(*, now: datetime, backends: Backends) -> int:
    """End reservations whose pod is bound or gone, or whose time is over; returns how many.

    Those whose victims have not gone yet are prolonged.
    """
    PreemptedInVain.objects.filter(until__lte=now).delete()
    rows = list(_rows())
    placed = Allocation.objects.filter(state__in=(State.RESERVED, State.BOUND))
    holding = set(placed.filter(pod_uid__in=[one.pod_uid for one in rows]).values_list("pod_uid", flat=True))
    over: list[PreemptionReservation] = []
    vain: list[PreemptionReservation] = []
    for one in rows:
        if one.pod_uid in holding or _gone(one, backends):
            over.append(one)
        elif one.until - AHEAD > now:
            continue
        elif one.victims_sent and now < one.made_at + LONGEST and victims_remain(one):
            _prolong(one, now)
        elif one.until <= now:
            (over if one.victims_sent else vain).append(one)
    end(over, now)
    end(vain, now, vain=True)
    for one in [*over, *vain]:
        if one.pod_uid not in holding:
            announce(node=one.node.name)  # with reservations of equal rank left the node's status does not change
    _keep_all(now)
    return len(over) + len(vain)


@atomic_retry
def _prolong(reservation: PreemptionReservation, now: datetime) -> None:
    as_read = PreemptionReservation.objects.filter(pod_uid=reservation.pod_uid, until=reservation.until)
    if as_read.update(until=now + LASTS):
        keep(reservation.devices, now=now)


@atomic_retry
def _keep_all(now: datetime) -> None:
    """Bring all devices up to date: where a stronger reservation lapsed, a weaker one counts again."""
    said = set(Device.objects.exclude(kept_for="").values_list("pk", flat=True))
    keep(said | devices_of(live(now)), now=now)


def victims_remain(reservation: PreemptionReservation) -> bool:
    """Whether any of the victims holds devices still."""
    return Allocation.objects.filter(pod_uid__in=reservation.victims, state__in=LIVE).exists()


def _gone(reservation: PreemptionReservation, backends: Backends) -> bool:
    """Whether the pod no longer waits. An API server that does not answer says nothing."""
    if backends.cluster is None:
        return True
    try:
        pod = pods.find(
            backends.cluster, namespace=reservation.namespace, name=reservation.pod_name, timeout=REQUEST_SECONDS
        )
    except KubeError as error:
        log.info("preemption.pod_unread", pod=reservation.pod_name, error=str(error))
        return False
    return pod is None or pod.metadata.uid != reservation.pod_uid or bool(pod.spec.node_name) or pod.finished


def of_others(reservations: Sequence[PreemptionReservation], preemptor: Preemptor) -> list[PreemptionReservation]:
    """Those that the pod has to respect: of other pods of at least its priority."""
    return [one for one in reservations if one.pod_uid != preemptor.uid and one.priority >= preemptor.priority]


def victims_of(reservations: Collection[PreemptionReservation]) -> set[str]:
    """UIDs of all victims."""
    return {uid for one in reservations for uid in one.victims}


def devices_of(reservations: Collection[PreemptionReservation]) -> frozenset[int]:
    """Ids of all reserved devices."""
    return frozenset(device for one in reservations for device in one.devices)
