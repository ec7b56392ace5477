"""Scaling requests for the pages: one whose node is being launched."""

from __future__ import annotations

from autoscaling.models import NodeClaim, Pool, ScalingRequest, Trigger
from storage.clock import database_now

GPU = {"minor": 0, "type": "gpu", "model": "H100", "memory": 80 << 30}


def launching() -> Trigger:
    """A pool and its request; those of before are gone."""
    for rows in (ScalingRequest, NodeClaim, Pool):
        rows.objects.all().delete()
    now = database_now()
    Pool.objects.create(name="h100", weight=10, stated={"devices": [GPU], "links": []}, changed_at=now)
    request = ScalingRequest.objects.create(
        pool="h100", model="H100", shape="s", state="launching", wanted=1, created_at=now, changed_at=now
    )
    NodeClaim.objects.create(name="h100-x", uid="c1", pool="h100", trigger="t", created_at=now)
    return Trigger.objects.create(
        request=request, ordinal=0, name="t", gpus=1, state="launching", node_claim="h100-x", created_at=now
    )
