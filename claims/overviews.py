"""What the pages show of claims: rows of the table. Called by `claims.views`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Count, Q, QuerySet

from access.actors import Actor
from claims.choices import Phase
from claims.models import GpuClaim
from claims.selectors import claim_list

_SORTS: Mapping[str, tuple[str, ...]] = {
    "name": ("namespace", "name"),
    "phase": ("phase", "namespace", "name"),
    "allocated": ("allocated_count", "namespace", "name"),
    "age": ("created_at", "namespace", "name"),
}
_LIVE = ("held", "reserved", "bound", "releasing")
"""Live states of an allocation, which are named in `allocations.choices`, a floor above."""


def claim_query(*, actor: Actor, search: str, phase: str, namespace: str, sort: str) -> QuerySet[GpuClaim, Any]:
    """Claims that match and that the actor sees, each with `allocated_count` (live allocations)."""
    claims = claim_list(actor=actor).annotate(
        allocated_count=Count("allocations", filter=Q(allocations__state__in=_LIVE))
    )
    for word in search.split():
        claims = claims.filter(Q(name__icontains=word) | Q(namespace__icontains=word))
    if phase in Phase.values:
        claims = claims.filter(phase=phase)
    if namespace:
        claims = claims.filter(namespace=namespace)
    first, *rest = _SORTS.get(sort.removeprefix("-"), _SORTS["name"])
    return claims.order_by(f"-{first}" if sort.startswith("-") else first, *rest)


def ask_words(spec: Mapping[str, Any]) -> str:
    """What a claim asks for, in words: `4 × H100`, `1 gpu, core 50 %, memory 20Gi`. Tolerates a malformed spec."""
    devices = spec.get("devices")
    if not isinstance(devices, Mapping):
        return "malformed"
    models = devices.get("model")
    kind = " or ".join(map(str, models)) if isinstance(models, list) and models else str(devices.get("type", "gpu"))
    words = [f"{devices.get('count', '?')} × {kind}"]
    for key, label, unit in (("core", "core", " %"), ("memory", "memory", ""), ("memoryRatio", "memory", " %")):
        if devices.get(key) is not None:
            words.append(f"{label} {devices[key]}{unit}")
    return ", ".join(words)
