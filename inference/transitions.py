"""Moves of slots and runners between their states, each with its event, in the transaction of the caller.

Called by the loops, by the sessions of runners and by services. Invariants: a move is an UPDATE that names the state it
starts from, so of two writers one succeeds; whoever has to know is woken after the commit; no move touches capacity:
`stopped` alone lets the memory go, and `rounds.memory` gives it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Final

from django.db import transaction

from audit.choices import EventKind
from audit.services import record
from inference.choices import EDGES, RUNNER_EDGES, RunnerState, State
from inference.counters import MOVES, START_SECONDS
from inference.models import Runner, Slot
from inference.wake import wake_requests, wake_runner, wake_slots

ACTOR: Final = "slots"
REASON_LONGEST: Final = 500

_EVENTS: Final[Mapping[State, tuple[EventKind, str]]] = {
    State.STARTING: (EventKind.SLOT_STARTING, "slot {id} of {model} starts on {where}"),
    State.READY: (EventKind.SLOT_READY, "slot {id} of {model} is ready on {where}"),
    State.DRAINING: (EventKind.SLOT_DRAINING, "slot {id} of {model} is to leave {where}: {reason}"),
    State.FAILED: (EventKind.SLOT_FAILED, "slot {id} of {model} failed on {where}: {reason}"),
    State.STOPPED: (EventKind.SLOT_STOPPED, "slot {id} of {model} is gone from {where}"),
}
_TIMES: Final[Mapping[State, str]] = {
    State.STARTING: "starting_at",
    State.READY: "ready_at",
    State.DRAINING: "draining_at",
    State.FAILED: "failed_at",
    State.STOPPED: "stopped_at",
}
_RUNNER_EVENTS: Final[Mapping[RunnerState, tuple[EventKind, str]]] = {
    RunnerState.CONNECTED: (EventKind.RUNNER_CONNECTED, "the runner of {node} is connected"),
    RunnerState.SILENT: (EventKind.RUNNER_SILENT, "the runner of {node} is silent"),
    RunnerState.FAILED: (EventKind.RUNNER_FAILED, "the runner of {node} has failed: {reason}"),
}


def slot_moved(
    slot: Slot,
    state: State,
    *,
    now: datetime,
    reason: str = "",
    actor: str = ACTOR,
    only_idle: bool = False,
    **fields: object,
) -> bool:
    """Move the slot on; False where it is in another state by now, or cannot make this move.

    `only_idle`: not while it runs a request, nor where it ran one since the object was read. `fields`: columns to write
    as well. The object has the new values once the transaction has committed.
    """
    before = State(slot.state)
    if state not in EDGES[before]:
        return False
    values: dict[str, object] = {"state": state, "changed_at": now, _TIMES[state]: now, **fields}
    if reason or state is State.READY:  # what a slot waited for is over once it serves
        values["reason"] = reason[:REASON_LONGEST]
    rows = Slot.objects.filter(pk=slot.pk, state=before)
    if only_idle:
        rows = rows.filter(active=0, last_used_at=slot.last_used_at)
    if not rows.update(**values):
        return False
    kind, text = _EVENTS[state]
    record(
        kind=kind,
        message=text.format(id=slot.pk, model=slot.model_name, where=place_text(slot), reason=reason or slot.reason),
        actor=actor,
        now=now,
        name=slot.model_name,
        node=slot.node,
        allocation_id=slot.allocation_id,
        data={"slot": slot.pk, "state": state.value, "reason": reason},
    )
    wake_slots()
    wake_runner(slot.node)
    wake_requests(slot.model_name)
    transaction.on_commit(partial(_set, slot, values))  # a retried transaction starts from the state before
    transaction.on_commit(partial(_count, slot, state, now))
    return True


def runner_moved(
    runner: Runner, state: RunnerState, *, now: datetime, reason: str = "", actor: str = ACTOR, **fields: object
) -> bool:
    """The same of a runner. `runner.node` is read."""
    before = RunnerState(runner.state)
    if state not in RUNNER_EDGES[before]:
        return False
    values: dict[str, object] = {"state": state, "changed_at": now, **fields}
    if not Runner.objects.filter(pk=runner.pk, state=before).update(**values):
        return False
    kind, text = _RUNNER_EVENTS[state]
    node = runner.node.name
    record(kind=kind, message=text.format(node=node, reason=reason), actor=actor, now=now, name=node, node=node)
    wake_slots()
    transaction.on_commit(partial(_set, runner, values))
    return True


def place_text(slot: Slot) -> str:
    """`n1, GPU 0,1`."""
    return f"{slot.node}, GPU {','.join(str(minor) for minor in slot.gpus)}"


def _count(slot: Slot, state: State, now: datetime) -> None:
    MOVES.labels(slot.model_name, state.value).inc()
    if state is State.READY:
        START_SECONDS.labels(slot.model_name).observe((now - slot.planned_at).total_seconds())


def _set(row: Slot | Runner, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        setattr(row, name, value)
