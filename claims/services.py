"""Writes of GpuClaims: a manifest in, the rules checked, the store asked.

Called by REST and pages. Kept true: only operators of the namespace's team and admins write; nothing
that breaks a rule of DESIGN §3 reaches a store; the truth is wherever `claims.store` keeps it.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from datetime import datetime
from typing import Any

from access.actors import Actor
from access.errors import BadInput, NotFound
from claims.dialects.gpuclaim import parse_claim_manifest
from claims.errors import ClaimChanged
from claims.models import GpuClaim
from claims.store import ClaimDraft, claim_store
from kube.names import InvalidName, check_namespace, check_subdomain

DEFAULT_NAMESPACE = "default"
PATCH_AGAIN = 3
"""Times a patch that names no version is applied again because somebody else wrote in between."""
METADATA_BYTES_MOST = 262_144
"""Kubernetes' own limit for annotations."""

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def claim_create(*, manifest: object, actor: Actor, now: datetime, namespace: str = "") -> GpuClaim:
    """Create a claim from its manifest; `namespace` is that of the address, if it has one.

    Raises BadInput, NotAllowed, ClaimExists, Unavailable.
    """
    draft = _draft(manifest, namespace=namespace, generated_name=True)
    actor.require_write(draft.namespace)
    return claim_store().create(draft=draft, actor=actor.name, now=now)


def claim_replace(*, namespace: str, name: str, manifest: object, actor: Actor, now: datetime) -> GpuClaim:
    """Make the claim the manifest's. With metadata.resourceVersion: only if it is still at that one.

    Raises BadInput, NotAllowed, NotFound, ClaimChanged, Unavailable.
    """
    require_seen(namespace, name, actor=actor)
    actor.require_write(namespace)
    draft = _draft(manifest, namespace=namespace, name=name)
    return claim_store().replace(draft=draft, actor=actor.name, now=now)


def claim_patch(*, namespace: str, name: str, patch: object, actor: Actor, now: datetime) -> GpuClaim:
    """Apply a JSON merge patch (RFC 7386) to the claim's manifest. Raises as `claim_replace` does.

    A patch that names no resourceVersion is applied to what the claim is at that moment, and again if somebody
    writes in between; one that does is refused as ClaimChanged.
    """
    if not isinstance(patch, Mapping):
        raise BadInput("a merge patch must be an object", rule="type")
    require_seen(namespace, name, actor=actor)
    actor.require_write(namespace)

    metadata = patch.get("metadata")
    versioned = isinstance(metadata, Mapping) and bool(metadata.get("resourceVersion"))

    def applied() -> GpuClaim:
        base = claim_store().manifest(namespace=namespace, name=name)
        manifest = merged(base, patch)
        if not versioned and isinstance(manifest.get("metadata", {}), Mapping):
            # whatever the patch takes away, it rests on what was read
            stated = manifest.get("metadata", {})
            rests = {key: stated.get(key) or base["metadata"][key] for key in ("uid", "resourceVersion")}
            manifest["metadata"] = {**stated, **rests}
        return claim_replace(namespace=namespace, name=name, manifest=manifest, actor=actor, now=now)

    for _ in range(0 if versioned else PATCH_AGAIN):
        with suppress(ClaimChanged):
            return applied()
    return applied()


def claim_delete(*, namespace: str, name: str, actor: Actor, now: datetime) -> GpuClaim:
    """Delete the claim; pods that run through it keep their devices. Raises NotAllowed, NotFound, Unavailable."""
    require_seen(namespace, name, actor=actor)
    actor.require_write(namespace)
    return claim_store().delete(namespace=namespace, name=name, actor=actor.name, now=now)


def require_seen(namespace: str, name: str, *, actor: Actor) -> None:
    """Hide what the actor may not see, and names that cannot be. Raises NotFound."""
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
    """The manifest, checked, with the names of the address. Raises BadInput."""
    metadata, _ = parse_claim_manifest(manifest, generated_name=generated_name)
    for field, given, path in (("namespace", metadata.namespace, namespace), ("name", metadata.name, name)):
        if path and given and given != path:
            raise BadInput(
                f"metadata.{field} is {given}, the address says {path}", field=f"metadata.{field}", rule="address"
            )
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    for field, entries in (("labels", labels), ("annotations", annotations)):
        if sum(len(key.encode()) + len(value.encode()) for key, value in entries.items()) > METADATA_BYTES_MOST:
            raise BadInput(
                f"metadata.{field} holds more than {METADATA_BYTES_MOST} bytes", field=f"metadata.{field}", rule="size"
            )
    assert isinstance(manifest, Mapping)  # parse_claim_manifest saw to it
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
