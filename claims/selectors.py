"""Reads of claims, gangs and queues, and their manifests.

Invariants: objects of namespaces that the actor does not see do not exist for it; the manifest reads back as the same
object, for `kubectl` and REST alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet

from access.actors import Actor
from access.errors import NotFound
from claims.kinds import Kind, R, kind_of
from claims.models import ManifestRow
from kube.crds import CustomObject
from kube.keys import API_VERSION


def manifest_list(kind: Kind[R], *, actor: Actor) -> QuerySet[R]:
    """Objects that the actor sees, by namespace and name; everybody sees cluster-scoped ones."""
    rows = kind.rows.order_by("namespace", "name")
    if actor.namespaces is None or not kind.resource.namespaced:
        return rows
    return rows.filter(namespace__in=actor.namespaces)


def manifest_get(kind: Kind[R], *, namespace: str, name: str, actor: Actor) -> R:
    """One object. Raises NotFound, also for a namespace that the actor does not see."""
    row = None
    if "\x00" not in namespace + name:
        row = manifest_list(kind, actor=actor).filter(namespace=namespace, name=name).first()
    if row is None:
        raise NotFound(f"there is no {kind.label(repr(namespace[:63]), repr(name[:253]))}")
    return row


def manifest_as_stored(kind: Kind[Any], stored: CustomObject) -> dict[str, Any]:
    """The manifest of an object of the API server, without its status."""
    meta = stored.metadata
    metadata = {
        "name": meta.name,
        **({"namespace": meta.namespace} if meta.namespace else {}),
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "labels": stored.labels,
        "annotations": stored.annotations,
    }
    return {"apiVersion": API_VERSION, "kind": kind.name, "metadata": metadata, "spec": stored.spec}


def manifest_of(row: ManifestRow, status: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The object's manifest; `status` of a claim: as of `allocations.selectors.claim_statuses`."""
    metadata: dict[str, Any] = {
        "name": row.name,
        **({"namespace": row.namespace} if row.namespace else {}),
        "uid": str(row.uid),
        "generation": row.generation,
        "resourceVersion": row.resource_version,
        "creationTimestamp": row.created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "labels": row.labels,
        "annotations": row.annotations,
    }
    kind = kind_of(row).name
    manifest: dict[str, Any] = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": row.spec}
    if status is not None:
        manifest["status"] = dict(status)
    return manifest
