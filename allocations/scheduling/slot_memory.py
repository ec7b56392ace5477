"""Gives a slot of a model the memory that was planned for it, and takes it back.

Called by `inference`, which decides on which GPUs. A slot holds shares of memory, with core 0; its holder is
`slot/<model>/<id>`, and it has no pod. Invariants:
- Memory is held by placement and bound by the binder, as everybody's is, with Leases where there is a cluster.
- The caller's note of the hold is in the transaction that makes it, so no hold is without its slot.
- Each function goes on from whatever an earlier call that was killed has left.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
from django.conf import settings

from allocations import fleet, ledger
from allocations.backends import current_backends
from allocations.choices import LIVE, State
from allocations.engine.decision import Decision, Grant, PlanQuery
from allocations.engine.snapshot import Snapshot
from allocations.errors import MovedOn
from allocations.models import Allocation
from allocations.scheduling import binder
from allocations.scheduling.placement import Found, LostEveryRace, NotFree, Placed, hold_found, hold_planned
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect
from kube.device_types import GPU
from storage.transactions import atomic_retry

PREFIX: Final = "slot/"
"""Of the holder's identity."""
ENDED: Final = "the slot has ended"


class Share(NamedTuple):
    """Memory of one GPU, in bytes."""

    minor: int
    memory: int


@dataclass(frozen=True, slots=True)
class SlotMemory:
    """What one slot is to have. `note`: called with the allocation's id in the transaction that makes the hold; it
    raises MovedOn where the slot is not to have it any more.
    """

    holder: str
    node: str
    shares: Sequence[Share]
    note: Callable[[uuid.UUID], None]
    actor: str


def slot_holder(model: str, slot: str) -> str:
    """The holder's identity."""
    return f"{PREFIX}{model}/{slot}"


def take_memory(memory: SlotMemory) -> Placed | NotFree | LostEveryRace:
    """Hold the memory and bind it. Raises BindFailed, OutcomeOpen (`bind_memory` goes on later), MovedOn by `note`."""
    return hold_found(_Take(memory).find, actor=memory.actor, then=_bind_new)


def bind_memory(allocation_id: uuid.UUID, *, now: datetime) -> bool:
    """Go on with a hold or a reservation; False where it has ended, or is bound already.

    Raises BindFailed, OutcomeOpen, LeaseTaken and MovedOn (another process goes on with it).
    """
    live = ledger.read_live(allocation_id)
    if live is None or live.state not in {State.HELD, State.RESERVED} or live.lapsed(now):
        return False
    binder.bind(live, current_backends(), now=now)
    return True


def give_back(allocation: Allocation, *, now: datetime, actor: str) -> bool:
    """End the allocation, in whichever state it is. True once its memory is free; False: a later call goes on."""
    state = State(allocation.state)
    if state is State.HELD:
        return ledger.drop_hold(allocation_id=allocation.pk, outcome=State.RELEASED, reason=ENDED, now=now, actor=actor)
    if state is State.RESERVED:
        live = ledger.read_live(allocation.pk)
        return live is not None and binder.undo(live, current_backends(), ENDED, now=now, actor=actor)
    if state is State.BOUND:
        return binder.release_now(allocation_id=allocation.pk, reason=ENDED, now=now, actor=actor)
    if state is State.RELEASING:
        return binder.finish(allocation.pk, current_backends(), State(allocation.outcome), now=now, actor=actor)
    return state not in LIVE


class _Take:
    """The tries for one slot."""

    def __init__(self, memory: SlotMemory) -> None:
        self._memory = memory
        self._request = _request(memory.shares)

    def find(self, lost: Collection[int]) -> Found | NotFree:
        """Look whether the ledger has the memory now."""
        look = fleet.current()
        blocked = look.blocked("", None, self._request).union(lost)
        grants = _grants(look.snapshot, self._memory, blocked)
        if isinstance(grants, str):
            return NotFree(grants, look.now)
        row = look.snapshot.node_index[self._memory.node]
        decision = Decision(
            node=self._memory.node,
            grants=grants,
            candidates=np.array([row], dtype=np.int32),
            summary=f"planned for {self._memory.holder}",
            query=PlanQuery(self._request),
        )
        return Found(decision, lambda: self._hold(decision, look.now), look.now)

    @atomic_retry
    def _hold(self, decision: Decision, now: datetime) -> uuid.UUID:
        holder = ledger.Holder(namespace=settings.GPUPLANE_NAMESPACE, identity=self._memory.holder)
        terms = ledger.Terms(holder=holder, request=self._request, actor=self._memory.actor)
        allocation_id = hold_planned(terms, decision, now=now)
        self._memory.note(allocation_id)
        return allocation_id


def _bind_new(allocation_id: uuid.UUID) -> None:
    live = ledger.read_live(allocation_id)
    if live is None:
        raise MovedOn("the hold ended meanwhile")
    binder.bind(live, current_backends(), now=live.made_at)


def _request(shares: Sequence[Share]) -> DeviceRequest:
    """One ask for each amount."""
    amounts = sorted({share.memory for share in shares})
    asks = []
    for amount in amounts:
        minors = tuple(sorted(share.minor for share in shares if share.memory == amount))
        given = minors if len(amounts) > 1 else ()
        asks.append(DeviceAsk(type=GPU, count=len(minors), core_percent=0, memory_bytes=amount, given=given))
    return DeviceRequest(asks=tuple(asks), dialect=Dialect.SLOT)


def _grants(snapshot: Snapshot, memory: SlotMemory, blocked: Collection[int]) -> tuple[Grant, ...] | str:
    """The devices, or why one of them cannot be had now."""
    row = snapshot.node_index.get(memory.node)
    if row is None:
        return f"node {memory.node} is gone"
    if snapshot.node_problem[row]:
        return f"{memory.node}: {snapshot.node_problem[row]}"
    first = int(snapshot.node_start[row])  # GPUs come first on a node
    of_minor = {
        int(snapshot.device_minor[device]): device for device in range(first, first + snapshot.node_topology[row].size)
    }
    grants = []
    for minor, amount in memory.shares:
        device = of_minor.get(minor)
        if device is None or not snapshot.device_healthy[device]:
            return f"GPU {minor} of {memory.node} cannot be given now"
        device_id = int(snapshot.device_id[device])
        free = int(snapshot.memory_total[device] - snapshot.memory_used[device])
        if amount > free or device_id in blocked:
            return f"GPU {minor} of {memory.node} has not so much memory free any more"
        grants.append(Grant(device_id, snapshot.device_uuid[device], GPU, minor, 0, amount, whole=False))
    return tuple(grants)
