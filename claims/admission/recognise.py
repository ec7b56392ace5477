"""Which requests are about pods that concern us, and whether an object that cannot be decoded would.

Called by the verdicts. Kept true: other people's pods pass untouched, however odd they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from claims.admission.trust import result_dialect
from claims.dialects.parse import foreign_dialect, is_asking_annotation, is_asking_resource
from kube.admission import UNDECODABLE, AdmissionRequest
from kube.bounded import OBJECT_VALUES_MOST, check_values
from kube.keys import CLAIM, SCHEDULER_NAME
from kube.objects import Pod

CREATE: Final = "CREATE"
UPDATE: Final = "UPDATE"

_KUBERNETES: Final = frozenset({"", "default-scheduler"})
_TEXT: Final = re.compile(rb'"([!#-\[\]-~]{1,320})"')


def is_pod_create(request: AdmissionRequest) -> bool:
    """A pod is being created."""
    return request.operation == CREATE and request.kind.kind == "Pod" and not request.sub_resource


def is_pod_update(request: AdmissionRequest) -> bool:
    """A pod is being changed, through whichever subresource."""
    return request.operation == UPDATE and request.kind.kind == "Pod"


def is_for_another(pod: Pod, *, scheduler_name: str = SCHEDULER_NAME) -> bool:
    """Whether the pod names another scheduler than ours and Kubernetes' own, and asks in a dialect that such a scheduler understands too."""
    named = pod.spec.scheduler_name
    return named != scheduler_name and named not in _KUBERNETES and foreign_dialect(pod) is not None


def is_meant_for_us(pod: Pod, *, scheduler_name: str = SCHEDULER_NAME) -> bool:
    """Whether the pod names our scheduler, or asks in a way that nobody else understands."""
    return pod.spec.scheduler_name == scheduler_name or CLAIM in pod.annotations


def looks_ours(raw: msgspec.Raw) -> bool:
    """Whether an object that is no proper pod names any of our annotations, labels or resources."""
    try:
        check_values(raw, most=OBJECT_VALUES_MOST)
        decoded = msgspec.json.decode(raw)
    except UNDECODABLE:
        return _names_ours(bytes(raw))
    metadata = _child(decoded, "metadata")
    if any(
        is_asking_annotation(key) or result_dialect(key) is not None
        for part in ("annotations", "labels")
        for key in _child(metadata, part)
    ):
        return True
    spec = _child(decoded, "spec")
    return any(
        is_asking_resource(name)
        for container in (*_items(spec, "containers"), *_items(spec, "initContainers"))
        for part in ("limits", "requests")
        for name in _child(_child(container, "resources"), part)
    )


def _names_ours(raw: bytes) -> bool:
    """The same of an object that cannot be read at all (a number beyond any, text that is not UTF-8): by any text in it."""
    texts = {found[1].decode() for found in _TEXT.finditer(raw)}
    return any(
        is_asking_annotation(text) or is_asking_resource(text) or result_dialect(text) is not None for text in texts
    )


def _child(value: Any, key: str) -> dict[str, Any]:
    """An object inside an object, empty where there is none."""
    child = value.get(key) if isinstance(value, dict) else None
    return child if isinstance(child, dict) else {}


def _items(value: dict[str, Any], key: str) -> Iterator[Any]:
    items = value.get(key)
    yield from items if isinstance(items, list) else ()
