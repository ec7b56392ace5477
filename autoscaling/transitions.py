"""Moves of triggers and scaling requests between their states, each with its event.

Called by `autoscaling.rounds` and `autoscaling.services`, inside a transaction. Invariants: a move is an UPDATE that
names the state it starts from, so of two writers one succeeds; a request's state is that of its trigger furthest
behind; an ended one stays as it ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Final

from django.db import transaction

from audit.choices import EventKind
from audit.services import record
from autoscaling.choices import (
    ACTIVE,
    COMING,
    EDGES,
    REQUEST_STATE_OF,
    TRIGGER_EDGES,
    RequestState,
    TriggerState,
)
from autoscaling.models import ScalingRequest, Trigger

ACTOR: Final = "growth"
REASON_LONGEST: Final = 500

_EVENTS: Final = {
    TriggerState.CREATED: (EventKind.SCALING_TRIGGERED, "trigger pod {name} was created"),
    TriggerState.READY: (EventKind.SCALING_READY, "node {node} is ready, made for trigger pod {name}"),
    TriggerState.SERVED: (EventKind.SCALING_SERVED, "node {node} has its devices, made for trigger pod {name}"),
    TriggerState.FAILED: (EventKind.SCALING_FAILED, "no node came for trigger pod {name}: {reason}"),
    TriggerState.WITHDRAWN: (EventKind.SCALING_WITHDRAWN, "trigger pod {name} is withdrawn: {reason}"),
}
_TIMES: Final = {
    RequestState.TRIGGERED: "triggered_at",
    RequestState.LAUNCHING: "launching_at",
    RequestState.REGISTERED: "registered_at",
    RequestState.READY: "ready_at",
}


def trigger_moved(
    trigger: Trigger, state: TriggerState, *, now: datetime, reason: str = "", actor: str = ACTOR, **fields: object
) -> bool:
    """Move the trigger on; False where it is in another state by now. `fields`: columns to write as well.

    The object itself has the new values once the transaction has committed.
    """
    before = TriggerState(trigger.state)
    if state not in TRIGGER_EDGES[before]:
        return False
    values: dict[str, object] = {"state": state, **fields}
    if reason:
        values["reason"] = reason[:REASON_LONGEST]
    if state in (TriggerState.FAILED, TriggerState.WITHDRAWN, TriggerState.SERVED):
        values["ended_at"] = now
    if not Trigger.objects.filter(pk=trigger.pk, state=before).update(**values):
        return False
    if state in _EVENTS:
        kind, text = _EVENTS[state]
        node, why = str(values.get("node", trigger.node)), values.get("reason", trigger.reason)
        message = text.format(name=trigger.name, node=node, reason=why)
        record(kind=kind, message=message, actor=actor, now=now, name=trigger.request.pool, node=node)
    transaction.on_commit(partial(_set, trigger, values))  # a retried transaction starts from the state before
    return True


def _set(trigger: Trigger, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        setattr(trigger, name, value)


def settle(request_id: int, *, now: datetime, cancelled: str = "") -> None:
    """Bring the request's state in line with its triggers. `cancelled`: by whom and why, where somebody did."""
    request = ScalingRequest.objects.select_for_update().get(pk=request_id)
    if request.state not in ACTIVE:
        return
    triggers = list(Trigger.objects.filter(request_id=request_id))
    coming = [TriggerState(one.state) for one in triggers if one.state in COMING]
    state, reason = _state_of(triggers, coming)
    if cancelled:
        state, reason = RequestState.CANCELLED, cancelled
    values: dict[str, object] = {}
    if request.wanted != len(coming):
        values["wanted"] = len(coming)
    if state != request.state and state in EDGES[RequestState(request.state)]:
        values |= {"state": state, "reason": reason[:REASON_LONGEST]}
        if state in _TIMES and getattr(request, _TIMES[state]) is None:
            values[_TIMES[state]] = now
        if state not in ACTIVE:
            values["ended_at"] = now
    if values:
        ScalingRequest.objects.filter(pk=request_id).update(**values, changed_at=now)


def _state_of(triggers: list[Trigger], coming: list[TriggerState]) -> tuple[RequestState, str]:
    if coming:
        order = list(COMING)
        return REQUEST_STATE_OF[min(coming, key=order.index)], ""
    if any(one.state == TriggerState.SERVED for one in triggers):
        return RequestState.SERVED, ""
    failed = [one for one in triggers if one.state == TriggerState.FAILED]
    if failed:
        return RequestState.FAILED, max(failed, key=lambda one: one.pk).reason
    return RequestState.CANCELLED, ""
