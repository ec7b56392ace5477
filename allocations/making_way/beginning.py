"""A pod was refused everywhere: whether, and where, less important pods are to make way for it.

Called by filter after a refusal, never for a pod that is placed. Kept true: where nobody is less important it costs one query a state
of the fleet, and looking takes no more than a part of the process's time; while others go for the pod already nobody else is asked to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from allocations.ended import settle_ended
from allocations.engine.picture import Picture
from allocations.engine.plan import Amounts
from allocations.engine.victims import Question, best_way
from allocations.making_way.closely import look_closely
from allocations.making_way.holders import holdings, lowest
from allocations.making_way.promises import (
    Promise,
    devices_of,
    live,
    of_others,
    promise,
    shunned,
    still_going,
    victims_of,
)
from allocations.outside import outside
from audit.announce import announce
from claims.dialects.request import DeviceRequest
from kube.objects import Pod

NODES_TRIED = 3
"""Nodes looked at closely for one refusal: each costs a list of its pods."""
NEVER = "Never"
SHARE_OF_TIME = 0.2
AT_ONCE_SECONDS = 1.0
"""Looking for ways may take this share of the time, and so long at once: kube-scheduler asks for one pod after the other, and others wait."""
REMEMBERED = 10_000


class Pace:
    """How much this process may look, who has not had a look yet, and for whom it was in vain. `clock` in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._left = AT_ONCE_SECONDS
        self._at = clock()
        self._state: tuple[object, ...] = ()
        self._fruitless: set[tuple[str, DeviceRequest]] = set()
        self._put_off: set[str] = set()

    def is_fruitless(self, pod_uid: str, request: DeviceRequest, state: tuple[object, ...]) -> bool:
        """Whether nobody could go for the pod in this very state of the fleet."""
        with self._lock:
            return self._state == state and (pod_uid, request) in self._fruitless

    def note_fruitless(self, pod_uid: str, request: DeviceRequest, state: tuple[object, ...]) -> None:
        """Nobody can."""
        with self._lock:
            if self._state != state or len(self._fruitless) >= REMEMBERED:
                self._state, self._fruitless = state, set()
            self._fruitless.add((pod_uid, request))

    def begin(self, pod_uid: str) -> float | None:
        """When the look began, None where it has to be put off."""
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
        """The look is over."""
        now = self._clock()
        with self._lock:
            self._left -= now - began

    def is_put_off(self, pod_uid: str) -> bool:
        """Whether the pod is still to have a look, so that the best node for it is not known."""
        with self._lock:
            return pod_uid in self._put_off


PACE = Pace()
"""That of this process."""


def begin(
    *,
    pod: Pod,
    priority: int | None,
    request: DeviceRequest,
    picture: Picture,
    nodes: Collection[int] | None,
    own: dict[int, Amounts] | None,
    now: datetime,
) -> None:
    """Have the best of these nodes (rows, None for all; kube-scheduler's own filters let the pod on them) make way, if any can.

    `priority`: the pod's, None where kube-scheduler does not count it. Nothing is answered: the node's status changes, which wakes the pod.
    """
    if priority is None or pod.spec.preemption_policy == NEVER or outside().cluster is None:
        return
    least = lowest(picture)
    if least is None or least >= priority:
        return
    promised = live(now)
    mine = next((one for one in promised if one.pod_uid == pod.metadata.uid), None)
    if _under_way(pod, mine, picture, nodes, now):
        return
    state = (picture, tuple((one.pod_uid, one.node) for one in promised))
    if PACE.is_fruitless(pod.metadata.uid, request, state):
        return
    began = PACE.begin(pod.metadata.uid)
    if began is None:
        announce()  # for the pod's next turn
        return
    try:
        _look(pod, priority, request, picture, nodes, own, promised, state, now)
    finally:
        PACE.end(began)


def _look(
    pod: Pod,
    priority: int,
    request: DeviceRequest,
    picture: Picture,
    nodes: Collection[int] | None,
    own: dict[int, Amounts] | None,
    promised: Sequence[Promise],
    state: tuple[object, ...],
    now: datetime,
) -> None:
    others = of_others(promised, pod_uid=pod.metadata.uid, priority=priority)
    barred = {picture.node_index.get(name, -1) for name in shunned(pod.metadata.uid, now)}
    could = holdings(picture, below=priority, nodes=nodes, but=victims_of(others))
    question = Question(picture, request, own=own, blocked=devices_of(others))
    for _ in range(NODES_TRIED):
        way = best_way(question, {node: some for node, some in could.items() if node not in barred})
        if way is None:
            if not barred:
                PACE.note_fruitless(pod.metadata.uid, request, state)
            return
        name = picture.node_names[way.node]
        look = look_closely(node=name, request=request, own=own, priority=priority, others=others, now=now)
        if look is not None and look.way is not None:
            told = False
            if look.way.victims:
                told = promise(
                    pod=pod, priority=priority, way=look.way, node=name, pods_there=look.pods, told=False, now=now
                ) and not any((one.node, one.pods) == (name, look.pods) for one in promised)
            if not (told or look.leaving):  # else the node's status, or the end of those who leave, wakes the pod
                announce(node=name)
            return
        barred.add(way.node)


def _under_way(pod: Pod, mine: Promise | None, picture: Picture, nodes: Collection[int] | None, now: datetime) -> bool:
    """Whether the pod has only to wait: its node makes way already, or others are going for it."""
    if mine is not None:
        row = picture.node_index.get(mine.node, -1)
        refused_by_count = nodes is not None and row not in nodes
        if refused_by_count or (mine.told and still_going(mine)):
            return True
    nominated = pod.status.nominated_node_name
    return bool(nominated and settle_ended(node=nominated, now=now).leaving)
