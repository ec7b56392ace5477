"""Binds that come together: kube-scheduler sends them by the hundred, and this is the quick way for those that need nothing but to be done.

Called by the bind door on the event loop. The steps are those of the saga (reserved → leases → Binding → bound), the ledger's for all
who are at that step in one transaction, the requests without a thread each. Kept true: when a Binding is sent the reservation was its attempt's
own two seconds before at most; whatever is not a plain success (no usable
hold, a share, a node that makes way for the pod, a lease or a Binding that is not answered with yes) is left as it stands to the saga, whose steps may all be repeated;
nothing is sent outside later than `BIND_DEADLINE` after the reservation.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import structlog
from django.conf import settings
from prometheus_client import Gauge

from allocations import ledger
from allocations.bindings import REQUEST_SECONDS, binding_of, wants_of
from allocations.extender.gathering import Gathering, InThread
from allocations.extender.wire import BindArgs
from allocations.leases.kubernetes import take_evented
from allocations.ledger import Live
from allocations.outside import outside
from allocations.saga import BIND_DEADLINE
from audit.clock import database_now
from kube import pods
from kube.errors import KubeError
from kube.posts import Posts

CROWDED = 8
"""With so many binds under way a step in the ledger waits `GATHER_SECONDS` for others to go with."""
GATHER_SECONDS = 0.1
LOOK_SECONDS = 2.0
"""That the reservation is its attempt's own is asked again so long after it was made. Safe all the same: a Binding sent here carries the version that filter
saw, so that writing to the pod shuts it out."""
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

log = structlog.get_logger(__name__)

_under_way = Gauge("gpuplane_binds_under_way", "Binds that have begun and not ended in this process")


class Binds:
    """Those of the running event loop. `in_thread` runs what speaks to the database."""

    def __init__(self, in_thread: InThread) -> None:
        self._reserving = Gathering(_reserve, in_thread, pause=self._pause)
        self._checking = Gathering(_check, in_thread)
        self._confirming = Gathering(_confirm, in_thread, pause=self._pause)
        self._posts: Posts | None = None
        self._count = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """While one is, whichever way it goes."""
        self._count += 1
        _under_way.set(self._count)
        try:
            yield
        finally:
            self._count -= 1
            _under_way.set(self._count)

    def close(self) -> None:
        """Close what is kept open for the next ones."""
        if self._posts is not None:
            self._posts.close()

    async def at_once(self, args: BindArgs) -> bool:
        """Whether the pod is bound now; if not, the saga goes on from where its allocation stands. Raises DatabaseError."""
        world = outside()
        if world.cluster is None or not world.cluster.connection.direct:
            return False
        began = _clocks()
        live = await self._reserving.do(args)
        if live is None:
            return False
        before = asyncio.get_running_loop().time() + BIND_DEADLINE.total_seconds()
        if self._posts is None:
            self._posts = Posts(world.cluster)
        try:
            await take_evented(
                self._posts,
                wants_of(live),
                live.holder.identity,
                namespace=settings.GPUPLANE_NAMESPACE,
                seconds=REQUEST_SECONDS,
                before=before,
            )
            if _stood_still(began) and not await self._checking.do(live):
                return False
            binding = binding_of(live, pod_version=live.pod_version)
            before = min(before, asyncio.get_running_loop().time() + REQUEST_SECONDS)
            await pods.bind_evented(self._posts, binding, seconds=REQUEST_SECONDS, before=before)
        except KubeError as error:
            log.info("bind.goes_on_alone", pod=live.holder.label, error=str(error))
            return False
        return await self._confirming.do(live.id)

    def _pause(self) -> float:
        return GATHER_SECONDS if self._count >= CROWDED else 0.0


def _clocks() -> tuple[float, float]:
    """Seconds by the machine's clock that goes on while it is suspended, and by the wall's."""
    return time.clock_gettime(_BOOTTIME), time.time()


def _stood_still(since: tuple[float, float]) -> bool:
    """Whether more has passed than a look at the reservation holds for: the process was stopped, say."""
    return any(now - then > LOOK_SECONDS for now, then in zip(_clocks(), since, strict=True))


def _reserve(asked: Sequence[BindArgs]) -> list[Live | None]:
    nodes = {args.PodUID: args.Node for args in asked}
    found = ledger.reserve_held(nodes=nodes, now=database_now(), fit=_is_plain)
    # of the same pod twice at once, one is left to the saga
    return [found.pop(args.PodUID) if _is_for(found.get(args.PodUID), args) else None for args in asked]


def _is_for(live: Live | None, args: BindArgs) -> bool:
    return live is not None and live.node == args.Node


def _is_plain(live: Live) -> bool:
    """Whole devices for as long as the pod lives: no Lease to join, no end to note, no node that makes way for it."""
    return live.request.ttl_seconds is None and all(grant.whole for grant in live.grants) and not live.awaited


def _check(lives: Sequence[Live]) -> list[bool]:
    """Whether the reservation is still the attempt's own: a process that was paused may have been overtaken."""
    current = ledger.current({live.id: live.bind_attempt for live in lives})
    return [live.id in current for live in lives]


def _confirm(allocation_ids: Sequence[uuid.UUID]) -> list[bool]:
    bound = ledger.bound_many(allocation_ids=allocation_ids, now=database_now())
    return [one in bound for one in allocation_ids]
