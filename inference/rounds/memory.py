"""Gives planned slots their memory, and takes back that of slots that are gone.

Called by `rounds.run`. Invariants: a runner is told of a slot only once its memory is bound; only a slot that is
stopped gives memory back; memory in the ledger that no slot has is given back as well.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable
from datetime import datetime

import structlog
from django.db.models import Exists, OuterRef, Q

from allocations.backends import current_backends
from allocations.choices import LIVE
from allocations.choices import State as AllocationState
from allocations.errors import MovedOn
from allocations.leases.port import LeaseTaken
from allocations.models import Allocation, AllocationDevice
from allocations.scheduling.attempt import BindFailed, OutcomeOpen
from allocations.scheduling.placement import NotFree, Placed
from allocations.scheduling.slot_memory import Share, SlotMemory, bind_memory, give_back, slot_holder, take_memory
from claims.dialects.request import Dialect
from inference.choices import HOLDING, UNWANTED, State
from inference.models import Slot
from inference.transitions import ACTOR, slot_moved
from inference.wake import wake_runner
from nodes.choices import Mode
from nodes.models import Node
from storage.transactions import atomic_retry

log = structlog.get_logger(__name__)


def planned_slots() -> list[Slot]:
    """Slots whose memory is not bound yet, the oldest first."""
    rows = Slot.objects.filter(state=State.PLANNED).exclude(allocation__state=AllocationState.BOUND)
    return list(rows.select_related("allocation").order_by("planned_at", "pk"))


def settle(slots: Iterable[Slot], *, now: datetime, slowly: Callable[[Slot], None] | None = None) -> int:
    """Go on with each of these planned slots; how many have their memory now.

    `slowly`: is given those whose bind waits for a kubelet, which takes a minute at worst.
    """
    of_kubelets = _nodes_of_kubelets()
    settled = 0
    if of_kubelets:
        _note_again(of_kubelets, now)
    for slot in slots:
        if slowly is not None and slot.node in of_kubelets:
            slowly(slot)
        else:
            settled += settle_one(slot, now=now)
    return settled


def _note_again(nodes: Collection[str], now: datetime) -> None:
    """Note the GPUs of slots on these nodes whose process was killed between the bind and its note."""
    rows = Slot.objects.filter(state__in=HOLDING, node__in=nodes, allocation__state=AllocationState.BOUND)
    said = {pk: (allocation, gpus) for pk, allocation, gpus in rows.values_list("pk", "allocation_id", "gpus")}
    held: dict[uuid.UUID, list[int]] = {}
    grants = AllocationDevice.objects.filter(allocation_id__in=[one for one, _ in said.values()], live=True)
    for allocation, minor in grants.order_by("minor").values_list("allocation_id", "minor"):
        held.setdefault(allocation, []).append(minor)
    for pk, (allocation, gpus) in said.items():
        if allocation in held and held[allocation] != gpus:
            note_bound(pk, now=now)


def _nodes_of_kubelets() -> frozenset[str]:
    if current_backends().cluster is None:
        return frozenset()
    return frozenset(Node.objects.filter(mode=Mode.DEVICE_PLUGIN).values_list("name", flat=True))


def settle_one(slot: Slot, *, now: datetime) -> bool:
    """Go on with one planned slot, as it is when this is called; whether it has its memory now."""
    try:
        return _bound(slot, now)
    except (OutcomeOpen, MovedOn) as error:
        log.info("slots.memory_open", slot=slot.pk, why=str(error))  # the next round goes on
    except LeaseTaken as taken:
        log.warning("slots.lease_taken", slot=slot.pk, lease=taken.want.name)  # undone; held again by the next round
    except BindFailed as error:
        fail_planned(slot, str(error), now=now)
    return False


def _bound(slot: Slot, now: datetime) -> bool:
    allocation = slot.allocation
    if allocation is not None and allocation.state in LIVE:
        if allocation.state == AllocationState.RESERVED and slot.node in _nodes_of_kubelets():
            return False  # it may be under way in another thread; collection undoes one that was interrupted
        bound = bind_memory(allocation.pk, now=now)
    else:
        awaits_others = _awaits_others(slot)  # read first: what goes meanwhile may be what it had no room for
        outcome = take_memory(
            SlotMemory(
                holder=slot_holder(slot.model_name, slot.pk),
                node=slot.node,
                shares=[Share(minor, amount) for minor, amount in zip(slot.gpus, slot.memory, strict=True)],
                note=lambda allocation_id: _note_held(slot.pk, allocation_id, now),
                actor=ACTOR,
            )
        )
        if isinstance(outcome, NotFree) and not awaits_others:
            stop_planned(slot, outcome.reason, now=now)
        bound = isinstance(outcome, Placed)
    if bound:
        note_bound(slot.pk, now=now)
    return bound


def _note_held(slot_id: str, allocation_id: uuid.UUID, now: datetime) -> None:
    """In the transaction of the hold. Raises MovedOn where the slot is not planned any more, or has another."""
    without = Q(allocation__isnull=True) | ~Q(allocation__state__in=LIVE)
    found = Slot.objects.filter(without, pk=slot_id, state=State.PLANNED).values("pk")
    rows = Slot.objects.filter(pk__in=list(found.values_list("pk", flat=True)), state=State.PLANNED)
    if not rows.update(allocation_id=allocation_id, changed_at=now):
        raise MovedOn("the slot is not to have its memory any more")


@atomic_retry
def note_bound(slot_id: str, *, now: datetime) -> None:
    """Note which GPUs it has, which may be others where a kubelet chooses. From then on its runner may start it."""
    slot = Slot.objects.select_for_update().get(pk=slot_id)
    if slot.allocation_id is None:
        return
    grants = AllocationDevice.objects.filter(allocation_id=slot.allocation_id, live=True).order_by("minor")
    held = list(grants.values_list("minor", "memory_bytes"))
    gpus, memory = [minor for minor, _ in held], [amount for _, amount in held]
    if held and (slot.gpus, slot.memory) != (gpus, memory):
        Slot.objects.filter(pk=slot_id).update(gpus=gpus, memory=memory, changed_at=now)
    wake_runner(slot.node)


def _awaits_others(slot: Slot) -> bool:
    """Whether slots that are going still have memory of its GPUs, or of those that it evicts."""
    going = Q(state__in=UNWANTED) | Q(state=State.STOPPED, allocation__state__in=LIVE)
    gpus = set(slot.gpus)
    rows = Slot.objects.filter(going, node=slot.node).exclude(pk=slot.pk).only("gpus")
    return any(gpus.intersection(other.gpus) for other in rows)


@atomic_retry
def stop_planned(slot: Slot, reason: str, *, now: datetime) -> bool:
    """A slot that never had its memory bound is gone at once."""
    return slot_moved(slot, State.STOPPED, now=now, reason=reason)


@atomic_retry
def fail_planned(slot: Slot, reason: str, *, now: datetime) -> bool:
    """Its memory could not be bound: it counts as a failure, so that the same is not tried without end."""
    failed = slot_moved(slot, State.FAILED, now=now, reason=reason)
    if failed:
        slot.state = State.FAILED
        slot_moved(slot, State.STOPPED, now=now)
    return failed


def return_memory(*, now: datetime) -> int:
    """Give back what stopped slots, and no slot, have; how many allocations are free now."""
    kept = Slot.objects.filter(allocation=OuterRef("pk"), state__in=HOLDING)
    rows = Allocation.objects.filter(dialect=Dialect.SLOT.value, state__in=LIVE).exclude(Exists(kept))
    returned = 0
    for allocation in rows.order_by("created_at", "pk"):
        try:
            returned += give_back(allocation, now=now, actor=ACTOR)
        except (OutcomeOpen, MovedOn) as error:
            log.info("slots.memory_not_returned", allocation=str(allocation.pk), why=str(error))
    return returned
