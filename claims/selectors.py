"""Reads of GpuClaims, and their manifest.

Invariants: claims of namespaces that the actor does not see do not exist for it; the manifest reads back as the same
claim, for `kubectl` and REST alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet

from access.actors import Actor
from access.errors import NotFound
from claims.dialects.claim_manifest import KIND
from claims.models import GpuClaim
from kube.keys import API_VERSION


def claim_list(*, actor: Actor) -> QuerySet[GpuClaim]:
    """Claims of the namespaces that the actor sees, by namespace and name."""
    claims = GpuClaim.objects.order_by("namespace", "name")
    return claims if actor.namespaces is None else claims.filter(namespace__in=actor.namespaces)


def claim_get(*, namespace: str, name: str, actor: Actor) -> GpuClaim:
    """One claim. Raises NotFound, also for a namespace that the actor does not see."""
    claim = None
    if actor.sees(namespace) and "\x00" not in namespace + name:
        claim = GpuClaim.objects.filter(namespace=namespace, name=name).first()
    if claim is None:
        raise NotFound(f"there is no GpuClaim {name[:253]!r} in {namespace[:63]!r}")
    return claim


def claim_manifest(claim: GpuClaim, status: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The claim's manifest; `status`: as of `allocations.selectors.claim_statuses`."""
    metadata: dict[str, Any] = {
        "name": claim.name,
        "namespace": claim.namespace,
        "uid": str(claim.uid),
        "generation": claim.generation,
        "resourceVersion": claim.resource_version,
        "creationTimestamp": claim.created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "labels": claim.labels,
        "annotations": claim.annotations,
    }
    manifest: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": claim.spec}
    if status is not None:
        manifest["status"] = dict(status)
    return manifest
