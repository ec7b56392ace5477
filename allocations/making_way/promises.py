"""Which node makes way for which pod: rows that end by time.

Called by the other modules of this package, by bind (the pod has what it waited for), by the watch (it is gone), and by the beat. Kept true:
the database alone says what is so (`nodes.models.MakingWay`), and no process remembers any of it; in the same transaction the devices of a
promise say for whom they are kept, so that every verb that takes devices sees it in its picture, and the ledger refuses whoever did not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.db import IntegrityError

from access.transactions import atomic_retry
from allocations.choices import LIVE, State
from allocations.counters import WAYS_BEGUN, WAYS_ENDED
from allocations.engine.victims import Way
from allocations.ledger.keeping import keep
from allocations.models import Allocation
from allocations.outside import Outside, outside
from audit.announce import announce
from kube import pods
from kube.errors import KubeError
from kube.objects import Pod
from nodes.advertise import advertise_soon, pods_tell
from nodes.models import Device, MakingWay, Node, PreemptedInVain

LASTS = timedelta(seconds=30)
"""How long a node makes way; once its victims have been told to go, for as long as one of them still holds devices."""
LONGEST = timedelta(hours=1)
"""But no longer than that."""
AHEAD = timedelta(seconds=12)
"""Promises that would end before the second next look of the beat are prolonged, or not, at this one."""
SHUNNED = timedelta(minutes=5)
"""A node on which kube-scheduler looked for no victims, though it made way for a pod, does not make way for it again for so long."""
TELL_SECONDS = 2.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Promise:
    """One row. `told`: kube-scheduler knows the victims."""

    pod_uid: str
    namespace: str
    pod_name: str
    priority: int
    node: str
    pods: int
    victims: frozenset[str]
    devices: frozenset[int]
    told: bool
    made_at: datetime
    until: datetime


def live(now: datetime) -> list[Promise]:
    """All promises that still count, the oldest first; one query on a table of a few rows."""
    rows = (
        MakingWay.objects.filter(until__gt=now)
        .select_related("node")
        .defer("node__links", "node__disputed")
        .order_by("made_at", "pk")
    )
    return [_promise(row) for row in rows]


def promise(*, pod: Pod, priority: int, way: Way, node: str, pods_there: int, told: bool, now: datetime) -> bool:
    """Write, or move, the pod's promise, and tell the node's status. False when somebody else wrote one for it meanwhile.

    `pods_there`: what the node is to advertise of `gpu.scheduling/pods`.
    """
    before = (
        MakingWay.objects.filter(pod_uid=pod.metadata.uid)
        .select_related("node")
        .defer("node__links", "node__disputed")
        .first()
    )
    made = Promise(
        pod_uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        pod_name=pod.metadata.name,
        priority=priority,
        node=node,
        pods=pods_there,
        victims=frozenset(one.pod_uid for one in way.victims),
        devices=frozenset(way.devices),
        told=told,
        made_at=now,
        until=now + LASTS,
    )
    try:
        if not write(made):
            return False
    except IntegrityError as error:
        log.info("making_way.promised_elsewhere", pod=pod.metadata.name, error=str(error))
        return False
    WAYS_BEGUN.inc()
    log.info(
        "making_way.promised", node=node, pod=pod.metadata.name, victims=len(way.victims), pods=pods_there, told=told
    )
    tell(node, now)
    if before is not None and before.node.name != node:
        tell(before.node.name, now)
    return True


@atomic_retry
def write(made: Promise) -> bool:
    """Put the promise in place of what the pod was promised before. False: the node is gone. Raises IntegrityError: somebody else just did."""
    node = Node.objects.filter(name=made.node).first()
    if node is None:
        return False
    before = _locked([made.pod_uid])
    MakingWay.objects.filter(pod_uid=made.pod_uid).delete()
    MakingWay.objects.create(
        node=node,
        pod_uid=made.pod_uid,
        namespace=made.namespace,
        pod_name=made.pod_name,
        priority=made.priority,
        pods=made.pods,
        victims=sorted(made.victims),
        devices=sorted(made.devices),
        told=made.told,
        made_at=made.made_at,
        until=made.until,
    )
    MakingWay.objects.filter(node=node).update(pods=made.pods)
    keep(made.devices | devices_of(before), now=made.made_at)
    _note_vain([one for one in before if not one.told and one.until <= made.made_at], made.made_at)
    return True


def _locked(pod_uids: Collection[str]) -> list[Promise]:
    """What these pods are promised, in the current transaction's hands."""
    rows = MakingWay.objects.select_for_update(of=("self",)).filter(pod_uid__in=pod_uids).order_by("pk")
    return [_promise(row) for row in rows.select_related("node").defer("node__links", "node__disputed")]


def _note_vain(promises: Iterable[Promise], now: datetime) -> None:
    for one in promises:
        node = Node.objects.filter(name=one.node).first()
        if node is not None:
            until = {"until": now + SHUNNED}
            PreemptedInVain.objects.update_or_create(pod_uid=one.pod_uid, node=node, defaults=until)


def end(promises: Iterable[Promise], now: datetime, *, vain: bool = False) -> None:
    """Take promises back; their nodes advertise plenty again, or what is left for others. `vain`: the node did not help."""
    ended = list(promises)
    if not ended:
        return
    WAYS_ENDED.labels("yes" if vain else "no").inc(_delete([one.pod_uid for one in ended], now, vain=vain))
    for node in sorted({one.node for one in ended}):
        log.info("making_way.ended", node=node, vain=vain)
        tell(node, now)


@atomic_retry
def _delete(pod_uids: Collection[str], now: datetime, *, vain: bool) -> int:
    """How many there were: two may end the same one."""
    found = _locked(pod_uids)
    MakingWay.objects.filter(pod_uid__in=pod_uids).delete()
    keep(devices_of(found), now=now)
    if vain:
        _note_vain(found, now)
    return len(found)


def tell(node: str, now: datetime) -> None:
    """Bring the node's status up to date at once; where the API server does not answer a worker does it, or reconciling."""
    cluster = outside().cluster
    if cluster is None:
        return
    try:
        pods_tell(cluster=cluster, node=node, now=now, timeout=TELL_SECONDS)
    except KubeError as error:
        log.warning("making_way.untold", node=node, error=str(error))
        advertise_soon(node=node)


def served(pod_uid: str, now: datetime) -> None:
    """The pod is bound: nobody makes way for it any more."""
    end(
        [
            _promise(row)
            for row in MakingWay.objects.filter(pod_uid=pod_uid)
            .select_related("node")
            .defer("node__links", "node__disputed")
        ],
        now,
    )


def is_promised(pod_uid: str) -> bool:
    """Whether a node makes way for the pod. One look at a table of a few rows."""
    return MakingWay.objects.filter(pod_uid=pod_uid).exists()


def gone(pod_uid: str, now: datetime) -> None:
    """The pod is: what was promised to it is free for whoever waits, who is woken."""
    ended = [
        _promise(row)
        for row in MakingWay.objects.filter(pod_uid=pod_uid)
        .select_related("node")
        .defer("node__links", "node__disputed")
    ]
    end(ended, now)
    for one in ended:
        announce(node=one.node)


def shunned(pod_uid: str, now: datetime) -> set[str]:
    """Nodes that made way for the pod in vain, lately; also one whose time for it is over just now, nobody having asked for victims there."""
    noted = PreemptedInVain.objects.filter(pod_uid=pod_uid, until__gt=now)
    lapsed = MakingWay.objects.filter(pod_uid=pod_uid, told=False, until__lte=now)
    return {*noted.values_list("node__name", flat=True), *lapsed.values_list("node__name", flat=True)}


def tidy(*, now: datetime, world: Outside) -> int:
    """End promises whose pod is bound or gone, or whose time is over; returns how many. Those whose victims are still going last on."""
    PreemptedInVain.objects.filter(until__lte=now).delete()
    rows = [_promise(row) for row in MakingWay.objects.select_related("node").defer("node__links", "node__disputed")]
    uids = [one.pod_uid for one in rows]
    holding = set(
        Allocation.objects.filter(pod_uid__in=uids, state__in=(State.RESERVED, State.BOUND)).values_list(
            "pod_uid", flat=True
        )
    )
    over: list[Promise] = []
    vain: list[Promise] = []
    for one in rows:
        if one.pod_uid in holding or _gone(one, world):
            over.append(one)
        elif one.until - AHEAD > now:
            continue
        elif one.told and now < one.made_at + LONGEST and still_going(one):
            _prolong(one, now)
        elif one.until <= now:
            (over if one.told else vain).append(one)
    end(over, now)
    end(vain, now, vain=True)
    for one in [*over, *vain]:
        if one.pod_uid not in holding:
            announce(node=one.node)  # where others of its rank wait the node's status may stay as it is
    _keep_all(now)
    return len(over) + len(vain)


@atomic_retry
def _prolong(promised: Promise, now: datetime) -> None:
    until = now + LASTS
    if MakingWay.objects.filter(pod_uid=promised.pod_uid, until=promised.until).update(until=until):
        keep(promised.devices, now=now)


@atomic_retry
def _keep_all(now: datetime) -> None:
    """Whatever devices say of promises is so: a stronger promise that lapsed lets a weaker one through, say."""
    said = set(Device.objects.exclude(kept_for="").values_list("pk", flat=True))
    keep(said.union(*(row.devices for row in MakingWay.objects.filter(until__gt=now))), now=now)


def still_going(promised: Promise) -> bool:
    """Whether any of the victims holds devices still."""
    return Allocation.objects.filter(pod_uid__in=promised.victims, state__in=LIVE).exists()


def _gone(promised: Promise, world: Outside) -> bool:
    """Whether the pod no longer waits. An API server that does not answer says nothing."""
    if world.cluster is None:
        return True
    try:
        pod = pods.find(world.cluster, namespace=promised.namespace, name=promised.pod_name, timeout=TELL_SECONDS)
    except KubeError as error:
        log.info("making_way.pod_unread", pod=promised.pod_name, error=str(error))
        return False
    return pod is None or pod.metadata.uid != promised.pod_uid or bool(pod.spec.node_name) or pod.finished


def of_others(promises: Sequence[Promise], *, pod_uid: str, priority: int) -> list[Promise]:
    """Those that a pod has to respect: what is promised to others of at least its priority."""
    return [one for one in promises if one.pod_uid != pod_uid and one.priority >= priority]


def victims_of(promises: Collection[Promise]) -> set[str]:
    """UIDs of everybody who goes for these."""
    return {uid for one in promises for uid in one.victims}


def devices_of(promises: Collection[Promise]) -> frozenset[int]:
    """Ids of everything that these are to have."""
    return frozenset(device for one in promises for device in one.devices)


def _promise(row: MakingWay) -> Promise:
    return Promise(
        pod_uid=row.pod_uid,
        namespace=row.namespace,
        pod_name=row.pod_name,
        priority=row.priority,
        node=row.node.name,
        pods=row.pods,
        victims=frozenset(row.victims),
        devices=frozenset(row.devices),
        told=row.told,
        made_at=row.made_at,
        until=row.until,
    )
