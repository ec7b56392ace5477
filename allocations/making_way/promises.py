"""Which node makes way for which pod: rows that end by time, and what this process knows of them without asking.

Called by the other modules of this package, by filter (which devices are promised to others), by bind (the pod has what it waited for), by
the watch (it is gone), and by the beat. Kept true: the database says what is so (`nodes.models.MakingWay`); memory only saves the hot path
a look, forgets by itself, and is held against the database before anybody is refused for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.db import IntegrityError

from access.transactions import atomic_retry
from allocations.choices import LIVE, State
from allocations.counters import WAYS_BEGUN, WAYS_ENDED
from allocations.engine.victims import Way
from allocations.models import Allocation
from allocations.outside import Outside, outside
from audit.announce import announce
from kube import pods
from kube.errors import KubeError
from kube.objects import Pod
from nodes.advertise import advertise_soon, pods_tell
from nodes.models import MakingWay, Node

LASTS = timedelta(seconds=30)
"""How long a node makes way; once its victims have been told to go, for as long as one of them still holds devices."""
LONGEST = timedelta(hours=1)
"""But no longer than that."""
AHEAD = timedelta(seconds=12)
"""Promises that would end before the second next look of the beat are prolonged, or not, at this one."""
SHUNNED = timedelta(minutes=5)
"""A node on which kube-scheduler looked for no victims, though it made way for a pod, does not make way for it again for so long."""
TELL_SECONDS = 2.0
REMEMBERED = 10_000

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


class _Memory:
    """Promises of this process by pod, and (pod, node) of those that came to nothing."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.promises: dict[str, Promise] = {}
        self.vain: OrderedDict[tuple[str, str], datetime] = OrderedDict()

    def note_vain(self, promise: Promise, now: datetime) -> None:
        self.vain[promise.pod_uid, promise.node] = now + SHUNNED
        self.vain.move_to_end((promise.pod_uid, promise.node))
        while len(self.vain) > REMEMBERED:
            self.vain.popitem(last=False)


_MEMORY = _Memory()


def live(now: datetime) -> list[Promise]:
    """All promises that still count, the oldest first; one query on a table of a few rows."""
    rows = MakingWay.objects.filter(until__gt=now).select_related("node").order_by("made_at", "pk")
    return [_promise(row) for row in rows]


def forget() -> None:
    """Drop what memory holds. For tests that swap databases."""
    with _MEMORY.lock:
        _MEMORY.promises.clear()
        _MEMORY.vain.clear()


def promise(*, pod: Pod, priority: int, way: Way, node: str, pods_there: int, told: bool, now: datetime) -> bool:
    """Write, or move, the pod's promise, and tell the node's status. False when somebody else wrote one for it meanwhile.

    `pods_there`: what the node is to advertise of `gpu.scheduling/pods`.
    """
    before = MakingWay.objects.filter(pod_uid=pod.metadata.uid).select_related("node").first()
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
        if not _write(made):
            return False
    except IntegrityError as error:
        log.info("making_way.promised_elsewhere", pod=pod.metadata.name, error=str(error))
        return False
    with _MEMORY.lock:
        _MEMORY.promises[made.pod_uid] = made
    WAYS_BEGUN.inc()
    log.info(
        "making_way.promised", node=node, pod=pod.metadata.name, victims=len(way.victims), pods=pods_there, told=told
    )
    tell(node, now)
    if before is not None and before.node.name != node:
        tell(before.node.name, now)
    return True


@atomic_retry
def _write(made: Promise) -> bool:
    node = Node.objects.filter(name=made.node).first()
    if node is None:
        return False
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
    return True


def end(promises: Iterable[Promise], now: datetime, *, vain: bool = False) -> None:
    """Take promises back; their nodes advertise plenty again, or what is left for others. `vain`: the node did not help."""
    ended = list(promises)
    if not ended:
        return
    deleted, _ = MakingWay.objects.filter(pod_uid__in=[one.pod_uid for one in ended]).delete()
    WAYS_ENDED.labels("yes" if vain else "no").inc(deleted)  # two may end the same one
    with _MEMORY.lock:
        for one in ended:
            _MEMORY.promises.pop(one.pod_uid, None)
            if vain:
                _MEMORY.note_vain(one, now)
    for node in sorted({one.node for one in ended}):
        log.info("making_way.ended", node=node, vain=vain)
        tell(node, now)


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
    """The pod is bound: nobody makes way for it any more. Costs nothing for pods that this process promised nothing."""
    known = _MEMORY.promises.get(pod_uid)
    if known is not None:
        end([known], now)


def awaited(pod_uid: str) -> bool:
    """Whether this process has promised the pod anything, so that `served` is to be called once it is bound."""
    return pod_uid in _MEMORY.promises


def kept_from(*, pod_uid: str, priority: int, now: datetime) -> set[int]:
    """Devices that a pod must leave alone: promised, by this process, to others of at least its priority."""
    if not _MEMORY.promises:
        return set()
    _refresh(now)
    with _MEMORY.lock:
        return {
            device
            for one in _MEMORY.promises.values()
            if one.pod_uid != pod_uid and one.priority >= priority
            for device in one.devices
        }


def withdrawn(now: datetime) -> bool:
    """Whether any promise that this process went by has been taken back, or made anew, elsewhere. For a pod that would be refused: one query, none without promises."""
    went_by = [one for one in list(_MEMORY.promises.values()) if one.until > now]
    if not went_by:
        return False
    known = {one.pod_uid: one for one in live(now)}
    over = [one for one in went_by if not _is_kept(one, known.get(one.pod_uid))]
    with _MEMORY.lock:
        for one in over:
            if _MEMORY.promises.get(one.pod_uid) is not one:
                continue  # one made since the look
            del _MEMORY.promises[one.pod_uid]
            if one.pod_uid in known:
                _MEMORY.promises[one.pod_uid] = known[one.pod_uid]
    return bool(over)


def _is_kept(one: Promise, now: Promise | None) -> bool:
    return now is not None and (now.node, now.devices) == (one.node, one.devices)


def is_promised(pod_uid: str) -> bool:
    """Whether a node makes way for the pod. One look at a table of a few rows."""
    return MakingWay.objects.filter(pod_uid=pod_uid).exists()


def gone(pod_uid: str, now: datetime) -> None:
    """The pod is: what was promised to it is free for whoever waits, who is woken."""
    ended = [_promise(row) for row in MakingWay.objects.filter(pod_uid=pod_uid).select_related("node")]
    end(ended, now)
    for one in ended:
        announce(node=one.node)


def shunned(pod_uid: str, now: datetime) -> set[str]:
    """Nodes that made way for the pod in vain, lately."""
    _refresh(now)
    with _MEMORY.lock:
        return {node for (uid, node), until in _MEMORY.vain.items() if uid == pod_uid and until > now}


def _refresh(now: datetime) -> None:
    """Promises past the end that memory knows: the beat may have prolonged, or ended, them."""
    lapsed = [one for one in list(_MEMORY.promises.values()) if one.until <= now]
    if not lapsed:
        return
    known = {one.pod_uid: one for one in live(now)}
    with _MEMORY.lock:
        for one in lapsed:
            if one.pod_uid in known:
                _MEMORY.promises[one.pod_uid] = known[one.pod_uid]
            elif _MEMORY.promises.pop(one.pod_uid, None) is not None and not one.told:
                _MEMORY.note_vain(one, now)


def tidy(*, now: datetime, world: Outside) -> int:
    """End promises whose pod is bound or gone, or whose time is over; returns how many. Those whose victims are still going last on."""
    rows = [_promise(row) for row in MakingWay.objects.select_related("node")]
    if not rows:
        return 0
    uids = [one.pod_uid for one in rows]
    holding = set(
        Allocation.objects.filter(pod_uid__in=uids, state__in=(State.RESERVED, State.BOUND)).values_list(
            "pod_uid", flat=True
        )
    )
    over = []
    for one in rows:
        if one.pod_uid in holding or _gone(one, world):
            over.append(one)
        elif one.until - AHEAD > now:
            continue
        elif one.told and now < one.made_at + LONGEST and still_going(one):
            MakingWay.objects.filter(pod_uid=one.pod_uid, until=one.until).update(until=now + LASTS)
        elif one.until <= now:
            over.append(one)
    end(over, now)
    for one in over:
        if one.pod_uid not in holding:
            announce(node=one.node)  # where others of its rank wait the node's status may stay as it is
    return len(over)


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
