"""Reserves a node for a pod that filter refused on every node, if evicting pods of lower priority there would help.

Called by filter after a refusal, never for a pod that is placed. Invariants: if no pod has a lower priority, it costs
one query for each snapshot; searches take at most `SHARE_OF_TIME` of the process's time; no further victims are chosen
while victims of the pod are terminating.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from allocations.backends import current_backends
from allocations.engine.snapshot import Snapshot
from allocations.engine.victims import EvictionQuery, best_eviction
from allocations.scheduling.preemption.candidates import holdings, lowest
from allocations.scheduling.preemption.node_check import check_node
from allocations.scheduling.preemption.reservations import (
    Preemptor,
    devices_of,
    live,
    nodes_in_vain,
    of_others,
    reserve,
    victims_of,
    victims_remain,
)
from allocations.scheduling.release_ended import release_finished
from audit.requeue_notify import announce
from claims.dialects.request import DeviceRequest
from nodes.models import PreemptionReservation

NODES_TRIED = 3
"""Nodes checked for one refusal: each costs a list of its pods."""
NEVER = "Never"
SHARE_OF_TIME = 0.2
AT_ONCE_SECONDS = 1.0
"""Searching may take this share of the time, and so long at once: kube-scheduler filters one pod after the other."""
REMEMBERED = 10_000


class SearchAllowance:
    """The time that this process may search, and pods whose search was put off or fruitless. `clock` in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left = AT_ONCE_SECONDS
        self._at = clock()
        self._state: tuple[object, ...] = ()
        self._fruitless: set[tuple[str, DeviceRequest]] = set()
        self._put_off: set[str] = set()

    def is_fruitless(self, pod_uid: str, request: DeviceRequest, state: tuple[object, ...]) -> bool:
        """Whether no eviction helped the pod in this state of the fleet."""
        with self._lock:
            return self._state == state and (pod_uid, request) in self._fruitless

    def note_fruitless(self, pod_uid: str, request: DeviceRequest, state: tuple[object, ...]) -> None:
        """Note that none does."""
        with self._lock:
            if self._state != state or len(self._fruitless) >= REMEMBERED:
                self._state, self._fruitless = state, set()
            self._fruitless.add((pod_uid, request))

    def begin(self, pod_uid: str) -> float | None:
        """When the search began, None where it is put off."""
        now = self._clock()
        with self._lock:
            self._left = min(self._left + (now - self._at) * SHARE_OF_TIME, AT_ONCE_SECONDS)
            self._at = now
            if self._left > 0:
                self._put_off.discard(pod_uid)
                return now
            if len(self._put_off) >= REMEMBERED:
                self._put_off.clear()
            self._put_off.add(pod_uid)
            return None

    def end(self, began: float) -> None:
        """End the search."""
        now = self._clock()
        with self._lock:
            self._left -= now - began

    def is_put_off(self, pod_uid: str) -> bool:
        """Whether the pod's search was put off, so that the best node for it is not known."""
        with self._lock:
            return pod_uid in self._put_off


PACE = SearchAllowance()
"""The process's."""


def begin(preemptor: Preemptor, *, snapshot: Snapshot, nodes: Collection[int] | None, now: datetime) -> None:
    """Reserve the best of these nodes for the pod, if evictions can help on any.

    `nodes`: rows that kube-scheduler's own filters let the pod on, None for all. Nothing is answered: the node's status
    changes, which wakes the pod.
    """
    if preemptor.pod.spec.preemption_policy == NEVER or current_backends().cluster is None:
        return
    least = lowest(snapshot)
    if least is None or least >= preemptor.priority:
        return
    reserved = live(now)
    if _under_way(preemptor, reserved, snapshot, nodes, now):
        return
    state = (snapshot, tuple((one.pod_uid, one.node.name) for one in reserved))
    if PACE.is_fruitless(preemptor.uid, preemptor.request, state):
        return
    began = PACE.begin(preemptor.uid)
    if began is None:
        announce()  # so that the pod is filtered again
        return
    try:
        if not _search(preemptor, reserved, snapshot, nodes, now):
            PACE.note_fruitless(preemptor.uid, preemptor.request, state)
    finally:
        PACE.end(began)


def _search(
    preemptor: Preemptor,
    reserved: Sequence[PreemptionReservation],
    snapshot: Snapshot,
    nodes: Collection[int] | None,
    now: datetime,
) -> bool:
    """Reserve the best node. False when no eviction could help on any node."""
    others = of_others(reserved, preemptor)
    barred = {snapshot.node_index.get(name, -1) for name in nodes_in_vain(preemptor.uid, now)}
    could = holdings(snapshot, below=preemptor.priority, nodes=nodes, but=victims_of(others))
    question = EvictionQuery(snapshot, preemptor.request, own=preemptor.own, blocked=devices_of(others))
    for _ in range(NODES_TRIED):
        best = best_eviction(question, {node: held for node, held in could.items() if node not in barred})
        if best is None:
            return bool(barred)
        name = snapshot.node_names[best.node]
        check = check_node(preemptor, name, others=others, now=now)
        if check is not None and check.eviction is not None:
            advertised = False
            if check.eviction.victims:
                written = reserve(
                    preemptor, check.eviction, node=name, pods_there=check.pods, victims_sent=False, now=now
                )
                advertised = written and (name, check.pods) not in {(one.node.name, one.pods) for one in reserved}
            if not (advertised or check.leaving):
                announce(node=name)  # else the node's status, or the end of those who leave, wakes the pod
            return True
        barred.add(best.node)
    return True


def _under_way(
    preemptor: Preemptor,
    reserved: Sequence[PreemptionReservation],
    snapshot: Snapshot,
    nodes: Collection[int] | None,
    now: datetime,
) -> bool:
    """Whether the pod has only to wait: its reserved node refuses it by number, or its victims are going."""
    for mine in reserved:
        if mine.pod_uid == preemptor.uid:
            refused_by_count = nodes is not None and snapshot.node_index.get(mine.node.name, -1) not in nodes
            if refused_by_count or (mine.victims_sent and victims_remain(mine)):
                return True
    nominated = preemptor.pod.status.nominated_node_name
    return bool(nominated and release_finished(node=nominated, now=now).leaving)
