"""Stores of claims: the database, or with a cluster the API server (`claims.cluster_store`).

Invariants of both: a write with a stale `resource_version` or `uid` raises ClaimChanged; a write without a change has
no effect; `generation` grows exactly when the spec changes; every change has an audit event.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import msgspec
from django.db import IntegrityError, transaction

from access.errors import NotFound
from audit import services as audit
from audit.choices import EventKind
from claims.choices import Phase
from claims.errors import ClaimChanged, ClaimExists
from claims.models import GpuClaim
from claims.selectors import claim_manifest
from storage.transactions import atomic_retry


class ClaimDraft(msgspec.Struct, frozen=True, kw_only=True):
    """The validated content of a write. `uid` and `resource_version` are preconditions unless empty."""

    namespace: str
    name: str
    spec: dict[str, Any]
    labels: dict[str, str]
    annotations: dict[str, str]
    uid: str = ""
    resource_version: str = ""


class DatabaseStore:
    """Claims as rows, without Kubernetes. `actor` is the user's name, for the audit event."""

    @atomic_retry
    def create(self, *, draft: ClaimDraft, actor: str, now: datetime) -> GpuClaim:
        """Create a claim. Raises ClaimExists."""
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
        record_change(claim, EventKind.CLAIM_CREATED, "created", actor=actor, now=now)
        return claim

    def manifest(self, *, namespace: str, name: str) -> dict[str, Any]:
        """The current manifest, with uid and resourceVersion. Raises NotFound."""
        claim = GpuClaim.objects.filter(namespace=namespace, name=name).first()
        if claim is None:
            raise NotFound(f"there is no GpuClaim {name} in {namespace}")
        return claim_manifest(claim)

    @atomic_retry
    def replace(self, *, draft: ClaimDraft, actor: str, now: datetime) -> GpuClaim:
        """Replace metadata and spec. Raises NotFound, ClaimChanged."""
        claim = self._locked(draft.namespace, draft.name)
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
        record_change(claim, EventKind.CLAIM_CHANGED, "changed", actor=actor, now=now, before=before)
        return claim

    @atomic_retry
    def delete(self, *, namespace: str, name: str, actor: str, now: datetime) -> GpuClaim:
        """Delete a claim and return it. Holders keep their devices. Raises NotFound."""
        claim = self._locked(namespace, name)
        pk = claim.pk
        record_change(claim, EventKind.CLAIM_DELETED, "deleted", actor=actor, now=now)
        claim.delete()
        claim.pk = pk
        return claim

    @staticmethod
    def _locked(namespace: str, name: str) -> GpuClaim:
        claim = locked_claim(namespace, name)
        if claim is None:
            raise NotFound(f"there is no GpuClaim {name} in {namespace}")
        return claim


def locked_claim(namespace: str, name: str) -> GpuClaim | None:
    """The claim's row, locked until the end of the transaction."""
    return GpuClaim.objects.select_for_update(no_key=True).filter(namespace=namespace, name=name).first()


def record_change(
    claim: GpuClaim, kind: EventKind, verb: str, *, actor: str, now: datetime, before: Any = None
) -> None:
    """Write the audit event of a change in the current transaction; `before`: the previous spec."""
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
