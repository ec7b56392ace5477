"""One watch for all binds of a process that wait for reservation pods to report their GPUs.

Called by the steps of a bind, on any event loop. A thread watches the namespace of reservation pods while somebody
waits, and a while longer; it passes on what each pod reports, and keeps the reports that nobody has asked for yet.

Invariants: one watch and one thread, however many wait; nobody waits past its own deadline; where the watch reports
nothing until then, the pod itself is read once.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import structlog

from allocations.counters import ReservationFailure
from kube import reservation_pods
from kube.client import Cluster
from kube.errors import KubeError
from kube.reservation_pods import SELECTOR, ReservationPod
from kube.resources import PODS
from kube.watch import Changed, Event, ListWatch, Relisted, Stop

TURN_SECONDS: Final = 60.0
IDLE_TURNS: Final = 2
"""Turns without anybody who waits, after which the thread ends."""
LAST_READ_SECONDS: Final = 2.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PodReport:
    """What a reservation pod reports: its GPUs, or why it has none."""

    uuids: tuple[str, ...] = ()
    failure: str = ""
    kind: ReservationFailure = ReservationFailure.POD_ENDED
    """Of the failure."""

    @classmethod
    def of(cls, pod: ReservationPod) -> PodReport | None:
        """None while it reports nothing yet."""
        if pod.failure:
            return cls(failure=pod.failure)
        return cls(pod.uuids) if pod.uuids else None


@dataclass(slots=True)
class _Waiter:
    uid: str
    future: asyncio.Future[PodReport]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def hand_over(self, report: PodReport) -> None:
        self.loop.call_soon_threadsafe(self._set, report)

    def _set(self, report: PodReport) -> None:
        if not self.future.done():
            self.future.set_result(report)


class ReservationWatch:
    """The watch of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._lock = threading.Lock()
        self._waiting: dict[str, list[_Waiter]] = defaultdict(list)
        self._said: dict[str, tuple[str, PodReport]] = {}
        """Pod name → (uid, what it reported), as the watch has seen it."""
        self._thread: threading.Thread | None = None
        self._stop = Stop()
        cluster.at_close(self._stop.set)

    @property
    def waiting(self) -> int:
        """How many wait."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    async def wait(self, *, name: str, uid: str, seconds: float) -> PodReport | None:
        """What the pod reports; None where it reports nothing in time. Raises KubeError where it cannot be read."""
        waiter = _Waiter(uid, asyncio.get_running_loop().create_future())
        with self._lock:
            said = self._said.get(name)
            if said is not None and said[0] == uid:
                return said[1]
            self._waiting[name].append(waiter)
            if self._thread is None or not self._thread.is_alive():
                self._start()
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                return await waiter.future
        except TimeoutError:
            return await self._read(name, uid)
        finally:
            with self._lock:
                self._waiting[name].remove(waiter)
                if not self._waiting[name]:
                    del self._waiting[name]

    def _start(self) -> None:
        thread = threading.Thread(target=self._follow, name="reservation-pods", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no thread can be started; those who wait read their pod at the end
            log.warning("reservation_pods.not_watched", error=str(error))
            return
        self._thread = thread

    async def _read(self, name: str, uid: str) -> PodReport | None:
        pod = await reservation_pods.find(
            self._cluster, namespace=self._namespace, name=name, timeout=LAST_READ_SECONDS
        )
        if pod is None or pod.uid != uid:
            return PodReport(failure="the reservation pod is gone")
        return PodReport.of(pod)

    def _follow(self) -> None:
        watch = ListWatch(self._cluster, PODS, ReservationPod, namespace=self._namespace, label_selector=SELECTOR)
        idle = 0
        while not self._stop.is_set():
            try:
                for event in watch.events(seconds=TURN_SECONDS, stop=self._stop):
                    self._handle(event)
            except KubeError as error:  # those who wait read their pod at the end
                log.warning("reservation_pods.watch_broken", error=str(error))
                watch.resource_version = None
                self._stop.wait(1.0)
            with self._lock:
                idle = 0 if self._waiting else idle + 1
                if idle >= IDLE_TURNS or self._stop.is_set():
                    self._thread = None
                    self._said.clear()
                    return
        with self._lock:
            self._thread = None
            self._said.clear()

    def _handle(self, event: Event[ReservationPod]) -> None:
        if isinstance(event, Relisted):
            with self._lock:
                self._said = {}
            for pod in event.objects.values():
                self._note(pod, PodReport.of(pod))
        elif isinstance(event, Changed) and event.type == "DELETED":
            self._note(event.object, PodReport(failure="the reservation pod is gone"))
            with self._lock:
                self._said.pop(event.object.metadata.name, None)
        elif isinstance(event, Changed):
            self._note(event.object, PodReport.of(event.object))

    def _note(self, pod: ReservationPod, report: PodReport | None) -> None:
        name, uid = pod.metadata.name, pod.uid
        with self._lock:
            if report is None:
                self._said.pop(name, None)
                return
            self._said[name] = (uid, report)
            waiters = [waiter for waiter in self._waiting.get(name, ()) if waiter.uid == uid]
        for waiter in waiters:
            waiter.hand_over(report)


@lru_cache(maxsize=4)
def _watch(cluster: Cluster, namespace: str) -> ReservationWatch:
    return ReservationWatch(cluster, namespace)


_making = threading.Lock()


def reservation_watch(cluster: Cluster, namespace: str) -> ReservationWatch:
    """The process's watch of that namespace."""
    with _making:  # lru_cache alone makes one for each thread that asks before the first is made
        return _watch(cluster, namespace)
