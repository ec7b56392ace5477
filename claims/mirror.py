"""GpuClaims of the API server in our own rows, so that filter finds them in one query (CLAIM-1).

Called by the claim watch, by `claims.cluster_store` with each answer of the API server, and by a lookup that missed.
Kept true: the API server's object is the truth, and an older one never overwrites a newer; each creation or edit
is announced, for pods that were refused for want of it; what breaks a rule that only we know is kept as
Invalid and refused with its reason, never served by guesswork.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from django.db import IntegrityError, transaction

from access.transactions import atomic_retry
from audit.announce import announce
from audit.choices import Kind
from claims.choices import Phase
from claims.dialects.gpuclaim import ClaimInvalid, parse_claim_spec
from claims.models import GpuClaim
from claims.store import record_change
from kube.crds import CustomObject

ACTOR = "cluster"
VALID = "Valid"
"""The condition that tells whether the spec keeps every rule."""
VERSIONS_KEPT = 16
"""resourceVersions remembered of a claim whose status alone changes; whoever read an older one is told to read again."""


@atomic_retry
def claim_mirror(*, stored: CustomObject, actor: str = ACTOR, now: datetime, fresh: bool = False) -> GpuClaim:
    """Make the row what the API server stores; the row as it then is.

    `fresh`: read a moment ago, so it counts even with an older version: the cluster was set back.
    """
    meta = stored.metadata
    row = _locked(meta.namespace, meta.name)
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
            # mirrored by another process a moment ago
            row = GpuClaim.objects.select_for_update(no_key=True).get(namespace=meta.namespace, name=meta.name)
    return _update(row, stored, actor=actor, now=now)


@atomic_retry
def claim_unmirror(*, namespace: str, name: str, uid: str, actor: str = ACTOR, now: datetime) -> bool:
    """The API server's object of that UID is gone: so is the row. Holders keep their devices."""
    row = _locked(namespace, name)
    if row is None or row.uid != uid_of(uid):
        return False
    _end(row, actor=actor, now=now)
    return True


def uid_of(uid: str) -> UUID:
    """A UID of the API server as our column has it. Any text will do, although they are all UUIDs."""
    try:
        return UUID(uid)
    except ValueError:
        return uuid5(NAMESPACE_OID, uid)


def _locked(namespace: str, name: str) -> GpuClaim | None:
    return GpuClaim.objects.select_for_update(no_key=True).filter(namespace=namespace, name=name).first()


def is_changed(claim: GpuClaim, stored: CustomObject) -> bool:
    """Whether the API server's object says anything else than the row, versions and status aside."""
    meta = stored.metadata
    now = (meta.generation or claim.generation, stored.spec, meta.labels or {}, meta.annotations or {})
    return now != (claim.generation, claim.spec, claim.labels, claim.annotations)


def is_older(version: str, known: str) -> bool:
    """Whether the object was written before the one we know. Versions of one API server are numbers that grow."""
    return version.isdecimal() and known.isdecimal() and int(version) < int(known)


def _create(stored: CustomObject, *, actor: str, now: datetime) -> GpuClaim:
    meta = stored.metadata
    phase, conditions = _judged(stored.spec, [], now)
    claim = GpuClaim.objects.create(
        namespace=meta.namespace,
        name=meta.name,
        uid=uid_of(meta.uid),
        generation=meta.generation or 1,
        labels=meta.labels or {},
        annotations=meta.annotations or {},
        spec=stored.spec,
        phase=phase,
        conditions=conditions,
        resource_version=meta.resource_version,
        unchanged_versions=[meta.resource_version],
        published_status=stored.status,
        created_by=actor,
        created_at=_moment(meta.creation_timestamp) or now,
        changed_at=now,
    )
    record_change(claim, Kind.CLAIM_CREATED, "created", actor=actor, now=now)
    announce()
    return claim


def _update(claim: GpuClaim, stored: CustomObject, *, actor: str, now: datetime) -> GpuClaim:
    meta = stored.metadata
    before = claim.spec
    told = is_changed(claim, stored)
    if not told and (claim.resource_version, claim.published_status) == (meta.resource_version, stored.status):
        return claim
    claim.resource_version, claim.published_status = meta.resource_version, stored.status
    claim.generation = meta.generation or claim.generation
    alike = [] if told else [one for one in claim.unchanged_versions if one != meta.resource_version]
    claim.unchanged_versions = [*alike, meta.resource_version][-VERSIONS_KEPT:]
    if told:
        claim.spec, claim.labels, claim.annotations = stored.spec, meta.labels or {}, meta.annotations or {}
        claim.phase, claim.conditions = _judged(stored.spec, claim.conditions, now)
        claim.changed_at = now
    claim.save()
    if told:
        record_change(claim, Kind.CLAIM_CHANGED, "changed", actor=actor, now=now, before=before)
    if before != stored.spec:
        announce()
    return claim


def _end(claim: GpuClaim, *, actor: str, now: datetime) -> None:
    record_change(claim, Kind.CLAIM_DELETED, "deleted", actor=actor, now=now)
    claim.delete()


def _judged(spec: Mapping[str, Any], known: list[dict[str, Any]], now: datetime) -> tuple[Phase, list[dict[str, Any]]]:
    """(phase, conditions) of a spec that passed the CRD's schema; `known`: the conditions so far."""
    try:
        parse_claim_spec(spec)
    except ClaimInvalid as error:
        phase, told = Phase.INVALID, {"status": "False", "reason": "SpecInvalid", "message": error.message}
    else:
        phase, told = Phase.PENDING, {"status": "True", "reason": "SpecValid", "message": ""}
    since = next(
        (one["lastTransitionTime"] for one in known if one["type"] == VALID and one["status"] == told["status"]),
        now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return phase, [{"type": VALID, **told, "lastTransitionTime": since}]


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
