"""Mirrors the API server's claims, gangs and queues in rows, so that filter finds them in one query (CLAIM-1).

Called by the watches, by `claims.cluster_store` with each answer of the API server, and by lookups that missed.
Invariants: an older object never overwrites a newer one; no row outlives its object; each new or changed spec is
announced, for pods that were refused without it; a spec that breaks a rule which only we check is stored as Invalid and
refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import structlog
from django.db import IntegrityError, transaction

from audit.queue_wake import wake_queues
from audit.requeue_notify import announce
from claims.choices import Phase
from claims.kinds import Kind, R
from claims.manifest_metadata import ManifestInvalid
from claims.models import ManifestRow
from claims.store import locked_row, record_change
from kube import crds
from kube.client import Cluster
from kube.crds import CustomObject
from kube.errors import KubeError, NotFoundInCluster
from storage.transactions import atomic_retry

ACTOR = "cluster"
VALID = "Valid"
"""The condition for a spec that keeps every rule."""
VERSIONS_KEPT = 16
"""The resourceVersions that are kept of an object whose status alone changes; older ones conflict."""

log = structlog.get_logger(__name__)


def mirror(kind: Kind[R], *, stored: CustomObject, actor: str = ACTOR, now: datetime, fresh: bool = False) -> R:
    """Update the row to the API server's object, and return it. Called by the watch.

    `fresh`: it was just read, so an older version means that the cluster was restored from a backup.
    """
    row, _ = _mirror(kind, stored, actor=actor, now=now, fresh=fresh)
    return row


def mirror_answer(
    kind: Kind[R], cluster: Cluster, *, stored: CustomObject, actor: str = ACTOR, now: datetime, timeout: float
) -> R:
    """The same with what the API server answered to a request. `timeout`: of a further one, in seconds.

    An object that has no row may be deleted already, and the watch may have seen that: no event of it will come. So it
    is read again once the row is there, and the row that is returned may be deleted.
    """
    row, created = _mirror(kind, stored, actor=actor, now=now, fresh=False)
    if created:
        try:
            refresh(kind, cluster, namespace=row.namespace, name=row.name, now=now, timeout=timeout)
        except KubeError as error:
            log.warning("manifests.not_read_again", kind=kind.name, object=str(row), error=str(error))
    return row


@atomic_retry
def mirror_known(kind: Kind[Any], *, stored: CustomObject, now: datetime) -> None:
    """The same if the object has a row; else it is deleted, or the watch will bring it."""
    meta = stored.metadata
    row = locked_row(kind, meta.namespace, meta.name)
    if row is None or row.uid != uid_of(meta.uid) or is_older(meta.resource_version, row.resource_version):
        return
    _update(kind, row, stored, actor=ACTOR, now=now)


def refresh(
    kind: Kind[Any], cluster: Cluster, *, namespace: str, name: str, now: datetime, timeout: float | None = None
) -> None:
    """Read an object from the API server and mirror it. Raises `kube.errors`."""
    try:
        stored = crds.get(cluster, kind.resource, namespace=namespace, name=name, timeout=timeout)
    except NotFoundInCluster as error:
        if not error.details.kind:
            raise  # the kind is unknown, which says nothing about the object
        row = kind.rows.filter(namespace=namespace, name=name).first()
        if row is not None:
            unmirror(kind, namespace=namespace, name=name, uid=str(row.uid), now=now)
    else:
        mirror(kind, stored=stored, now=now, fresh=True)


@atomic_retry
def _mirror(kind: Kind[R], stored: CustomObject, *, actor: str, now: datetime, fresh: bool) -> tuple[R, bool]:
    """The row, and whether it was created."""
    meta = stored.metadata
    row = locked_row(kind, meta.namespace, meta.name)
    if row is not None and not fresh and is_older(meta.resource_version, row.resource_version):
        return row, False
    if row is not None and row.uid != uid_of(meta.uid):
        _end(kind, row, actor=actor, now=now)
        row = None
    if row is None:
        try:
            with transaction.atomic():
                return _create(kind, stored, actor=actor, now=now), True
        except IntegrityError:
            # another process was faster
            row = kind.rows.select_for_update(no_key=True).get(namespace=meta.namespace, name=meta.name)
    return _update(kind, row, stored, actor=actor, now=now), False


@atomic_retry
def unmirror(kind: Kind[Any], *, namespace: str, name: str, uid: str, actor: str = ACTOR, now: datetime) -> bool:
    """Delete the row of a deleted object; False if there is none of that UID. Holders keep their devices."""
    row = locked_row(kind, namespace, name)
    if row is None or row.uid != uid_of(uid):
        return False
    _end(kind, row, actor=actor, now=now)
    return True


def uid_of(uid: str) -> UUID:
    """A UID of the API server as a UUID; other texts are hashed."""
    try:
        return UUID(uid)
    except ValueError:
        return uuid5(NAMESPACE_OID, uid)


def is_changed(row: ManifestRow, stored: CustomObject) -> bool:
    """Whether the object differs from the row, apart from resourceVersion and status."""
    new = (stored.metadata.generation or row.generation, stored.spec, stored.labels, stored.annotations)
    return new != (row.generation, row.spec, row.labels, row.annotations)


def is_older(version: str, than: str) -> bool:
    """Whether a resourceVersion is older than another one."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


def _create(kind: Kind[R], stored: CustomObject, *, actor: str, now: datetime) -> R:
    meta = stored.metadata
    phase, conditions = _judged(kind, stored.spec, [], now)
    row = kind.rows.create(
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
    record_change(row, kind.created, "created", actor=actor, now=now)
    announce()
    return row


def _update(kind: Kind[R], row: R, stored: CustomObject, *, actor: str, now: datetime) -> R:
    meta = stored.metadata
    before = row.spec
    changed = is_changed(row, stored)
    if not changed and (row.resource_version, row.published_status) == (meta.resource_version, stored.status):
        return row
    row.resource_version, row.published_status = meta.resource_version, stored.status
    row.generation = meta.generation or row.generation
    unchanged = [] if changed else [one for one in row.unchanged_versions if one != meta.resource_version]
    row.unchanged_versions = [*unchanged, meta.resource_version][-VERSIONS_KEPT:]
    if changed:
        row.spec, row.labels, row.annotations = stored.spec, stored.labels, stored.annotations
        row.phase, row.conditions = _judged(kind, stored.spec, row.conditions, now)
        row.changed_at = now
    row.save()
    if changed:
        record_change(row, kind.changed, "changed", actor=actor, now=now, before=before)
    if before != stored.spec:
        announce()
    return row


def _end(kind: Kind[R], row: R, *, actor: str, now: datetime) -> None:
    wake_queues()
    record_change(row, kind.deleted, "deleted", actor=actor, now=now)
    row.delete()


def _judged(
    kind: Kind[Any], spec: Mapping[str, Any], before: list[dict[str, Any]], now: datetime
) -> tuple[Phase, list[dict[str, Any]]]:
    """(phase, conditions) of a spec that passed the CRD's schema; `before`: the previous conditions."""
    try:
        kind.parse_spec(spec)
    except ManifestInvalid as error:
        phase, valid = Phase.INVALID, {"status": "False", "reason": "SpecInvalid", "message": error.message}
    else:
        phase, valid = Phase.PENDING, {"status": "True", "reason": "SpecValid", "message": ""}
    since = next(
        (one["lastTransitionTime"] for one in before if one["type"] == VALID and one["status"] == valid["status"]),
        now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return phase, [{"type": VALID, **valid, "lastTransitionTime": since}]
