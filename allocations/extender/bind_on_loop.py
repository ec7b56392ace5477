"""Binds on the event loop: kube-scheduler sends them by the hundred, and those at the same step share a transaction.

Called by the bind verb. Invariants: a pod that holds devices on the node named is bound here, by the steps of
`scheduling.binder`; one that has to be planned again (no usable hold, a Lease of somebody else, another attempt) is
left to a thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from prometheus_client import Gauge

from allocations import ledger
from allocations.backends import current_backends
from allocations.errors import MovedOn
from allocations.extender.wire import BindArgs
from allocations.leases.port import LeaseTaken
from allocations.ledger.binding import SCHEDULER
from allocations.ledger.external_holders import external_holder_set
from allocations.scheduling import preemption
from allocations.scheduling.attempt import Attempt, BindFailed, OutcomeOpen
from allocations.scheduling.batcher import Batcher
from allocations.scheduling.binder import Binder, InThread
from storage.clock import database_now

_under_way = Gauge("gpuplane_binds_under_way", "Binds that have begun and not ended in this process")


class Binds:
    """The binds of the running event loop. `in_thread` runs functions that use the database."""

    def __init__(self, in_thread: InThread) -> None:
        self._in_thread = in_thread
        self._count = 0
        self._binder = Binder(in_thread, under_way=lambda: self._count)
        self._reserving = Batcher(partial(in_thread, _reserve), pause=self._binder.company_seconds)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Count a bind as under way for the body of the `with`."""
        self._count += 1
        _under_way.set(self._count)
        try:
            yield
        finally:
            self._count -= 1
            _under_way.set(self._count)

    async def bind(self, args: BindArgs) -> str | None:
        """The Error of ExtenderBindingResult, empty when the pod is bound; None: left to a thread.

        Raises DatabaseError.
        """
        if current_backends().cluster is None:
            return None  # without requests there is nothing to wait for
        attempt = await self._reserving.do(args)
        if attempt is None:
            return None
        try:
            await self._binder.bind(attempt)
        except LeaseTaken as taken:
            note = partial(external_holder_set, now=attempt.now, actor=SCHEDULER)
            await self._in_thread(note, taken.want.device_uuid, taken.holder)
            return None
        except MovedOn:
            return None
        except (BindFailed, OutcomeOpen) as failed:
            return str(failed)
        if attempt.live.awaited:
            await self._in_thread(preemption.pod_bound, args.PodUID, attempt.now)
        return ""


def _reserve(batch: Sequence[BindArgs]) -> list[Attempt | None]:
    """Reserve the holds that the pods have on the nodes named; an attempt for each that is reserved."""
    nodes = {args.PodUID: args.Node for args in batch}
    found, clock = ledger.reserve_held(nodes, read_clock=database_now)
    backends = current_backends()
    attempts: list[Attempt | None] = []
    for args in batch:
        live = found.get(args.PodUID)
        if live is None or live.node != args.Node:
            attempts.append(None)  # of two binds of a pod in one batch, one is left to a thread
        else:
            del found[args.PodUID]
            attempts.append(Attempt(live, backends, clock, SCHEDULER, reserved=True))
    return attempts
