"""The state of each gang: admitted, complete, undone.

Invariants: a gang whose pods are not all bound within its `timeoutSeconds` is undone: unbound holds end, bound members
are evicted, and it waits again, behind others, for longer each time. A gang that was complete is left alone,
unless its `onMemberFailure` says that all members are evicted when one ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

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


def note_admitted(rows: Sequence[WaitingRow], now: datetime) -> None:
    """Note the time from which the gangs of these pods have their `timeoutSeconds`."""
    for gang in {row.gang for row in rows if row.gang}:
        namespace, _, name = gang.partition("/")
        state, _ = GangState.objects.get_or_create(namespace=namespace, name=name)
        if state.admitted_at is None:
            GangState.objects.filter(pk=state.pk).update(admitted_at=now, retry_at=None, reason="")


def update_gangs(cluster: Cluster | None, inputs: RoundInput) -> None:
    """Note which gangs are complete, undo those that took too long, and delete the state of those that are gone."""
    by_gang: defaultdict[str, list[Holder]] = defaultdict(list)
    for holder in inputs.holders.values():
        if holder.gang:
            by_gang[holder.gang].append(holder)
    waiting = {row.gang for row in inputs.waiting.values()}
    for name, state in inputs.states.items():
        spec, members = inputs.gangs.get(name), by_gang[name]
        if not members and name not in waiting and spec is None:
            state.delete()
        elif spec is not None and state.admitted_at is not None:
            _update(cluster, state, spec, members, inputs.now)


def _update(
    cluster: Cluster | None, state: GangState, spec: GangFields, members: Sequence[Holder], now: datetime
) -> None:
    assert state.admitted_at is not None
    complete = sum(one.state is State.BOUND and not one.leaving for one in members) >= spec.min_member
    if state.stood_at is None and complete:
        GangState.objects.filter(pk=state.pk).update(stood_at=now, undone=0)
    elif state.stood_at is None and now > state.admitted_at + timedelta(seconds=spec.timeout_seconds):
        _undo(cluster, state, members, f"not all its pods were bound within {spec.timeout_seconds} s", now)
    elif state.stood_at is not None and spec.on_member_failure == "evictAll" and _failed(state, now):
        _undo(cluster, state, members, "a member ended or failed", now)
    elif state.stood_at is not None and not members:
        GangState.objects.filter(pk=state.pk).update(admitted_at=None, stood_at=None)


def _failed(state: GangState, now: datetime) -> bool:
    """Whether a member has ended since the gang was complete, other than by success."""
    members = Allocation.objects.filter(namespace=state.namespace, gang=state.name, bound_at__isnull=False)
    ended = members.filter(ended_at__gt=state.stood_at, ended_at__lte=now)
    return ended.exclude(reason=SUCCEEDED).exists()


def _undo(cluster: Cluster | None, state: GangState, members: Sequence[Holder], why: str, now: datetime) -> None:
    """End the holds of the members, have bound ones evicted, and let the gang wait."""
    reason = f"gang {state.name} is undone: {why}"
    for one in members:
        if one.state is State.HELD or (one.state is State.BOUND and not one.leaving):
            evict_or_drop(cluster, one, reason, now)
    undone = state.undone + 1
    back_off = min(FIRST_BACK_OFF * 2 ** min(undone - 1, 10), LONGEST_BACK_OFF)
    GangState.objects.filter(pk=state.pk).update(
        admitted_at=None, stood_at=None, undone=undone, retry_at=now + back_off, reason=reason[:500]
    )
    log.info("queues.gang_undone", gang=str(state), why=why, undone=undone)


def note_reasons(states: Mapping[str, GangState], reasons: Mapping[str, str]) -> None:
    """Write why each gang waits, for its page and its status."""
    for gang, reason in reasons.items():
        state = states.get(gang)
        if state is None:
            namespace, _, name = gang.partition("/")
            GangState.objects.get_or_create(namespace=namespace, name=name, defaults={"reason": reason[:500]})
        elif state.reason != reason[:500]:
            GangState.objects.filter(pk=state.pk).update(reason=reason[:500])
