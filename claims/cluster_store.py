"""The store of manifests with a cluster: the API server owns metadata and spec.

Invariants: a write with a stale resourceVersion is refused, unless only our own status was written since; an answer of
the API server is mirrored at once, so that clients read their own writes; after a lost answer the object is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Generic

from django.conf import settings

from access.errors import BadInput, NotFound, Unavailable
from claims.errors import ManifestChanged, ManifestExists
from claims.kinds import Kind, R
from claims.mirror import is_changed, mirror_answer, uid_of, unmirror
from claims.selectors import manifest_as_stored
from claims.store import ManifestDraft
from kube import crds
from kube.client import Cluster
from kube.crds import CustomObject
from kube.errors import (
    AlreadyExists,
    ConflictInCluster,
    Invalid,
    KubeError,
    NotFoundInCluster,
    OutcomeUnknown,
    TemporaryKubeError,
)
from kube.resources import NAMESPACES
from kube.shared import shared_cluster

TIMEOUT_SECONDS = 5.0
ROUNDS = 4
"""Most attempts at a write, where our status is written in between."""


class ClusterStore(Generic[R]):
    """See `claims.store.DatabaseStore`; each method also raises Unavailable, and writes raise BadInput."""

    def __init__(self, kind: Kind[R], cluster: Cluster | None = None) -> None:
        self._kind = kind
        found = cluster or shared_cluster(settings.GPUPLANE_KUBECONFIG)
        if found is None:
            raise Unavailable("no cluster is configured")
        self._cluster = found

    def create(self, *, draft: ManifestDraft, actor: str, now: datetime) -> R:
        """See `claims.store.DatabaseStore`."""
        with self._answers(draft.namespace, draft.name):
            try:
                stored = crds.create(self._cluster, self._kind.resource, **_content(draft), timeout=TIMEOUT_SECONDS)
            except AlreadyExists as error:
                raise ManifestExists(f"there is already a {self._kind.label(draft.namespace, draft.name)}") from error
            except OutcomeUnknown:
                found = self._find(draft.namespace, draft.name)
                if found is None or not self._is_equivalent(found, draft):
                    raise
                stored = found  # created in spite of the lost answer
        return self._mirrored(stored, actor, now)

    def manifest(self, *, namespace: str, name: str) -> dict[str, Any]:
        """See `claims.store.DatabaseStore`. The object is not mirrored, since the watch may have a newer one."""
        with self._answers(namespace, name):
            return manifest_as_stored(self._kind, self._get(namespace, name))

    def replace(self, *, draft: ManifestDraft, actor: str, now: datetime) -> R:
        """See `claims.store.DatabaseStore`."""
        with self._answers(draft.namespace, draft.name):
            for last in range(ROUNDS, 0, -1):
                current = self._get(draft.namespace, draft.name)
                self._check_same(current, draft)
                if (current.spec, current.labels, current.annotations) == (draft.spec, draft.labels, draft.annotations):
                    stored = current
                    break
                try:
                    version = current.metadata.resource_version
                    stored = crds.spec_replace(
                        self._cluster,
                        self._kind.resource,
                        **_content(draft),
                        resource_version=version,
                        timeout=TIMEOUT_SECONDS,
                    )
                    break
                except (ConflictInCluster, OutcomeUnknown):
                    if last == 1:
                        raise
        return self._mirrored(stored, actor, now)

    def delete(self, *, namespace: str, name: str, actor: str, now: datetime) -> R:
        """See `claims.store.DatabaseStore`."""
        with self._answers(namespace, name):
            stored = self._get(namespace, name)
            was = self._mirrored(stored, actor, now)
            crds.delete(
                self._cluster,
                self._kind.resource,
                namespace=namespace,
                name=name,
                uid=stored.metadata.uid,
                timeout=TIMEOUT_SECONDS,
            )
        unmirror(self._kind, namespace=namespace, name=name, uid=stored.metadata.uid, actor=actor, now=now)
        return was

    def _mirrored(self, stored: CustomObject, actor: str, now: datetime) -> R:
        return mirror_answer(self._kind, self._cluster, stored=stored, actor=actor, now=now, timeout=TIMEOUT_SECONDS)

    def _get(self, namespace: str, name: str) -> CustomObject:
        return crds.get(self._cluster, self._kind.resource, namespace=namespace, name=name, timeout=TIMEOUT_SECONDS)

    def _find(self, namespace: str, name: str) -> CustomObject | None:
        try:
            return self._get(namespace, name)
        except NotFoundInCluster:
            return None

    def _is_equivalent(self, stored: CustomObject, draft: ManifestDraft) -> bool:
        """Whether the object equals the draft, with or without the API server's defaults."""
        same = self._kind.parse_spec(stored.spec) == self._kind.parse_spec(draft.spec)
        return same and (stored.labels, stored.annotations) == (draft.labels, draft.annotations)

    def _check_same(self, current: CustomObject, draft: ManifestDraft) -> None:
        """Refuse a write whose preconditions fail. Raises ManifestChanged.

        Our own status changes the resourceVersion too: a version with the same content, apart from the status, passes.
        """
        meta, label = current.metadata, self._kind.label(draft.namespace, draft.name)
        if draft.uid and uid_of(draft.uid) != uid_of(meta.uid):
            raise ManifestChanged(f"{label} was deleted and created again: read it again")
        if not draft.resource_version or draft.resource_version == meta.resource_version:
            return
        rows = self._kind.rows.filter(namespace=draft.namespace, name=draft.name, uid=uid_of(meta.uid))
        row = rows.first()
        if row is None or draft.resource_version not in row.unchanged_versions or is_changed(row, current):
            raise ManifestChanged(
                f"{label} is at resourceVersion {meta.resource_version}, not {draft.resource_version[:64]}: "
                "read it again"
            )

    @contextmanager
    def _answers(self, namespace: str, name: str) -> Iterator[None]:
        """Convert errors of the API server."""
        label = self._kind.label(namespace, name)
        try:
            yield
        except NotFoundInCluster as error:
            if error.details.kind == NAMESPACES.plural:
                raise BadInput(
                    f"the namespace {namespace} does not exist", field="metadata.namespace", rule="namespace-missing"
                ) from error
            if not error.details.kind:
                raise Unavailable(f"the cluster does not know {self._kind.name}s yet") from error
            raise NotFound(f"there is no {label}") from error
        except (ConflictInCluster, AlreadyExists) as error:
            raise ManifestChanged(f"{label} was changed meanwhile: {error.message}") from error
        except Invalid as error:
            cause = next(iter(error.details.causes or ()), None)
            field = cause.field if cause else ""
            raise BadInput(cause.message if cause else error.message, field=field, rule="api-server") from error
        except TemporaryKubeError as error:
            raise Unavailable(f"the API server does not answer: {error.message}") from error
        except KubeError as error:
            raise Unavailable(f"the API server does not let gpuplane write {label}: {error.message}") from error


def _content(draft: ManifestDraft) -> dict[str, Any]:
    """Arguments of `crds.create` and `crds.spec_replace`."""
    return {
        "namespace": draft.namespace,
        "name": draft.name,
        "spec": draft.spec,
        "labels": draft.labels,
        "annotations": draft.annotations,
    }
