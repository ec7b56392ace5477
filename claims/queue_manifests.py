"""GpuQueue and GpuGang manifests, and the labels by which pods name them.

Called by `allocations.scenario`. Invariants: what is answered obeys every rule that a manifest can break by itself;
rules between queues are those of `claims.queue_tree`. Unknown fields are named, and passed over as the
API server prunes them.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from claims.manifest_metadata import ManifestInvalid, checked, parse_metadata
from claims.queue_tree import TOP, Amount, Queue, Quota
from kube.keys import (
    BORROW_IDLE_LABEL,
    GANG_LABEL,
    KAI_PREEMPTIBILITY_LABEL,
    KAI_QUEUE_LABEL,
    PREEMPTIBLE_LABEL,
    QUEUE_LABEL,
)
from kube.names import check_label_key, check_namespace, check_subdomain, is_label_value
from kube.objects import ObjectMeta, Pod

AMOUNT_MOST: Final = 1_000_000
MEMBERS_MOST: Final = 100_000
TIMEOUT_MOST: Final = 7 * 24 * 3600
_AT: Final = re.compile(r" - at `\$?\.?(?P<path>.*)`$")

GpuAmount = Annotated[float, msgspec.Meta(ge=0, le=AMOUNT_MOST)]
"""GPUs; may be a fraction."""
Model = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
S = TypeVar("S")


class QuotaFields(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of spec.quotas."""

    models: Annotated[tuple[Model, ...], msgspec.Meta(max_length=64)] = ()
    deserved: GpuAmount = 0
    limit: GpuAmount | None = None
    weight: GpuAmount = 1


class QueueFields(msgspec.Struct, frozen=True, rename="camel"):
    """spec of a GpuQueue."""

    parent: str | None = None
    namespaces: Annotated[tuple[str, ...], msgspec.Meta(max_length=1_000)] = ()
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] = 100
    queueing_strategy: Literal["BestEffortFIFO", "StrictFIFO"] = "BestEffortFIFO"
    quotas: Annotated[tuple[QuotaFields, ...], msgspec.Meta(max_length=64)] = ()


class TopologyFields(msgspec.Struct, frozen=True):
    """spec.topology of a GpuGang: one of the two."""

    required: str | None = None
    preferred: str | None = None


class GangFields(msgspec.Struct, frozen=True, rename="camel"):
    """spec of a GpuGang."""

    min_member: Annotated[int, msgspec.Meta(ge=1, le=MEMBERS_MOST)]
    timeout_seconds: Annotated[int, msgspec.Meta(ge=1, le=TIMEOUT_MOST)] = 600
    topology: TopologyFields | None = None
    on_member_failure: Literal["none", "evictAll"] = "none"


class _Queue(msgspec.Struct, frozen=True, rename="camel"):
    spec: QueueFields = QueueFields()
    metadata: Any = None
    api_version: Literal["gpu.scheduling/v1"] = "gpu.scheduling/v1"
    kind: Literal["GpuQueue"] = "GpuQueue"
    status: Any = None


class _Gang(msgspec.Struct, frozen=True, rename="camel"):
    spec: GangFields
    metadata: Any = None
    api_version: Literal["gpu.scheduling/v1"] = "gpu.scheduling/v1"
    kind: Literal["GpuGang"] = "GpuGang"
    status: Any = None


def parse_queue(manifest: object, *, generated_name: bool = False) -> tuple[ObjectMeta, QueueFields]:
    """Metadata and spec of a decoded GpuQueue. Raises ManifestInvalid."""
    queue = _converted(manifest, _Queue)
    metadata = parse_metadata(_metadata_of(manifest), generated_name=generated_name)
    _check_queue(queue.spec)
    return metadata, queue.spec


def parse_queue_spec(spec: object) -> QueueFields:
    """The spec of a decoded GpuQueue. Raises ManifestInvalid."""
    fields = _converted({"spec": spec}, _Queue).spec
    _check_queue(fields)
    return fields


def _check_queue(spec: QueueFields) -> None:
    if spec.parent:
        checked(check_subdomain, spec.parent, "spec.parent")
    for place, namespace in enumerate(spec.namespaces):
        checked(check_namespace, namespace, f"spec.namespaces[{place}]")


def parse_gang(manifest: object, *, generated_name: bool = False) -> tuple[ObjectMeta, GangFields]:
    """Metadata and spec of a decoded GpuGang. Raises ManifestInvalid."""
    gang = _converted(manifest, _Gang)
    metadata = parse_metadata(_metadata_of(manifest), generated_name=generated_name)
    _check_gang(gang.spec)
    _check_labels(gang.spec)
    return metadata, gang.spec


def parse_gang_spec(spec: object) -> GangFields:
    """The spec of a decoded GpuGang. Raises ManifestInvalid."""
    fields = _converted({"spec": spec}, _Gang).spec
    _check_gang(fields)
    return fields


def _check_gang(spec: GangFields) -> None:
    topology = spec.topology
    if topology is not None and bool(topology.required) == bool(topology.preferred):
        raise ManifestInvalid("spec.topology", "topology", "spec.topology has either required or preferred")


def _check_labels(spec: GangFields) -> None:
    """Refuse a topology by a label that no node can have. A stored gang with one waits, and is no error."""
    if spec.topology is None:
        return
    for field, key in (("required", spec.topology.required), ("preferred", spec.topology.preferred)):
        if key:
            checked(check_label_key, key, f"spec.topology.{field}")


def _metadata_of(manifest: object) -> object:
    return manifest.get("metadata") if isinstance(manifest, Mapping) else None


def unknown_queue_fields(manifest: object) -> list[str]:
    """Paths of fields that a GpuQueue does not have."""
    return list(_unknown(manifest, _Queue, ""))


def unknown_gang_fields(manifest: object) -> list[str]:
    """Paths of fields that a GpuGang does not have."""
    return list(_unknown(manifest, _Gang, ""))


def queue_named_by(pod: Pod) -> str:
    """The queue that the pod's label names, empty without one."""
    return _label(pod, QUEUE_LABEL) or _label(pod, KAI_QUEUE_LABEL)


def gang_named_by(pod: Pod) -> str:
    """The gang that the pod's label names, empty without one."""
    return _label(pod, GANG_LABEL)


def _label(pod: Pod, key: str) -> str:
    """The label's value; empty for one that no API server lets through."""
    value = pod.labels.get(key, "")
    return value if is_label_value(value) else ""


def borrows_idle(pod: Pod) -> bool:
    """Whether the pod takes GPUs whose holders leave them idle."""
    return pod.labels.get(BORROW_IDLE_LABEL) == "true"


def is_preemptible(pod: Pod) -> bool:
    """Whether other workloads may have the pod evicted."""
    stated = pod.labels.get(PREEMPTIBLE_LABEL)
    if stated is not None:
        return stated != "false"
    return pod.labels.get(KAI_PREEMPTIBILITY_LABEL) != "non-preemptible"


def queue_of(name: str, spec: QueueFields) -> Queue:
    """The queue of a manifest."""
    return Queue(
        name,
        parent=spec.parent or TOP,
        namespaces=spec.namespaces,
        priority=spec.priority,
        strict=spec.queueing_strategy == "StrictFIFO",
        quotas=tuple(
            Quota(
                models=quota.models,
                deserved=_exact(quota.deserved),
                limit=None if quota.limit is None else _exact(quota.limit),
                weight=_exact(quota.weight),
            )
            for quota in spec.quotas
        ),
    )


def _exact(amount: float) -> Amount:
    """The amount as it is written; a whole number as an integer."""
    exact = Fraction(str(amount))
    return exact.numerator if exact.denominator == 1 else exact


def _converted(manifest: object, kind: type[S]) -> S:
    try:
        return msgspec.convert(_without_nulls(manifest), kind)
    except msgspec.ValidationError as error:
        place = _AT.search(str(error))
        field = place["path"] if place else ""
        message = f"{field}: {_AT.sub('', str(error))}".removeprefix(": ")
        raise ManifestInvalid(field, "schema", message) from error


def _without_nulls(value: Any) -> Any:
    """Keys of null count as absent."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _unknown(value: object, kind: Any, path: str) -> typing.Iterator[str]:
    """Fields of the value that the struct does not have."""
    if isinstance(value, list):
        for place, part in enumerate(value):
            yield from _unknown(part, kind, f"{path}[{place}]")
    elif isinstance(value, Mapping):
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        for key, part in value.items():
            here = f"{path}.{str(key)[:64]}".removeprefix(".")
            if key not in fields:
                if here.rpartition(".")[0] != "metadata":  # a Kubernetes object's has more fields than are read
                    yield here
            elif (inner := _struct_in(fields[key])) is not None:
                yield from _unknown(part, inner, here)


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that a field's type holds, in a tuple, a union or an annotation."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is not None:
        return next((found for part in typing.get_args(kind) if (found := _struct_in(part)) is not None), None)
    return None
