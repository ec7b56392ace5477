"""Writes of claims, gangs and queues by manifest.

Invariants: only operators of the namespace's team and admins write, queues only admins; nothing that breaks a rule of
its kind reaches the store (`claims.store`).
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
from claims.dialects.claim_manifest import DEFAULT_NAMESPACE
from claims.errors import ManifestChanged
from claims.kinds import QUEUE, Kind, R
from claims.queues import check_no_children, check_with_others
from claims.store import DatabaseStore, ManifestDraft
from kube.names import InvalidName, check_namespace, check_subdomain

PATCH_AGAIN = 3
"""Retries of a patch without a resourceVersion after somebody else wrote in between."""
METADATA_BYTES_MOST = 262_144
"""Kubernetes' own limit for annotations."""

_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


def manifest_create(kind: Kind[R], *, manifest: object, actor: Actor, now: datetime) -> R:
    """Create an object from its manifest. Raises BadInput, NotAllowed, ManifestExists, Unavailable."""
    draft = _draft(kind, manifest, generated_name=True)
    _require_write(kind, draft.namespace, actor)
    return _store(kind).create(draft=draft, actor=actor.name, now=now)


def manifest_replace(kind: Kind[R], *, namespace: str, name: str, manifest: object, actor: Actor, now: datetime) -> R:
    """Replace the object by the manifest, whose metadata.resourceVersion is a precondition.

    Raises BadInput, NotAllowed, NotFound, ManifestChanged, Unavailable.
    """
    _require_seen(kind, namespace, name, actor)
    _require_write(kind, namespace, actor)
    draft = _draft(kind, manifest, namespace=namespace, name=name)
    return _store(kind).replace(draft=draft, actor=actor.name, now=now)


def manifest_patch(kind: Kind[R], *, namespace: str, name: str, patch: object, actor: Actor, now: datetime) -> R:
    """Apply a JSON merge patch (RFC 7386) to the manifest. Raises as `manifest_replace` does.

    A patch without a resourceVersion is applied to the current object, and again if somebody writes in between.
    """
    if not isinstance(patch, Mapping):
        raise BadInput("a merge patch must be an object", rule="type")
    _require_seen(kind, namespace, name, actor)
    _require_write(kind, namespace, actor)

    metadata = patch.get("metadata")
    versioned = isinstance(metadata, Mapping) and bool(metadata.get("resourceVersion"))

    def applied() -> R:
        base = _store(kind).manifest(namespace=namespace, name=name)
        manifest = merged(base, patch)
        if not versioned and isinstance(manifest.get("metadata", {}), Mapping):
            # the write is conditional on what was read, even if the patch removes these
            stated = manifest.get("metadata", {})
            rests = {key: stated.get(key) or base["metadata"][key] for key in ("uid", "resourceVersion")}
            manifest["metadata"] = {**stated, **rests}
        return manifest_replace(kind, namespace=namespace, name=name, manifest=manifest, actor=actor, now=now)

    for _ in range(0 if versioned else PATCH_AGAIN):
        with suppress(ManifestChanged):
            return applied()
    return applied()


def manifest_delete(kind: Kind[R], *, namespace: str, name: str, actor: Actor, now: datetime) -> R:
    """Delete the object; holders keep their devices. Raises NotAllowed, NotFound, Unavailable, and Conflict for
    a queue with others below it.
    """
    _require_seen(kind, namespace, name, actor)
    _require_write(kind, namespace, actor)
    if kind is QUEUE:
        check_no_children(name)
    return _store(kind).delete(namespace=namespace, name=name, actor=actor.name, now=now)


def _store(kind: Kind[R]) -> DatabaseStore[R] | ClusterStore[R]:
    return ClusterStore(kind) if settings.GPUPLANE_KUBECONFIG else DatabaseStore(kind)


def _require_write(kind: Kind[Any], namespace: str, actor: Actor) -> None:
    """Operators write in namespaces of their teams, admins everywhere."""
    if kind.resource.namespaced:
        actor.require_write(namespace)
    else:
        actor.require_admin()


def _require_seen(kind: Kind[Any], namespace: str, name: str, actor: Actor) -> None:
    if kind.resource.namespaced:
        require_seen(namespace, name, actor=actor)


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


def _draft(
    kind: Kind[Any], manifest: object, *, namespace: str = "", name: str = "", generated_name: bool = False
) -> ManifestDraft:
    """The validated manifest, with the names of the URL. Raises BadInput."""
    metadata, _ = kind.parse(manifest, generated_name=generated_name)
    if metadata.namespace and not kind.resource.namespaced:
        raise BadInput(f"a {kind.name} has no namespace", field="metadata.namespace", rule="scope")
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
    assert isinstance(manifest, Mapping)  # by `parse`
    draft = ManifestDraft(
        namespace=(metadata.namespace or namespace or DEFAULT_NAMESPACE) if kind.resource.namespaced else "",
        name=metadata.name or _generated(metadata.generate_name),
        spec=deepcopy(dict(manifest.get("spec") or {})),
        labels=labels,
        annotations=annotations,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
    )
    if kind is QUEUE:
        check_with_others(draft.name, draft.spec)
    return draft


def _generated(prefix: str) -> str:
    letters = string.digits if not prefix else _SUFFIX_LETTERS
    return prefix + "".join(secrets.choice(letters) for _ in range(5))
