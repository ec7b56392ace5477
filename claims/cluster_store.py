"""The store of claims with a cluster: the API server owns metadata and spec.

Invariants: a write with a stale resourceVersion is refused, unless only our own status was written since; an answer of
the API server is mirrored at once, so that clients read their own writes; after a lost answer the object is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.conf import settings

from access.errors import BadInput, NotFound, Unavailable
from claims.dialects.claim_manifest import KIND, parse_claim_spec
from claims.errors import ClaimChanged, ClaimExists
from claims.mirror import claim_mirror, claim_unmirror, is_changed, uid_of
from claims.models import GpuClaim
from claims.store import ClaimDraft
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
from kube.keys import API_VERSION
from kube.resources import NAMESPACES
from kube.shared import shared_cluster

TIMEOUT_SECONDS = 5.0
ROUNDS = 4
"""Most attempts at a write, where our status is written in between."""


class ClusterStore:
    """See `claims.store.DatabaseStore`; each method also raises Unavailable, and writes raise BadInput."""

    def __init__(self, cluster: Cluster | None = None) -> None:
        found = cluster or shared_cluster(settings.GPUPLANE_KUBECONFIG)
        if found is None:
            raise Unavailable("no cluster is configured")
        self._cluster = found

    def create(self, *, draft: ClaimDraft, actor: str, now: datetime) -> GpuClaim:
        """See `claims.store.DatabaseStore`."""
        with _answers(draft.namespace, draft.name):
            try:
                stored = crds.create(self._cluster, **_content(draft), timeout=TIMEOUT_SECONDS)
            except AlreadyExists as error:
                raise ClaimExists(f"there is already a GpuClaim {draft.name} in {draft.namespace}") from error
            except OutcomeUnknown:
                found = self._find(draft.namespace, draft.name)
                if found is None or not _is_equivalent(found, draft):
                    raise
                stored = found  # created in spite of the lost answer
        return claim_mirror(stored=stored, actor=actor, now=now)

    def manifest(self, *, namespace: str, name: str) -> dict[str, Any]:
        """See `claims.store.DatabaseStore`. The object is not mirrored, since the watch may have a newer one."""
        with _answers(namespace, name):
            stored = self._get(namespace, name)
        meta = stored.metadata
        metadata = {
            "name": name,
            "namespace": namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "labels": stored.labels,
            "annotations": stored.annotations,
        }
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": stored.spec}

    def replace(self, *, draft: ClaimDraft, actor: str, now: datetime) -> GpuClaim:
        """See `claims.store.DatabaseStore`."""
        with _answers(draft.namespace, draft.name):
            for last in range(ROUNDS, 0, -1):
                current = self._get(draft.namespace, draft.name)
                _check_same(current, draft)
                if (current.spec, current.labels, current.annotations) == (draft.spec, draft.labels, draft.annotations):
                    stored = current
                    break
                try:
                    version = current.metadata.resource_version
                    stored = crds.spec_replace(
                        self._cluster, **_content(draft), resource_version=version, timeout=TIMEOUT_SECONDS
                    )
                    break
                except (ConflictInCluster, OutcomeUnknown):
                    if last == 1:
                        raise
        return claim_mirror(stored=stored, actor=actor, now=now)

    def delete(self, *, namespace: str, name: str, actor: str, now: datetime) -> GpuClaim:
        """See `claims.store.DatabaseStore`."""
        with _answers(namespace, name):
            stored = self._get(namespace, name)
            was = claim_mirror(stored=stored, actor=actor, now=now)
            crds.delete(self._cluster, namespace=namespace, name=name, uid=stored.metadata.uid, timeout=TIMEOUT_SECONDS)
        claim_unmirror(namespace=namespace, name=name, uid=stored.metadata.uid, actor=actor, now=now)
        return was

    def _get(self, namespace: str, name: str) -> CustomObject:
        return crds.get(self._cluster, namespace=namespace, name=name, timeout=TIMEOUT_SECONDS)

    def _find(self, namespace: str, name: str) -> CustomObject | None:
        try:
            return self._get(namespace, name)
        except NotFoundInCluster:
            return None


def _content(draft: ClaimDraft) -> dict[str, Any]:
    """Arguments of `crds.create` and `crds.spec_replace`."""
    return {
        "namespace": draft.namespace,
        "name": draft.name,
        "spec": draft.spec,
        "labels": draft.labels,
        "annotations": draft.annotations,
    }


def _is_equivalent(stored: CustomObject, draft: ClaimDraft) -> bool:
    """Whether the object equals the draft, with or without the API server's defaults."""
    same = parse_claim_spec(stored.spec) == parse_claim_spec(draft.spec)
    return same and (stored.labels, stored.annotations) == (draft.labels, draft.annotations)


def _check_same(current: CustomObject, draft: ClaimDraft) -> None:
    """Refuse a write whose preconditions fail. Raises ClaimChanged.

    Our own status changes the resourceVersion too: a version with the same content, apart from the status, passes.
    """
    meta = current.metadata
    if draft.uid and uid_of(draft.uid) != uid_of(meta.uid):
        raise ClaimChanged(f"GpuClaim {draft.namespace}/{draft.name} was deleted and created again: read it again")
    if not draft.resource_version or draft.resource_version == meta.resource_version:
        return
    row = GpuClaim.objects.filter(namespace=draft.namespace, name=draft.name, uid=uid_of(meta.uid)).first()
    if row is None or draft.resource_version not in row.unchanged_versions or is_changed(row, current):
        raise ClaimChanged(
            f"GpuClaim {draft.namespace}/{draft.name} is at resourceVersion {meta.resource_version}, "
            f"not {draft.resource_version[:64]}: read it again"
        )


@contextmanager
def _answers(namespace: str, name: str) -> Iterator[None]:
    """Convert errors of the API server."""
    try:
        yield
    except NotFoundInCluster as error:
        if error.details.kind == NAMESPACES.plural:
            raise BadInput(
                f"the namespace {namespace} does not exist", field="metadata.namespace", rule="namespace-missing"
            ) from error
        if not error.details.kind:
            raise Unavailable("the cluster does not know GpuClaims yet") from error
        raise NotFound(f"there is no GpuClaim {name} in {namespace}") from error
    except (ConflictInCluster, AlreadyExists) as error:
        raise ClaimChanged(f"GpuClaim {namespace}/{name} was changed meanwhile: {error.message}") from error
    except Invalid as error:
        cause = next(iter(error.details.causes or ()), None)
        field = cause.field if cause else ""
        raise BadInput(cause.message if cause else error.message, field=field, rule="api-server") from error
    except TemporaryKubeError as error:
        raise Unavailable(f"the API server does not answer: {error.message}") from error
    except KubeError as error:
        raise Unavailable(f"the API server does not let gpuplane write claims: {error.message}") from error
