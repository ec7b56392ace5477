"""Writes of GpuClaims by manifest.

Invariants: only operators of the namespace's team and admins write; nothing that breaks a rule of a GpuClaim reaches
the store (`claims.store`).
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from typing import Any

from django.conf import settings

from access.actors import Actor
from access.errors import BadInput, NotFound
from claims.cluster_store import ClusterStore
from claims.dialects.claim_manifest import DEFAULT_NAMESPACE, parse_claim_manifest
from claims.errors import ClaimChanged
from claims.models import GpuClaim
from claims.store import ClaimDraft, DatabaseStore
from kube.names import InvalidName, check_namespace, check_subdomain

PATCH_AGAIN = 3
"""Retries of a patch without a resourceVersion after somebody else wrote in between."""
METADATA_BYTES_MOST = 262_144
"""Kubernetes' own limit for annotations."""

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def claim_create(*, manifest: object, actor: Actor, now: datetime) -> GpuClaim:
    """Create a claim from its manifest. Raises BadInput, NotAllowed, ClaimExists, Unavailable."""
    draft = _draft(manifest, generated_name=True)
    actor.require_write(draft.namespace)
    return _store().create(draft=draft, actor=actor.name, now=now)


def claim_replace(*, namespace: str, name: str, manifest: object, actor: Actor, now: datetime) -> GpuClaim:
    """Replace the claim by the manifest, whose metadata.resourceVersion is a precondition.

    Raises BadInput, NotAllowed, NotFound, ClaimChanged, Unavailable.
    """
    require_seen(namespace, name, actor=actor)
    actor.require_write(namespace)
    draft = _draft(manifest, namespace=namespace, name=name)
    return _store().replace(draft=draft, actor=actor.name, now=now)


def claim_patch(*, namespace: str, name: str, patch: object, actor: Actor, now: datetime) -> GpuClaim:
    """Apply a JSON merge patch (RFC 7386) to the claim's manifest. Raises as `claim_replace` does.

    A patch without a resourceVersion is applied to the current claim, and again if somebody writes in between.
    """
    if not isinstance(patch, Mapping):
        raise BadInput("a merge patch must be an object", rule="type")
    require_seen(namespace, name, actor=actor)
    actor.require_write(namespace)

    metadata = patch.get("metadata")
    versioned = isinstance(metadata, Mapping) and bool(metadata.get("resourceVersion"))

    def applied() -> GpuClaim:
        base = _store().manifest(namespace=namespace, name=name)
        manifest = merged(base, patch)
        if not versioned and isinstance(manifest.get("metadata", {}), Mapping):
            # the write is conditional on what was read, even if the patch removes these
            stated = manifest.get("metadata", {})
            rests = {key: stated.get(key) or base["metadata"][key] for key in ("uid", "resourceVersion")}
            manifest["metadata"] = {**stated, **rests}
        return claim_replace(namespace=namespace, name=name, manifest=manifest, actor=actor, now=now)

    for _ in range(0 if versioned else PATCH_AGAIN):
        with suppress(ClaimChanged):
            return applied()
    return applied()


def claim_delete(*, namespace: str, name: str, actor: Actor, now: datetime) -> GpuClaim:
    """Delete the claim; holders keep their devices. Raises NotAllowed, NotFound, Unavailable."""
    require_seen(namespace, name, actor=actor)
    actor.require_write(namespace)
    return _store().delete(namespace=namespace, name=name, actor=actor.name, now=now)


def _store() -> DatabaseStore | ClusterStore:
    return ClusterStore() if settings.GPUPLANE_KUBECONFIG else DatabaseStore()


def require_seen(namespace: str, name: str, *, actor: Actor) -> None:
    """Raises NotFound for namespaces that the actor does not see, and for invalid names."""
    try:
        check_namespace(namespace)
        check_subdomain(name)
    except InvalidName as error:
        raise NotFound("there is no such object") from error
    if not actor.sees(namespace):
        raise NotFound(f"there is no {name} in {namespace}")


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, anything else replaces."""
    if not isinstance(patch, Mapping):
        return deepcopy(patch)
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _draft(manifest: object, *, namespace: str = "", name: str = "", generated_name: bool = False) -> ClaimDraft:
    """The validated manifest, with the names of the URL. Raises BadInput."""
    metadata, _ = parse_claim_manifest(manifest, generated_name=generated_name)
    for field, stated, path in (("namespace", metadata.namespace, namespace), ("name", metadata.name, name)):
        if path and stated and stated != path:
            raise BadInput(
                f"metadata.{field} is {stated}, the address says {path}", field=f"metadata.{field}", rule="address"
            )
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    for field, entries in (("labels", labels), ("annotations", annotations)):
        if sum(len(key.encode()) + len(value.encode()) for key, value in entries.items()) > METADATA_BYTES_MOST:
            raise BadInput(
                f"metadata.{field} holds more than {METADATA_BYTES_MOST} bytes", field=f"metadata.{field}", rule="size"
            )
    assert isinstance(manifest, Mapping)  # by parse_claim_manifest
    return ClaimDraft(
        namespace=metadata.namespace or namespace or DEFAULT_NAMESPACE,
        name=metadata.name or _generated(metadata.generate_name),
        spec=deepcopy(dict(manifest["spec"])),
        labels=labels,
        annotations=annotations,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
    )


def _generated(prefix: str) -> str:
    letters = string.digits if not prefix else _SUFFIX_LETTERS
    return prefix + "".join(secrets.choice(letters) for _ in range(5))
