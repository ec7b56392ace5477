"""What GpuQueues and GpuGangs show as their status: counts of the ledger, and the last decision of the queueing loop.

Called by REST, pages and `allocations.publish`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Count

from allocations.choices import LIVE
from allocations.models import Allocation, GangState, PodRefusal, QueueState
from claims.models import GpuGang, GpuQueue
from claims.queues import stored_queues

PENDING = "Pending"
PLACED = "Placed"
TIMED_OUT = "TimedOut"
INVALID = "Invalid"


def queue_statuses(rows: Sequence[GpuQueue]) -> dict[int, dict[str, Any]]:
    """`status` by the row's id: as of the last decision, and why a queue is left out."""
    invalid = stored_queues().invalid if rows else {}
    states = {one.name: one for one in QueueState.objects.filter(name__in=[row.name for row in rows])}
    return {row.pk: _queue_status(states.get(row.name), invalid.get(row.name, "")) for row in rows}


def _queue_status(state: QueueState | None, problem: str) -> dict[str, Any]:
    quotas: list[dict[str, Any]] = [] if state is None else state.quotas
    amounts = [f"{one['allocated']:g} of {one['fairShare']:g} {'/'.join(one['models']) or 'GPUs'}" for one in quotas]
    return {
        "waiting": 0 if state is None else state.waiting,
        "summary": ", ".join(amounts)[:1024],
        "quotas": quotas,
        "conditions": [_valid(problem), *_borrowing(quotas)],
    }


def _borrowing(quotas: Sequence[Mapping[str, Any]]) -> list[Mapping[str, str]]:
    """Whether the queue holds more than it deserves, and of what."""
    above = [
        f"{one['allocated'] - one['deserved']:g} {'/'.join(one['models']) or 'GPUs'}"
        for one in quotas
        if one["allocated"] > one["deserved"]
    ]
    if not above:
        return []
    message = f"holds {', '.join(above)} more than it deserves"
    return [{"type": "Borrowing", "status": "True", "reason": "AboveDeserved", "message": message}]


def gang_statuses(rows: Sequence[GpuGang]) -> dict[int, dict[str, Any]]:
    """`status` by the row's id. One query a table, whatever the number of gangs."""
    names = {(row.namespace, row.name): row for row in rows}
    spaces, gangs = {row.namespace for row in rows}, {row.name for row in rows}
    states = {(one.namespace, one.name): one for one in GangState.objects.filter(namespace__in=spaces, name__in=gangs)}
    placed = _counted(Allocation.objects.filter(state__in=LIVE, namespace__in=spaces, gang__in=gangs))
    waiting = _counted(
        PodRefusal.objects.filter(namespace__in=spaces, gang__in=gangs).exclude(
            pod_uid__in=Allocation.objects.filter(state__in=LIVE, gang__in=gangs).values("pod_uid")
        )
    )
    return {
        row.pk: _gang_status(row, states.get(key), placed=placed[key], waiting=waiting[key])
        for key, row in names.items()
    }


def _counted(rows: Any) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for namespace, gang, number in rows.values_list("namespace", "gang").annotate(Count("pk")).order_by():
        found[namespace, gang] = number
    return found


def _gang_status(row: GpuGang, state: GangState | None, *, placed: int, waiting: int) -> dict[str, Any]:
    problem = next(
        (one["message"] for one in row.conditions if one["type"] == "Valid" and one["status"] == "False"), ""
    )
    phase = PENDING
    if row.phase == INVALID:
        phase = INVALID
    elif state is not None and state.stood_at is not None and placed:
        phase = PLACED
    elif state is not None and state.retry_at is not None and not placed:
        phase = TIMED_OUT
    conditions = [_valid(problem)]
    if state is not None and state.reason and phase != PLACED:
        conditions.append({"type": "Admitted", "status": "False", "reason": "Waits", "message": state.reason})
    return {"phase": phase, "members": placed + waiting, "placed": placed, "conditions": conditions}


def _valid(problem: str) -> Mapping[str, str]:
    if problem:
        return {"type": "Valid", "status": "False", "reason": "SpecInvalid", "message": problem}
    return {"type": "Valid", "status": "True", "reason": "SpecValid", "message": ""}
