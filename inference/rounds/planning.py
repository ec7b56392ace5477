"""Makes the plan of slots, and writes it: new slots, evictions, and what requests wait for.

Called by `rounds.run`. Invariants:
- Only the newest worker writes (`rounds.fence`), one transaction for each slot with the slots that go for it: they go
  together or nobody does.
- A slot is written only for the model as the plan read it, and evicts only slots without a request since.
- Where the input turns out to be old, the rest of the plan is left to the next round.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
import structlog
from django.db import transaction

from allocations.engine.slots.plan import plan_slots
from allocations.engine.slots.records import NewSlot, SlotDecision
from audit.choices import EventKind
from audit.services import record
from inference.choices import RequestState, State
from inference.counters import EVICTED
from inference.launch import Launch
from inference.models import Model, Request, Runner, Slot
from inference.rounds.fence import pass_fence
from inference.rounds.round_input import RoundInput, read_round_input
from inference.slot_pods import pod_name_of
from inference.transitions import ACTOR, REASON_LONGEST, place_text, slot_moved
from inference.wake import wake_requests, wake_slots
from storage.transactions import atomic_retry

ROWS_A_STATEMENT: Final = 500
_LETTERS: Final = "bcdfghjkmnpqrstvwxz"
_ID_LENGTH: Final = 10

log = structlog.get_logger(__name__)


def plan(number: int, *, now: datetime) -> list[Slot]:
    """One plan; the slots that are new. Raises MovedOn where another worker plans now."""
    round_input = read_round_input(now)
    answer = plan_slots(round_input.inputs)
    named: dict[str, Slot] = {}
    for one in answer.slots:
        try:
            named[one.id] = write_slot(one, round_input, number)
        except _InputOld as why:
            log.info("slots.plan_old", model=one.model, why=str(why))
            wake_slots()
            break
    note_waiting(answer, round_input, named)
    note_lacking(answer, round_input)
    return list(named.values())


class _InputOld(Exception):
    """What the plan was made from has changed."""


@atomic_retry
def write_slot(new: NewSlot, round_input: RoundInput, number: int) -> Slot:
    """The new slot, planned; those that it evicts drain. Raises MovedOn (another worker plans), _InputOld."""
    pass_fence(number)
    read = round_input.models[new.model]
    model = Model.objects.select_for_update().filter(pk=read.pk, revision=read.revision).first()
    if model is None:
        raise _InputOld(f"model {new.model} was changed")
    now = round_input.now
    failure = round_input.failures.get((model.name, model.revision, new.lora))
    slot_id, by_pod = new_id(), new.runner in round_input.pod_nodes
    slot = Slot(
        id=slot_id,
        model=model,
        model_name=model.name,
        model_revision=model.revision,
        lora=new.lora,
        launch=msgspec.to_builtins(Launch.of(model)),
        node=new.runner,
        runner=None if by_pod else Runner.objects.filter(node__name=new.runner).first(),
        pod_name=pod_name_of(slot_id) if by_pod else "",
        gpus=list(new.gpus),
        memory=list(new.memory),
        evicts=list(new.evicts),
        attempt=1 if failure is None else failure.attempts + 1,
        planned_at=now,
        changed_at=now,
    )
    slot.save(force_insert=True)
    why = f"evicted for slot {slot.pk} of {model.name}"
    for name in new.evicts:
        victim = round_input.slots[name]
        if not slot_moved(victim, State.DRAINING, now=now, reason=why, only_idle=True):
            raise _InputOld(f"slot {name} is not idle any more")
        transaction.on_commit(EVICTED.labels(victim.model_name).inc)
    record(
        kind=EventKind.SLOT_PLANNED,
        message=f"a slot of {slot.model_name} is planned on {place_text(slot)}",
        actor=ACTOR,
        now=now,
        name=slot.model_name,
        node=slot.node,
        data={"slot": slot.pk, "lora": slot.lora, "memory": slot.memory, "evicts": slot.evicts},
    )
    return slot


def new_id() -> str:
    """A word that no other slot has."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_ID_LENGTH))


def note_waiting(answer: SlotDecision, round_input: RoundInput, named: Mapping[str, Slot]) -> None:
    """Write at waiting requests the slot that they wait for, or why there is none."""
    told: defaultdict[tuple[str | None, str], list[str]] = defaultdict(list)
    for served in answer.requests:
        told[_told(served.slot, served.reason, round_input, named)].append(served.id)
    for request in round_input.held_back:
        told[None, round_input.put_off[request.model, request.lora]].append(request.id)
    as_they_are: dict[UUID, tuple[str | None, str]] = {
        pk: (slot, reason)
        for pk, slot, reason in Request.objects.filter(state=RequestState.WAITING).values_list(
            "pk", "slot_id", "reason"
        )
    }
    for (slot, reason), ids in told.items():
        changed = [pk for pk in map(UUID, ids) if as_they_are.get(pk, (slot, reason)) != (slot, reason)]
        for some in _chunks(sorted(changed)):
            _tell(some, slot, reason)
    named_slots = (round_input.slots.get(one.slot or "") for one in answer.requests)
    for model in {known.model_name for known in named_slots if known is not None}:
        wake_requests(model)


@atomic_retry
def _tell(ids: Sequence[UUID], slot: str | None, reason: str) -> None:
    Request.objects.filter(pk__in=ids, state=RequestState.WAITING).update(slot_id=slot, reason=reason)


def _told(slot: str | None, reason: str, round_input: RoundInput, named: Mapping[str, Slot]) -> tuple[str | None, str]:
    """The slot that a request waits for, and the text. A slot that is ready is not told: the request goes there."""
    if slot is None:
        return None, reason[:REASON_LONGEST]
    known = round_input.slots.get(slot)
    if known is not None:
        if known.state == State.READY:
            return None, ""
        return known.pk, f"slot {known.pk} on {known.node} is {known.state}"
    new = named.get(slot)
    return (None, "") if new is None else (new.pk, f"slot {new.pk} on {new.node} is planned")


def _chunks(ids: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    for start in range(0, len(ids), ROWS_A_STATEMENT):
        yield ids[start : start + ROWS_A_STATEMENT]


def note_lacking(answer: SlotDecision, round_input: RoundInput) -> None:
    """Write at models what `keep_warm` lacks, and why."""
    lacking = {one.model: (one.missing, one.reason[:REASON_LONGEST]) for one in answer.unkept}
    for model in round_input.models.values():
        warm = sum(_warm(round_input.slots.values(), model.name))
        if (model.name, "") in round_input.put_off and model.keep_warm > warm:
            lacking[model.name] = model.keep_warm - warm, round_input.put_off[model.name, ""][:REASON_LONGEST]
        missing, reason = lacking.get(model.name, (0, ""))
        if (model.lacking, model.reason) != (missing, reason):
            Model.objects.filter(pk=model.pk).update(lacking=missing, reason=reason)


def _warm(slots: Iterable[Slot], name: str) -> Iterator[bool]:
    warm = (State.PLANNED, State.STARTING, State.READY)
    return (slot.model_name == name and not slot.lora and slot.state in warm for slot in slots)
