"""Pods that name a GpuClaim by annotation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from claims.dialects.claim_manifest import DEFAULT_NAMESPACE, ClaimDevices, ClaimSpec, FindClaim, mig_profile
from claims.dialects.definition import Candidate, DialectDefinition
from claims.dialects.own_keys import sees_uuids
from claims.dialects.refused import Refused, annotation_field, refused_annotation
from claims.dialects.request import CORE_WHOLE, DeviceAsk, DeviceRequest, Dialect, Refusal
from kube.device_types import mig_type
from kube.keys import CLAIM
from kube.names import InvalidName, check_subdomain

_FIELD: Final = annotation_field(CLAIM)


def claim_request(spec: ClaimSpec, *, name: str = "", dialect: Dialect = Dialect.GPUCLAIM) -> DeviceRequest:
    """The request of the claim `name`; `dialect` is REST for claims without pods."""
    return DeviceRequest(
        asks=(_ask(spec.devices),),
        policy=spec.devices.policy,
        policy_strict=spec.devices.policy_strict,
        dialect=dialect,
        claim=name,
        ttl_seconds=spec.ttl_seconds,
    )


def check_claim_name(value: str) -> str:
    """The claim's name in the annotation. Raises `Refused`."""
    if "/" in value:
        raise refused_annotation(
            "claim-name",
            CLAIM,
            "names a claim of another namespace; write only the name of a GpuClaim in the namespace of the pod",
        )
    try:
        return check_subdomain(value, what=f"annotation {CLAIM}")
    except InvalidName as error:
        raise Refused("claim-name", str(error), field=_FIELD) from error


def _ask(devices: ClaimDevices) -> DeviceAsk:
    """Devices are whole without amounts, or with core 100 and ratio 100; MIG models request MIG instances."""
    profile = mig_profile(devices.model)
    if profile:
        return DeviceAsk(type=mig_type(profile), count=devices.count, models=devices.model)
    whole = devices.core is None and devices.memory_bytes is None and devices.memory_ratio is None
    if whole or (devices.core == CORE_WHOLE and devices.memory_ratio == CORE_WHOLE):
        return DeviceAsk(type=devices.type, count=devices.count, models=devices.model)
    return DeviceAsk(
        type=devices.type,
        count=devices.count,
        core_percent=devices.core or 0,
        memory_bytes=devices.memory_bytes,
        memory_ratio=devices.memory_ratio,
        models=devices.model,
    )


def _detect(candidate: Candidate, _before: Collection[str]) -> bool:
    return CLAIM in candidate.pod.annotations


def _check(candidate: Candidate) -> str:
    return check_claim_name(candidate.pod.annotations[CLAIM])


def _parse(candidate: Candidate, find_claim: FindClaim) -> DeviceRequest:
    pod, name = candidate.pod, _check(candidate)
    found = find_claim(pod.metadata.namespace or DEFAULT_NAMESPACE, name)
    if found is None:
        raise Refused("claim-missing", f"GpuClaim {name} does not exist in the namespace of the pod", field=_FIELD)
    if isinstance(found, Refusal):
        raise Refused(found.rule, found.reason, field=found.field)
    return msgspec.structs.replace(claim_request(found, name=name), uuids=sees_uuids(pod))


DIALECT: Final = DialectDefinition(
    name=Dialect.GPUCLAIM,
    words=f"annotation {CLAIM}",
    detect=_detect,
    check=_check,
    parse=_parse,
    annotations=frozenset({CLAIM}),
    renumbers=False,  # `DeviceRequest.uuids` says it: pods that an earlier version admitted have no such variable
)
