"""Stores of manifests: the database, or with a cluster the API server (`claims.cluster_store`).

Invariants of both: a write with a stale `resource_version` or `uid` raises ManifestChanged; a write without a change
has no effect; `generation` grows exactly when the spec changes; every change has an audit event.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Generic

import msgspec
from django.db import IntegrityError, transaction

from access.errors import NotFound
from audit import services as audit
from audit.choices import EventKind
from claims.choices import Phase
from claims.errors import ManifestChanged, ManifestExists
from claims.kinds import CLAIM, Kind, R, kind_of
from claims.models import ManifestRow
from claims.selectors import manifest_of
from storage.transactions import atomic_retry


class ManifestDraft(msgspec.Struct, frozen=True, kw_only=True):
    """The validated content of a write. `uid` and `resource_version` are preconditions unless empty."""

    namespace: str
    name: str
    spec: dict[str, Any]
    labels: dict[str, str]
    annotations: dict[str, str]
    uid: str = ""
    resource_version: str = ""


class DatabaseStore(Generic[R]):
    """Objects of a kind as rows, without Kubernetes. `actor` is the user's name, for the audit event."""

    def __init__(self, kind: Kind[R]) -> None:
        self._kind = kind

    @atomic_retry
    def create(self, *, draft: ManifestDraft, actor: str, now: datetime) -> R:
        """Create an object. Raises ManifestExists."""
        try:
            with transaction.atomic():
                row = self._kind.rows.create(
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
            raise ManifestExists(f"there is already a {self._kind.label(draft.namespace, draft.name)}") from error
        record_change(row, self._kind.created, "created", actor=actor, now=now)
        return row

    def manifest(self, *, namespace: str, name: str) -> dict[str, Any]:
        """The current manifest, with uid and resourceVersion. Raises NotFound."""
        row = self._kind.rows.filter(namespace=namespace, name=name).first()
        if row is None:
            raise NotFound(f"there is no {self._kind.label(namespace, name)}")
        return manifest_of(row)

    @atomic_retry
    def replace(self, *, draft: ManifestDraft, actor: str, now: datetime) -> R:
        """Replace metadata and spec. Raises NotFound, ManifestChanged."""
        row = self._locked(draft.namespace, draft.name)
        label = f"{self._kind.name} {row}"
        if draft.uid and draft.uid != str(row.uid):
            raise ManifestChanged(f"{label} was deleted and created again: read it again")
        if draft.resource_version and draft.resource_version != row.resource_version:
            raise ManifestChanged(
                f"{label} is at resourceVersion {row.resource_version}, "
                f"not {draft.resource_version[:64]}: read it again"
            )
        before = row.spec
        if (before, row.labels, row.annotations) == (draft.spec, draft.labels, draft.annotations):
            return row
        if before != draft.spec:
            row.generation += 1
            row.spec = draft.spec
            if row.phase == Phase.INVALID:
                row.phase = Phase.PENDING
        row.labels, row.annotations = draft.labels, draft.annotations
        row.resource_version = str(int(row.resource_version or "0") + 1)
        row.changed_at = now
        row.save(
            update_fields=["generation", "spec", "phase", "labels", "annotations", "resource_version", "changed_at"]
        )
        record_change(row, self._kind.changed, "changed", actor=actor, now=now, before=before)
        return row

    @atomic_retry
    def delete(self, *, namespace: str, name: str, actor: str, now: datetime) -> R:
        """Delete an object and return it. Holders keep their devices. Raises NotFound."""
        row = self._locked(namespace, name)
        pk = row.pk
        record_change(row, self._kind.deleted, "deleted", actor=actor, now=now)
        row.delete()
        row.pk = pk
        return row

    def _locked(self, namespace: str, name: str) -> R:
        row = locked_row(self._kind, namespace, name)
        if row is None:
            raise NotFound(f"there is no {self._kind.label(namespace, name)}")
        return row


def locked_row(kind: Kind[R], namespace: str, name: str) -> R | None:
    """The object's row, locked until the end of the transaction."""
    return kind.rows.select_for_update(no_key=True).filter(namespace=namespace, name=name).first()


def record_change(
    row: ManifestRow, event: EventKind, verb: str, *, actor: str, now: datetime, before: Any = None
) -> None:
    """Write the audit event of a change in the current transaction; `before`: the previous spec."""
    data = {"generation": row.generation, "spec": row.spec}
    if before is not None and before != row.spec:
        data["before"] = before
    kind = kind_of(row)
    audit.record(
        kind=event,
        message=f"{kind.name} {row} {verb}",
        actor=actor,
        now=now,
        namespace=row.namespace,
        name=row.name,
        claim=row.name if kind is CLAIM else "",
        data=data,
    )
