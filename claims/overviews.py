"""Claims as the pages show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Q, QuerySet

from access.actors import Actor
from claims.choices import Phase
from claims.kinds import CLAIM
from claims.models import GpuClaim
from claims.selectors import manifest_list
from kube.device_types import GPU


def claim_search(*, actor: Actor, search: str, phase: str, namespace: str) -> QuerySet[GpuClaim, Any]:
    """Matching claims that the actor sees."""
    claims = manifest_list(CLAIM, actor=actor)
    for word in search.split():
        claims = claims.filter(Q(name__icontains=word) | Q(namespace__icontains=word))
    if phase in Phase.values:
        claims = claims.filter(phase=phase)
    return claims.filter(namespace=namespace) if namespace else claims


def request_text(spec: Mapping[str, Any]) -> str:
    """A claim's devices as text: `4 × H100`, `1 × gpu, core 50 %, memory 20Gi`. Tolerates a malformed spec."""
    devices = spec.get("devices")
    if not isinstance(devices, Mapping):
        return "malformed"
    models = devices.get("model")
    kind = " or ".join(map(str, models)) if isinstance(models, list) and models else str(devices.get("type", GPU))
    words = [f"{devices.get('count', '?')} × {kind}"]
    for key, label, unit in (("core", "core", " %"), ("memory", "memory", ""), ("memoryRatio", "memory", " %")):
        if devices.get(key) is not None:
            words.append(f"{label} {devices[key]}{unit}")
    return ", ".join(words)
