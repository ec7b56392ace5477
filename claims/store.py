"""Where a claim's truth is kept: one door, two stores.

Called by `claims.services`. `DatabaseStore` keeps claims in the row itself, for use without
Kubernetes; with a cluster the API server owns metadata and spec, and its store writes through to it
under resourceVersion. Kept true by both: a write under a stale `resource_version` or `uid` raises
ClaimChanged and changes nothing; a write that changes nothing bumps nothing; `generation` grows
exactly when the spec changes; an audit event goes with every change.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Protocol

import msgspec
from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils.module_loading import import_string

from access.errors import NotFound
from access.transactions import atomic_retry
from audit import services as audit
from audit.choices import Kind
from claims.choices import Phase
from claims.errors import ClaimChanged, ClaimExists
from claims.models import GpuClaim
from claims.selectors import claim_manifest


class ClaimDraft(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller wants a claim to be, checked. `uid` and `resource_version` empty: whichever."""

    namespace: str
    name: str
    spec: dict[str, Any]
    labels: dict[str, str]
    annotations: dict[str, str]
    uid: str = ""
    resource_version: str = ""


class ClaimStore(Protocol):
    """Writes of claims. `actor` is the user's name, for the audit event."""

    def create(self, *, draft: ClaimDraft, actor: str, now: datetime) -> GpuClaim:
        """Create it. Raises ClaimExists."""

    def manifest(self, *, namespace: str, name: str) -> dict[str, Any]:
        """The claim as it is at this moment, to rest a write on, with its uid and resourceVersion. Raises NotFound."""

    def replace(self, *, draft: ClaimDraft, actor: str, now: datetime) -> GpuClaim:
        """Make metadata and spec the draft's. Raises NotFound, ClaimChanged."""

    def delete(self, *, namespace: str, name: str, actor: str, now: datetime) -> GpuClaim:
        """Delete it; what it was. Holders keep their devices. Raises NotFound."""


class DatabaseStore:
    """The row is the object."""

    @atomic_retry
    def create(self, *, draft: ClaimDraft, actor: str, now: datetime) -> GpuClaim:
        """Create the row. Raises ClaimExists."""
        try:
            with transaction.atomic():
                claim = GpuClaim.objects.create(
                    namespace=draft.namespace,
                    name=draft.name,
                    uid=uuid.uuid4(),
                    labels=draft.labels,
                    annotations=draft.annotations,
                    spec=draft.spec,
                    phase=Phase.PENDING,
                    resource_version="1",
                    created_by=actor,
                    created_at=now,
                    changed_at=now,
                )
        except IntegrityError as error:
            raise ClaimExists(f"there is already a GpuClaim {draft.name} in {draft.namespace}") from error
        record_change(claim, Kind.CLAIM_CREATED, "created", actor=actor, now=now)
        return claim

    def manifest(self, *, namespace: str, name: str) -> dict[str, Any]:
        """The row's. Raises NotFound."""
        claim = GpuClaim.objects.filter(namespace=namespace, name=name).first()
        if claim is None:
            raise _missing(namespace, name)
        return claim_manifest(claim)

    @atomic_retry
    def replace(self, *, draft: ClaimDraft, actor: str, now: datetime) -> GpuClaim:
        """Change the row, if it is still the one that the draft speaks of. Raises NotFound, ClaimChanged."""
        claim = _locked(draft.namespace, draft.name)
        if draft.uid and draft.uid != str(claim.uid):
            raise ClaimChanged(f"GpuClaim {claim} was deleted and created again: read it again")
        if draft.resource_version and draft.resource_version != claim.resource_version:
            raise ClaimChanged(
                f"GpuClaim {claim} is at resourceVersion {claim.resource_version}, "
                f"not {draft.resource_version[:64]}: read it again"
            )
        before = claim.spec
        if (before, claim.labels, claim.annotations) == (draft.spec, draft.labels, draft.annotations):
            return claim
        if before != draft.spec:
            claim.generation += 1
            claim.spec = draft.spec
            if claim.phase == Phase.INVALID:
                claim.phase = Phase.PENDING
        claim.labels, claim.annotations = draft.labels, draft.annotations
        claim.resource_version = str(int(claim.resource_version or "0") + 1)
        claim.changed_at = now
        claim.save(
            update_fields=["generation", "spec", "phase", "labels", "annotations", "resource_version", "changed_at"]
        )
        record_change(claim, Kind.CLAIM_CHANGED, "changed", actor=actor, now=now, before=before)
        return claim

    @atomic_retry
    def delete(self, *, namespace: str, name: str, actor: str, now: datetime) -> GpuClaim:
        """Delete the row; allocations keep its name. Raises NotFound."""
        claim = _locked(namespace, name)
        pk = claim.pk
        record_change(claim, Kind.CLAIM_DELETED, "deleted", actor=actor, now=now)
        claim.delete()
        claim.pk = pk
        return claim


def claim_store() -> ClaimStore:
    """The store this installation uses."""
    if settings.GPUPLANE_KUBECONFIG:
        store: ClaimStore = import_string("claims.cluster_store.ClusterStore")()
        return store
    return DatabaseStore()


def _locked(namespace: str, name: str) -> GpuClaim:
    claim = GpuClaim.objects.select_for_update(no_key=True).filter(namespace=namespace, name=name).first()
    if claim is None:
        raise _missing(namespace, name)
    return claim


def _missing(namespace: str, name: str) -> NotFound:
    return NotFound(f"there is no GpuClaim {name} in {namespace}")


def record_change(claim: GpuClaim, kind: Kind, verb: str, *, actor: str, now: datetime, before: Any = None) -> None:
    """Write the audit event of a claim's change into the current transaction; `before`: the spec as it was."""
    data = {"generation": claim.generation, "spec": claim.spec}
    if before is not None and before != claim.spec:
        data["before"] = before
    audit.record(
        kind=kind,
        message=f"GpuClaim {claim} {verb}",
        actor=actor,
        now=now,
        namespace=claim.namespace,
        name=claim.name,
        claim=claim.name,
        data=data,
    )
