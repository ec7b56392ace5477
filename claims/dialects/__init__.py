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

__all__ = [
    "ClaimDevices",
    "ClaimInvalid",
    "ClaimSpec",
    "FindClaim",
    "asks_for_devices",
    "claim_request",
    "claim_spec_manifest",
    "dialect_of",
    "parse_claim_manifest",
    "parse_claim_spec",
    "parse_pod",
    "stored_claim",
]
