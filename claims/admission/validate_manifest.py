"""Refuses claims, gangs and queues that break a rule, with the field and the rule (CLAIM-1, QUEUE-1).

Invariants: the metadata of an object that was stored malformed can still be changed, e.g. to remove its finalizers.
Rules between queues are looked up in their mirror, which may lag behind by a moment; the queueing loop leaves out what
passes meanwhile.
"""

from __future__ import annotations

from typing import Any

import msgspec

from access.errors import BadInput, Conflict
from claims.admission.recognise import CREATE, UPDATE
from claims.kinds import QUEUE, Kind
from claims.queues import check_no_children, check_with_others
from kube.admission import (
    AdmissionRequest,
    AdmissionResponse,
    ObjectInvalid,
    allowed,
    decode_object,
    forbidden,
    invalid,
)
from kube.objects import ObjectMeta

DELETE = "DELETE"


class _Named(msgspec.Struct):
    metadata: ObjectMeta


def validate_manifest(kind: Kind[Any], request: AdmissionRequest) -> AdmissionResponse:
    """The verdict on an object of this kind that is created, updated or deleted."""
    if request.kind.kind != kind.name or request.sub_resource:
        return allowed(request)
    if request.operation == DELETE and kind is QUEUE:
        return _deleted(request)
    if request.operation not in (CREATE, UPDATE):
        return allowed(request)
    try:
        manifest = decode_object(request.object, object)
        metadata, _ = kind.parse(manifest, generated_name=True)
        if kind is QUEUE and isinstance(manifest, dict):
            check_with_others(metadata.name, manifest.get("spec") or {})
    except ObjectInvalid as error:
        return invalid(request, f"the {kind.name} is malformed: {error}")
    except BadInput as error:
        if request.operation == UPDATE and _same_spec(manifest, request.old_object):
            return allowed(request, warnings=[f"{error} (rule {error.rule})"])
        return invalid(request, f"{error} (rule {error.rule})")
    return allowed(request)


def _deleted(request: AdmissionRequest) -> AdmissionResponse:
    name = _name_of(request.old_object) or request.name
    try:
        if name:
            check_no_children(name)
    except Conflict as error:
        return forbidden(request, str(error))
    return allowed(request)


def _name_of(old_object: msgspec.Raw) -> str:
    """The name of the object that is deleted. A request to delete a collection names none itself."""
    try:
        return decode_object(old_object, _Named).metadata.name
    except ObjectInvalid:
        return ""


def _same_spec(manifest: object, old_object: msgspec.Raw) -> bool:
    try:
        old: Any = decode_object(old_object, object)
    except ObjectInvalid:
        return False
    return isinstance(manifest, dict) and isinstance(old, dict) and manifest.get("spec") == old.get("spec")
