"""Refuses GpuClaims that break a rule, with the field and the rule (CLAIM-1).

Invariants: the metadata of a claim that was stored malformed can still be changed, e.g. to remove its finalizers.
"""

from __future__ import annotations

from typing import Any

import msgspec

from claims.admission.recognise import CREATE, UPDATE
from claims.dialects.claim_manifest import KIND, parse_claim_manifest
from claims.manifest_metadata import ManifestInvalid
from kube.admission import AdmissionRequest, AdmissionResponse, ObjectInvalid, allowed, decode_object, invalid


def validate_claim(request: AdmissionRequest) -> AdmissionResponse:
    """The verdict on a GpuClaim that is created or updated."""
    if request.kind.kind != KIND or request.sub_resource or request.operation not in (CREATE, UPDATE):
        return allowed(request)
    try:
        manifest = decode_object(request.object, object)
        parse_claim_manifest(manifest, generated_name=True)
    except ObjectInvalid as error:
        return invalid(request, f"the GpuClaim is malformed: {error}")
    except ManifestInvalid as error:
        if request.operation == UPDATE and _same_spec(manifest, request.old_object):
            return allowed(request, warnings=[f"{error.message} (rule {error.rule})"])
        return invalid(request, f"{error.message} (rule {error.rule})")
    return allowed(request)


def _same_spec(manifest: object, old_object: msgspec.Raw) -> bool:
    try:
        old: Any = decode_object(old_object, object)
    except ObjectInvalid:
        return False
    return isinstance(manifest, dict) and isinstance(old, dict) and manifest.get("spec") == old.get("spec")
