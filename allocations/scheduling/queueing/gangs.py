"""The state of each gang: admitted, complete, undone.

Invariants: a gang whose pods are not all bound within its `timeoutSeconds` is undone: unbound holds end, bound members
are evicted, round after round until none is left, and it waits again, behind others, for longer each time. A gang that
was complete is left alone, unless its `onMemberFailure` says that all members are evicted when one ends. Members that
are leaving count no more: pods that replace them are a new gang.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog

from allocations.choices import State
from allocations.models import Allocation, GangState
from allocations.scheduling.queueing.evictions import evict_or_drop
from allocations.scheduling.queueing.round_input import RoundInput
from allocations.scheduling.queueing.waiting_rows import Holder, WaitingRow
from claims.queue_manifests import GangFields
from kube.client import Cluster

FIRST_BACK_OFF: Final = timedelta(seconds=10)
LONGEST_BACK_OFF: Final = timedelta(minutes=10)
SUCCEEDED: Final = "the pod has succeeded"

log = structlog.get_logger(__name__)


class GangsUpdated(NamedTuple):
    """`undone`: why gangs wait that were undone, or lost members, just now; the input of the round still counts on
    those. `stayed`: UIDs of pods that the API server would not evict.
    """

    undone: Mapping[str, str]
    stayed: Collection[str]


def note_admitted(rows: Sequence[WaitingRow], now: datetime) -> None:
    """Note the time from which the gangs of these pods have their `timeoutSeconds`."""
    for gang in {row.gang for row in rows if row.gang}:
        state = _state_of(gang)
        if state.admitted_at is None or state.retry_at is not None:
            _note_admission(state, now)


def update_gangs(cluster: Cluster | None, inputs: RoundInput, *, spared: Container[str]) -> GangsUpdated:
    """Note which gangs are complete, undo those that took too long, and delete the state of those that are gone.

    `spared`: UIDs of pods that are not evicted now.
    """
    by_gang: defaultdict[str, list[Holder]] = defaultdict(list)
    for holder in inputs.holders.values():
        if holder.gang:
            by_gang[holder.gang].append(holder)
    waiting: defaultdict[str, list[str]] = defaultdict(list)
    for row in inputs.waiting.values():
        waiting[row.gang].append(row.pod_uid)
    undone: dict[str, str] = {}
    stayed: set[str] = set()
    for name in inputs.states.keys() | by_gang.keys():
        state, spec, members = inputs.states.get(name), inputs.gangs.get(name), by_gang.get(name, [])
        if spec is None:
            if state is not None and not members and name not in waiting:
                state.delete()
            continue
        staying = [one for one in members if not one.leaving]
        if state is None or state.admitted_at is None:
            if len(staying) >= spec.min_member:  # the worker that admitted them was stopped before it noted that
                _note_admission(_state_of(name), inputs.now)
        elif ended := _update(state, spec, staying, inputs.now, waiting=waiting.get(name, [])):
            # a bind is waited for
            going = [one for one in staying if one.pod_uid not in spared and one.state in (State.HELD, State.BOUND)]
            left = _end(cluster, going, ended, inputs.now)
            stayed |= left
            if state.retry_at is None or len(left) < len(going):
                undone[name] = ended
    return GangsUpdated(undone, stayed)


def _state_of(gang: str) -> GangState:
    namespace, _, name = gang.partition("/")
    return GangState.objects.get_or_create(namespace=namespace, name=name)[0]


def _note_admission(state: GangState, now: datetime) -> None:
    GangState.objects.filter(pk=state.pk).update(admitted_at=now, stood_at=None, retry_at=None, reason="")


def _update(
    state: GangState, spec: GangFields, staying: Sequence[Holder], now: datetime, *, waiting: Sequence[str]
) -> str:
    """Why the members are to go; empty: they stay. Between its undoing and its end a gang has both times.

    `waiting`: UIDs of its pods that wait. Where none of the pods is left that were admitted, the others are a new gang.
    """
    assert state.admitted_at is not None
    if not staying and (state.retry_at is not None or state.stood_at is not None or not _any_held(waiting)):
        GangState.objects.filter(pk=state.pk).update(admitted_at=None, stood_at=None)
    elif state.retry_at is not None:
        if now < state.retry_at or len(staying) < spec.min_member:
            return f"gang {state.name} is undone"
        _note_admission(state, now)  # it was admitted again, and that was not noted
    elif state.stood_at is None and sum(one.state is State.BOUND for one in staying) >= spec.min_member:
        GangState.objects.filter(pk=state.pk).update(stood_at=now, undone=0)
    elif state.stood_at is None and now > state.admitted_at + timedelta(seconds=spec.timeout_seconds):
        return _undo(state, f"not all its pods were bound within {spec.timeout_seconds} s", now)
    elif state.stood_at is not None and spec.on_member_failure == "evictAll" and _failed(state, now):
        return _undo(state, "a member ended or failed", now)
    return ""


def _any_held(pod_uids: Sequence[str]) -> bool:
    """Whether one of these pods has held devices before."""
    return bool(pod_uids) and Allocation.objects.filter(pod_uid__in=pod_uids).exists()


def _failed(state: GangState, now: datetime) -> bool:
    """Whether a member has ended since the gang was complete, other than by success."""
    members = Allocation.objects.filter(namespace=state.namespace, gang=state.name, bound_at__isnull=False)
    ended = members.filter(ended_at__gt=state.stood_at, ended_at__lte=now)
    return ended.exclude(reason=SUCCEEDED).exclude(leaving_at__lt=state.stood_at).exists()


def _undo(state: GangState, why: str, now: datetime) -> str:
    """Let the gang wait. Returns the reason for its members."""
    reason = f"gang {state.name} is undone: {why}"
    undone = state.undone + 1
    back_off = min(FIRST_BACK_OFF * 2 ** min(undone - 1, 10), LONGEST_BACK_OFF)
    GangState.objects.filter(pk=state.pk).update(
        stood_at=None, undone=undone, retry_at=now + back_off, reason=reason[:500]
    )
    log.info("queues.gang_undone", gang=str(state), why=why, undone=undone)
    return reason


def _end(cluster: Cluster | None, members: Sequence[Holder], reason: str, now: datetime) -> set[str]:
    """End the holds of these members, and have bound ones evicted; UIDs of those that stay."""
    return {one.pod_uid for one in members if not evict_or_drop(cluster, one, reason, now)}


def note_reasons(states: Mapping[str, GangState], reasons: Mapping[str, str]) -> None:
    """Write why each gang waits, for its page and its status."""
    for gang, reason in reasons.items():
        state = states.get(gang)
        if state is None:
            namespace, _, name = gang.partition("/")
            GangState.objects.get_or_create(namespace=namespace, name=name, defaults={"reason": reason[:500]})
        elif state.reason != reason[:500]:
            GangState.objects.filter(pk=state.pk).update(reason=reason[:500])
