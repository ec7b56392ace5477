"""Recognises requests and pods that concern gpuplane, also in objects that cannot be decoded.

Invariants: other pods pass untouched, however malformed they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from claims.admission.trust import result_dialect
from claims.dialects.parse import foreign_dialect, is_request_resource
from claims.dialects.registry import REQUEST_ANNOTATIONS
from kube.admission import UNDECODABLE, AdmissionRequest
from kube.bounded import OBJECT_VALUES_MOST, check_values
from kube.keys import CLAIM
from kube.objects import Pod

CREATE: Final = "CREATE"
UPDATE: Final = "UPDATE"

_KUBERNETES: Final = frozenset({"", "default-scheduler"})
_TEXT: Final = re.compile(rb'"([!#-\[\]-~]{1,320})"')


def is_pod_create(request: AdmissionRequest) -> bool:
    """Whether a pod is created."""
    return request.operation == CREATE and request.kind.kind == "Pod" and not request.sub_resource


def is_pod_update(request: AdmissionRequest) -> bool:
    """Whether a pod or a subresource of it is updated."""
    return request.operation == UPDATE and request.kind.kind == "Pod"


def is_for_another(pod: Pod, *, scheduler_name: str) -> bool:
    """Whether the pod names a scheduler other than ours and Kubernetes', in a dialect that such a scheduler serves."""
    named = pod.spec.scheduler_name
    return named != scheduler_name and named not in _KUBERNETES and foreign_dialect(pod) is not None


def is_meant_for_us(pod: Pod, *, scheduler_name: str) -> bool:
    """Whether the pod names our scheduler or a GpuClaim."""
    return pod.spec.scheduler_name == scheduler_name or CLAIM in pod.annotations


def looks_ours(raw: msgspec.Raw) -> bool:
    """Whether an object that is not a valid pod names any of our annotations, labels or resources."""
    try:
        check_values(raw, most=OBJECT_VALUES_MOST)
        decoded = msgspec.json.decode(raw)
    except UNDECODABLE:
        return _names_ours(bytes(raw))
    metadata = _child(decoded, "metadata")
    if any(
        key in REQUEST_ANNOTATIONS or result_dialect(key) is not None
        for part in ("annotations", "labels")
        for key in _child(metadata, part)
    ):
        return True
    spec = _child(decoded, "spec")
    return any(
        is_request_resource(name)
        for container in (*_items(spec, "containers"), *_items(spec, "initContainers"))
        for part in ("limits", "requests")
        for name in _child(_child(container, "resources"), part)
    )


def _names_ours(raw: bytes) -> bool:
    """The same for invalid JSON, by any string in it."""
    texts = {found[1].decode() for found in _TEXT.finditer(raw)}
    return any(
        text in REQUEST_ANNOTATIONS or is_request_resource(text) or result_dialect(text) is not None for text in texts
    )


def _child(value: Any, key: str) -> dict[str, Any]:
    """An object inside an object, or an empty one."""
    child = value.get(key) if isinstance(value, dict) else None
    return child if isinstance(child, dict) else {}


def _items(value: dict[str, Any], key: str) -> Iterator[Any]:
    items = value.get(key)
    yield from items if isinstance(items, list) else ()
