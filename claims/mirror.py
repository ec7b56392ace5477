"""Mirrors the API server's GpuClaims in rows, so that filter finds them in one query (CLAIM-1).

Called by the claim watch, by `claims.cluster_store` with each answer of the API server, and by lookups that missed.
Invariants: an older object never overwrites a newer one; each new or changed spec is announced, for pods that were
refused without it; a spec that breaks a rule which only we check is stored as Invalid and refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from django.db import IntegrityError, transaction

from audit.choices import EventKind
from audit.requeue_notify import announce
from claims.choices import Phase
from claims.dialects.claim_manifest import ClaimInvalid, parse_claim_spec
from claims.models import GpuClaim
from claims.store import locked_claim, record_change
from kube.crds import CustomObject
from storage.transactions import atomic_retry

ACTOR = "cluster"
VALID = "Valid"
"""The condition for a spec that keeps every rule."""
VERSIONS_KEPT = 16
"""The resourceVersions that are kept of a claim whose status alone changes; older ones conflict."""


@atomic_retry
def claim_mirror(*, stored: CustomObject, actor: str = ACTOR, now: datetime, fresh: bool = False) -> GpuClaim:
    """Update the row to the API server's object, and return it.

    `fresh`: it was just read, so an older version means that the cluster was restored from a backup.
    """
    meta = stored.metadata
    row = locked_claim(meta.namespace, meta.name)
    if row is not None and not fresh and is_older(meta.resource_version, row.resource_version):
        return row
    if row is not None and row.uid != uid_of(meta.uid):
        _end(row, actor=actor, now=now)
        row = None
    if row is None:
        try:
            with transaction.atomic():
                return _create(stored, actor=actor, now=now)
        except IntegrityError:
            # another process was faster
            row = GpuClaim.objects.select_for_update(no_key=True).get(namespace=meta.namespace, name=meta.name)
    return _update(row, stored, actor=actor, now=now)


@atomic_retry
def claim_unmirror(*, namespace: str, name: str, uid: str, actor: str = ACTOR, now: datetime) -> bool:
    """Delete the row of a deleted object; False if there is none of that UID. Holders keep their devices."""
    row = locked_claim(namespace, name)
    if row is None or row.uid != uid_of(uid):
        return False
    _end(row, actor=actor, now=now)
    return True


def uid_of(uid: str) -> UUID:
    """A UID of the API server as a UUID; other texts are hashed."""
    try:
        return UUID(uid)
    except ValueError:
        return uuid5(NAMESPACE_OID, uid)


def is_changed(claim: GpuClaim, stored: CustomObject) -> bool:
    """Whether the object differs from the row, apart from resourceVersion and status."""
    new = (stored.metadata.generation or claim.generation, stored.spec, stored.labels, stored.annotations)
    return new != (claim.generation, claim.spec, claim.labels, claim.annotations)


def is_older(version: str, than: str) -> bool:
    """Whether a resourceVersion is older than another one."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


def _create(stored: CustomObject, *, actor: str, now: datetime) -> GpuClaim:
    meta = stored.metadata
    phase, conditions = _judged(stored.spec, [], now)
    claim = GpuClaim.objects.create(
        namespace=meta.namespace,
        name=meta.name,
        uid=uid_of(meta.uid),
        generation=meta.generation or 1,
        labels=stored.labels,
        annotations=stored.annotations,
        spec=stored.spec,
        phase=phase,
        conditions=conditions,
        resource_version=meta.resource_version,
        unchanged_versions=[meta.resource_version],
        published_status=stored.status,
        created_by=actor,
        created_at=datetime.fromisoformat(meta.creation_timestamp) if meta.creation_timestamp else now,
        changed_at=now,
    )
    record_change(claim, EventKind.CLAIM_CREATED, "created", actor=actor, now=now)
    announce()
    return claim


def _update(claim: GpuClaim, stored: CustomObject, *, actor: str, now: datetime) -> GpuClaim:
    meta = stored.metadata
    before = claim.spec
    changed = is_changed(claim, stored)
    if not changed and (claim.resource_version, claim.published_status) == (meta.resource_version, stored.status):
        return claim
    claim.resource_version, claim.published_status = meta.resource_version, stored.status
    claim.generation = meta.generation or claim.generation
    unchanged = [] if changed else [one for one in claim.unchanged_versions if one != meta.resource_version]
    claim.unchanged_versions = [*unchanged, meta.resource_version][-VERSIONS_KEPT:]
    if changed:
        claim.spec, claim.labels, claim.annotations = stored.spec, stored.labels, stored.annotations
        claim.phase, claim.conditions = _judged(stored.spec, claim.conditions, now)
        claim.changed_at = now
    claim.save()
    if changed:
        record_change(claim, EventKind.CLAIM_CHANGED, "changed", actor=actor, now=now, before=before)
    if before != stored.spec:
        announce()
    return claim


def _end(claim: GpuClaim, *, actor: str, now: datetime) -> None:
    record_change(claim, EventKind.CLAIM_DELETED, "deleted", actor=actor, now=now)
    claim.delete()


def _judged(spec: Mapping[str, Any], before: list[dict[str, Any]], now: datetime) -> tuple[Phase, list[dict[str, Any]]]:
    """(phase, conditions) of a spec that passed the CRD's schema; `before`: the previous conditions."""
    try:
        parse_claim_spec(spec)
    except ClaimInvalid as error:
        phase, valid = Phase.INVALID, {"status": "False", "reason": "SpecInvalid", "message": error.message}
    else:
        phase, valid = Phase.PENDING, {"status": "True", "reason": "SpecValid", "message": ""}
    since = next(
        (one["lastTransitionTime"] for one in before if one["type"] == VALID and one["status"] == valid["status"]),
        now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return phase, [{"type": VALID, **valid, "lastTransitionTime": since}]
