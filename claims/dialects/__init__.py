"""Every way a pod may ask for devices, each parsed into one `DeviceRequest`. Pure: no Django, no network, no clock."""

from claims.dialects.gpuclaim import (
    ClaimDevices,
    ClaimInvalid,
    ClaimSpec,
    FindClaim,
    claim_request,
    claim_spec_manifest,
    parse_claim_manifest,
    parse_claim_spec,
    stored_claim,
)
from claims.dialects.parse import asks_for_devices, dialect_of, parse_pod
from claims.dialects.read_back import AdoptedDevice, Adoption, Unreadable, parse_allocated, read_allocation
from claims.dialects.write_back import VisibleDevices, binding_annotations, visible_devices

__all__ = [
    "AdoptedDevice",
    "Adoption",
    "ClaimDevices",
    "ClaimInvalid",
    "ClaimSpec",
    "FindClaim",
    "Unreadable",
    "VisibleDevices",
    "asks_for_devices",
    "binding_annotations",
    "claim_request",
    "claim_spec_manifest",
    "dialect_of",
    "parse_allocated",
    "parse_claim_manifest",
    "parse_claim_spec",
    "parse_pod",
    "read_allocation",
    "stored_claim",
    "visible_devices",
]
