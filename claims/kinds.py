"""The kinds of manifests that gpuplane owns: one entry has all that stores, mirrors, watches and REST need.

Invariants: what an entry's `parse` lets through obeys every rule that a manifest can break by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from django.db.models import QuerySet

from audit.choices import EventKind
from claims.dialects.claim_manifest import parse_claim_manifest, parse_claim_spec
from claims.manifest_metadata import ManifestInvalid
from claims.models import GpuClaim, GpuGang, GpuQueue, ManifestRow
from claims.queue_manifests import (
    parse_gang,
    parse_gang_spec,
    parse_queue,
    parse_queue_spec,
    unknown_gang_fields,
    unknown_queue_fields,
)
from kube.objects import ObjectMeta
from kube.resources import GPU_CLAIMS, GPU_GANGS, GPU_QUEUES, Resource

R = TypeVar("R", bound=ManifestRow)


class ParseManifest(Protocol):
    """Metadata and spec of a decoded manifest. Raises ManifestInvalid."""

    def __call__(self, manifest: object, *, generated_name: bool = False) -> tuple[ObjectMeta, Any]:
        """`generated_name`: `metadata.generateName` may replace the name."""


@dataclass(frozen=True)
class Kind(Generic[R]):
    """A kind of manifest. `parse` refuses unknown fields, which the API server would prune; `parse_spec` passes them
    over where the manifest's reader does.
    """

    model: type[R]
    resource: Resource
    parse: ParseManifest
    parse_spec: Callable[[object], object]
    created: EventKind
    changed: EventKind
    deleted: EventKind

    @property
    def name(self) -> str:
        """`GpuClaim`."""
        return self.resource.kind

    @property
    def rows(self) -> QuerySet[R]:
        """All objects."""
        return self.model._default_manager.all()  # noqa: SLF001 - the public name is not known of a type variable

    def label(self, namespace: str, name: str) -> str:
        """`GpuClaim train in team-a`, for messages."""
        return f"{self.name} {name} in {namespace}" if self.resource.namespaced else f"{self.name} {name}"


def _without_unknown(parse: ParseManifest, unknown: Callable[[object], list[str]], kind: str) -> ParseManifest:
    def parsed(manifest: object, *, generated_name: bool = False) -> tuple[ObjectMeta, Any]:
        for field in unknown(manifest):
            raise ManifestInvalid(field, "unknown-field", f"{field} is not a field of {kind}")
        return parse(manifest, generated_name=generated_name)

    return parsed


CLAIM: Final = Kind(
    GpuClaim,
    GPU_CLAIMS,
    parse_claim_manifest,
    parse_claim_spec,
    EventKind.CLAIM_CREATED,
    EventKind.CLAIM_CHANGED,
    EventKind.CLAIM_DELETED,
)
GANG: Final = Kind(
    GpuGang,
    GPU_GANGS,
    _without_unknown(parse_gang, unknown_gang_fields, GPU_GANGS.kind),
    parse_gang_spec,
    EventKind.GANG_CREATED,
    EventKind.GANG_CHANGED,
    EventKind.GANG_DELETED,
)
QUEUE: Final = Kind(
    GpuQueue,
    GPU_QUEUES,
    _without_unknown(parse_queue, unknown_queue_fields, GPU_QUEUES.kind),
    parse_queue_spec,
    EventKind.QUEUE_CREATED,
    EventKind.QUEUE_CHANGED,
    EventKind.QUEUE_DELETED,
)
KINDS: Final[tuple[Kind[Any], ...]] = (CLAIM, GANG, QUEUE)


def kind_of(row: ManifestRow) -> Kind[Any]:
    """The kind of a row."""
    return next(kind for kind in KINDS if isinstance(row, kind.model))
