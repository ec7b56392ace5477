"""What a pod that could not be placed was told last: kept for explain and the list of pending pods."""

from __future__ import annotations

from datetime import datetime

import msgspec
from django.db.models import F

from access.transactions import atomic_retry
from allocations.models import PodRefusal
from audit.choices import Kind
from audit.services import record
from claims.dialects.request import DeviceRequest
from kube.objects import Pod


@atomic_retry
def refusal_note(
    *,
    pod: Pod,
    claim_name: str,
    request: DeviceRequest | None,
    rule: str,
    summary: str,
    reasons: dict[str, int],
    now: datetime,
) -> None:
    """Keep the refusal; an event is written only when its reasons differ from the last ones, not their numbers."""
    meta = pod.metadata
    summary = summary[:500]
    known = PodRefusal.objects.filter(pod_uid=meta.uid).first()
    if known is not None and (known.rule, set(known.reasons)) == (rule, set(reasons)):
        PodRefusal.objects.filter(pk=known.pk).update(
            last_at=now, count=F("count") + 1, summary=summary, reasons=reasons
        )
        return
    told = {
        "namespace": meta.namespace,
        "pod_name": meta.name,
        "claim_name": claim_name[:253],
        "request": None if request is None else msgspec.to_builtins(request),
        "rule": rule,
        "summary": summary,
        "reasons": reasons,
        "last_at": now,
    }
    PodRefusal.objects.update_or_create(
        pod_uid=meta.uid,
        defaults={**told, "count": 1 if known is None else known.count + 1},
        create_defaults={**told, "first_at": now},
    )
    record(
        kind=Kind.POD_REFUSED,
        message=f"{meta.namespace}/{meta.name} cannot be placed: {summary}",
        actor="scheduler",
        now=now,
        namespace=meta.namespace,
        name=meta.name,
        claim=claim_name[:253],
        data={"reasons": reasons, "rule": rule},
    )
