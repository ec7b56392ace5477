"""Reconciles slots: ends those whose model was changed or deleted, whose node, GPU, runner or memory is gone, whose
runtime does not become ready in time, whose memory does not become free in time, or whose process was never started.

Called by `rounds.run`. Invariants: each slot is judged by its rows alone and moved in its own transaction, so order and
repetition do not change the result; the memory of a slot whose process may exist is freed only when its runner reports
the process as gone, or its pod or node is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.conf import settings

from allocations.choices import LIVE
from allocations.choices import State as AllocationState
from allocations.models import AllocationDevice
from inference.choices import HOLDING, UNWANTED, WANTED, RunnerState, State
from inference.models import Slot
from inference.transitions import slot_moved
from nodes.choices import NodeState, Presence
from nodes.models import Node
from storage.transactions import atomic_retry

LOST: Final = "its memory was taken back"
NEVER_STARTED: Final = "it was never started"


_READ: Final = (
    *("state", "node", "reason", "model_name", "model_revision", "gpus", "planned_at", "starting_at", "pod_name"),
    *("model__revision", "runner__state", "allocation__state", "allocation__bound_at"),
)
"""Columns: a round reads every slot."""


class Verdict(NamedTuple):
    """The state that a slot is to have, and why. `own`: it failed by itself."""

    state: State
    reason: str
    own: bool = True


class Observed(NamedTuple):
    """What slots are judged by."""

    nodes: frozenset[str]
    """Those that are there."""
    lost_gpus: frozenset[str]
    """Ids of slots with a GPU that is not there any more."""
    now: datetime


def tidy(*, now: datetime) -> int:
    """Move what is to be moved; how many slots."""
    observed = Observed(
        nodes=frozenset(Node.objects.exclude(state=NodeState.GONE).values_list("name", flat=True)),
        lost_gpus=frozenset(_with_lost_gpus()),
        now=now,
    )
    rows = Slot.objects.filter(state__in=HOLDING).select_related("model", "runner", "allocation").only(*_READ)
    moved = 0
    for slot in rows.order_by("planned_at", "pk"):
        verdict = judge(slot, observed)
        if verdict is not None:
            moved += _move(slot, verdict, now)
    return moved


def judge(slot: Slot, observed: Observed) -> Verdict | None:
    """What is to become of the slot; None: it is as it should be."""
    state, bound = State(slot.state), _was_bound(slot)
    if slot.node not in observed.nodes:
        return Verdict(State.STOPPED, f"node {slot.node} is gone")
    if state in UNWANTED:
        return None if bound else Verdict(State.STOPPED, NEVER_STARTED)
    found = _unwanted(slot, bound=bound)
    if found is None and slot.pk in observed.lost_gpus:
        found = Verdict(State.FAILED, "a GPU of it is not there any more", own=False)
    if found is None:
        found = _not_ready(slot, observed.now) if bound else _without_memory(slot, observed.now)
    if found is not None and not bound:
        return Verdict(State.STOPPED, found.reason)
    return found


def _unwanted(slot: Slot, *, bound: bool) -> Verdict | None:
    if slot.model is None:
        return Verdict(State.DRAINING, f"model {slot.model_name} was deleted")
    if slot.model.revision != slot.model_revision:
        return Verdict(State.DRAINING, f"model {slot.model_name} was changed")
    if not slot.pod_name and (slot.runner is None or (slot.runner.state == RunnerState.FAILED and not bound)):
        return Verdict(State.FAILED, f"the runner of {slot.node} is not there", own=False)
    if bound and slot.allocation is not None and slot.allocation.state not in LIVE:
        return Verdict(State.FAILED, LOST, own=False)
    return None


def _was_bound(slot: Slot) -> bool:
    """Whether its runner may have started it."""
    return slot.starting_at is not None or (slot.allocation is not None and slot.allocation.bound_at is not None)


def _not_ready(slot: Slot, now: datetime) -> Verdict | None:
    begun = slot.starting_at or (slot.allocation.bound_at if slot.allocation is not None else None)
    if slot.state == State.READY or begun is None:
        return None
    limit = timedelta(seconds=settings.GPUPLANE_SLOT_START_SECONDS)
    if now - begun <= limit:
        return None
    told = f": {slot.reason}" if slot.reason else ""
    return Verdict(State.FAILED, f"it was not ready within {settings.GPUPLANE_SLOT_START_SECONDS} s{told}")


def _without_memory(slot: Slot, now: datetime) -> Verdict | None:
    """One that waits longer than slots take to go: by the next plan it may be elsewhere.

    Memory that is held is not waited for: its bind is under way, or collection undoes it.
    """
    if slot.allocation is not None and slot.allocation.state in LIVE:
        return None
    seconds = settings.GPUPLANE_SLOT_START_SECONDS + settings.GPUPLANE_SLOT_DRAIN_SECONDS
    if now - slot.planned_at <= timedelta(seconds=seconds):
        return None
    return Verdict(State.STOPPED, f"its memory was not free within {seconds} s")


def _with_lost_gpus() -> Iterator[str]:
    slots = Slot.objects.filter(state__in=WANTED, allocation__state=AllocationState.BOUND)
    grants = AllocationDevice.objects.filter(live=True, allocation__in=slots.values("allocation"))
    lost = grants.exclude(device__presence=Presence.PRESENT).values("allocation")
    yield from slots.filter(allocation__in=lost).values_list("pk", flat=True)


@atomic_retry
def _move(slot: Slot, verdict: Verdict, now: datetime) -> bool:
    """Two moves where the table of moves has no single one."""
    if verdict.state == State.STOPPED and slot.state in {State.STARTING, State.READY}:
        if not slot_moved(slot, State.FAILED, now=now, reason=verdict.reason, own_failure=False):
            return False
        slot.state = State.FAILED
    if verdict.state == State.FAILED:
        return slot_moved(slot, State.FAILED, now=now, reason=verdict.reason, own_failure=verdict.own)
    return slot_moved(slot, verdict.state, now=now, reason=verdict.reason)
