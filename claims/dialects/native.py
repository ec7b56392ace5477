"""The device plugin's resources: N whole GPUs by `nvidia.com/gpu`, N MIG instances by `nvidia.com/mig-1g.10gb`.

HAMi's pods use them too, with annotations that restrict the GPUs (`claims.dialects.hami_words`). Beside Koordinator's
resources of other types they are part of that dialect (`claims.dialects.koordinator`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from claims.dialects.claim_manifest import FindClaim
from claims.dialects.definition import Candidate, DialectDefinition
from claims.dialects.device_json import koordinator_annotations
from claims.dialects.hami_words import limits_of, with_policies
from claims.dialects.own_keys import sees_uuids
from claims.dialects.refused import Refused
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect
from kube.device_types import GPU, Dimension, mig_type, type_order
from kube.keys import KOORDINATOR_PREFIX, MIG_RESOURCES, NATIVE_GPU

DEVICES_MOST = 1_000
"""More devices of one type than any node has."""


def is_mig_resource(name: str) -> bool:
    """Whether it is the resource of a MIG profile, as NVIDIA's device plugin names it (strategy mixed)."""
    return name.startswith(MIG_RESOURCES) and name != MIG_RESOURCES


def with_native(candidate: Candidate, request: DeviceRequest) -> DeviceRequest:
    """Add what the pod requests by NVIDIA's names, and the policies of its annotations. Raises `Refused`."""
    asks = list(request.asks)
    for name, count in candidate.amounts.items():
        if name != NATIVE_GPU and not is_mig_resource(name):
            continue
        if count > DEVICES_MOST:
            raise Refused("too-many", f"{name} asks for more than {DEVICES_MOST} devices")
        kind = GPU if name == NATIVE_GPU else mig_type(name.removeprefix(MIG_RESOURCES))
        asks.append(DeviceAsk(type=kind, count=count, limits=limits_of(candidate.pod)))
    native = len(asks) > len(request.asks)
    asks.sort(key=lambda ask: type_order(ask.type))
    request = msgspec.structs.replace(request, asks=tuple(asks), uuids=native and sees_uuids(candidate.pod))
    return with_policies(candidate.pod, request) if native else request


def _detect(candidate: Candidate, before: Collection[str]) -> bool:
    """`nvidia.com/gpu` belongs to a dialect before that reads it too; MIG instances belong to this one."""
    gpus = not candidate.types or GPU in candidate.types
    extended = NATIVE_GPU in before
    if NATIVE_GPU in candidate.amounts and gpus and not extended:
        return True
    return (gpus or extended) and any(map(is_mig_resource, candidate.amounts))


def _parse(candidate: Candidate, _find_claim: FindClaim) -> DeviceRequest:
    return with_native(candidate, DeviceRequest(asks=(), dialect=Dialect.NATIVE, key_prefix=KOORDINATOR_PREFIX))


DIALECT: Final = DialectDefinition(
    name=Dialect.NATIVE,
    words=NATIVE_GPU,
    detect=_detect,
    parse=_parse,
    resources={NATIVE_GPU: Dimension.UNITS, MIG_RESOURCES: Dimension.UNITS},
    results=koordinator_annotations,
    exact_amounts=True,
    by_plugin=True,
)
