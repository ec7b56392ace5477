"""What people do to growth: cancel a scaling request, say what a pool's nodes have."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from access.errors import Conflict
from audit.choices import EventKind
from audit.services import record
from autoscaling.choices import ACTIVE, COMING, TriggerState
from autoscaling.models import Pool, ScalingRequest, Trigger
from autoscaling.shapes import checked
from autoscaling.transitions import settle, trigger_moved
from autoscaling.wake import wake_growth
from storage.transactions import atomic_retry


@atomic_retry
def request_cancel(*, request: ScalingRequest, actor: str, now: datetime) -> ScalingRequest:
    """End the request: its trigger pods go, nodes that Karpenter makes already come and serve whom they can.

    The pods that it was for wait, and say so. Raises Conflict for one that has ended.
    """
    locked = ScalingRequest.objects.select_for_update().get(pk=request.pk)
    if locked.state not in ACTIVE:
        raise Conflict(f"the scaling request has ended: it is {locked.state}")
    why = f"cancelled by {actor}"
    for trigger in Trigger.objects.filter(request=locked, state__in=COMING).select_related("request"):
        trigger_moved(trigger, TriggerState.WITHDRAWN, now=now, reason=why, actor=actor)
    settle(locked.pk, now=now, cancelled=why)
    record(
        kind=EventKind.SCALING_CANCELLED,
        message=f"the scaling request for pool {locked.pool} was cancelled",
        actor=actor,
        now=now,
        name=locked.pool,
        data={"request": locked.pk},
    )
    wake_growth()
    locked.refresh_from_db()
    return locked


@atomic_retry
def pool_put(*, pool: Pool, shape: object, actor: str, now: datetime) -> Pool:
    """Say what a node of the pool has, for a pool whose NodePool and nodes do not say it. Raises BadInput."""
    given: dict[str, Any] = checked(shape)
    locked = Pool.objects.select_for_update().get(pk=pool.pk)
    if locked.given != given:
        locked.given, locked.changed_at = given, now
        locked.save(update_fields=["given", "changed_at"])
        record(
            kind=EventKind.POOL_CHANGED,
            message=f"an operator said what nodes of pool {locked.name} have",
            actor=actor,
            now=now,
            name=locked.name,
            data={"shape": given},
        )
        wake_growth()
    return locked
