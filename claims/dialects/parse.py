"""Parses a pod of any dialect into a `DeviceRequest`.

Invariants: a pod that uses two dialects is refused; no pod, however malformed, raises. `nvidia.com/gpu` beside
Koordinator's RDMA or FPGA is one dialect (device types may be combined); a GpuClaim beside any resource is two.
"""

from __future__ import annotations

import msgspec

from claims.dialects.amounts import asks_any, pod_amounts
from claims.dialects.claim_manifest import FindClaim
from claims.dialects.definition import Candidate
from claims.dialects.ignored import ignored_by
from claims.dialects.joint import joint_of
from claims.dialects.native import is_mig_resource
from claims.dialects.own_keys import container_key, isolation_of
from claims.dialects.read_running import asks_for_shared_gpus
from claims.dialects.refused import Refused
from claims.dialects.registry import (
    BY_CONTAINER,
    BY_NAME,
    BY_PLUGIN,
    REQUEST_ANNOTATIONS,
    REQUEST_RESOURCES,
    detected,
    only_dialect,
)
from claims.dialects.request import DeviceRequest, Parsed, Refusal
from kube.keys import VISIBLE_DEVICES
from kube.objects import Pod


def asks_for_devices(pod: Pod) -> bool:
    """Whether the pod requests devices in any dialect. Cheap; true also for malformed requests."""
    return not REQUEST_ANNOTATIONS.isdisjoint(pod.annotations) or asks_any(pod, REQUEST_RESOURCES)


def may_run_with_devices(pod: Pod) -> bool:
    """Whether the pod may have devices where it runs: as `asks_for_devices`, or GPUs that a device plugin shares."""
    return asks_for_devices(pod) or asks_for_shared_gpus(pod)


def asks_device_plugin(pod: Pod) -> bool:
    """Whether a device plugin chooses the pod's GPUs where gpuplane does not place it."""
    return dialect_of(pod) in BY_PLUGIN or asks_for_shared_gpus(pod)


def is_request_resource(name: str) -> bool:
    """Whether a pod with this resource requests devices in any dialect."""
    return name in REQUEST_RESOURCES or is_mig_resource(name)


def foreign_dialect(pod: Pod) -> str | None:
    """The pod's dialect if it has a scheduler of its own (`hami`, `kai`), else None."""
    try:
        found = detected(_candidate(pod))
    except Refused:
        return None
    return found[0].name if len(found) == 1 and found[0].own_scheduler else None


def parse_pod(pod: Pod, *, find_claim: FindClaim) -> Parsed:
    """The pod's request, a refusal, or None for a pod that requests no devices. Raises what `find_claim` raises."""
    try:
        candidate = _candidate(pod)
        if not candidate.amounts and REQUEST_ANNOTATIONS.isdisjoint(pod.annotations):
            return None
        dialect = only_dialect(candidate)
        if dialect is None:
            return None
        request = dialect.parse(candidate, find_claim)
        joint, ignored, isolation = joint_of(pod, request.asks), ignored_by(pod), isolation_of(pod)
        if joint is None and not ignored and not isolation:
            return request
        return msgspec.structs.replace(request, joint=joint, ignored=ignored, isolation=isolation)
    except Refused as refused:
        return refused.refusal


def dialect_of(pod: Pod) -> str | Refusal | None:
    """The pod's dialect; a refusal for two dialects, malformed amounts or names. Other rules are not checked."""
    try:
        candidate = _candidate(pod)
        dialect = only_dialect(candidate)
        if dialect is not None and dialect.check is not None:
            dialect.check(candidate)
    except Refused as refused:
        return refused.refusal
    return dialect.name if dialect is not None else None


def may_leave_to_kubelet(pod: Pod) -> bool:
    """Whether the pod requests any GPUs by `nvidia.com/gpu` and no other devices, which a kubelet can serve."""
    request = parse_pod(pod, find_claim=no_claim)
    return isinstance(request, DeviceRequest) and request.whole_native


def containers_apart(pod: Pod, dialect: str) -> frozenset[str]:
    """Names of the containers that see only their own devices: those of a dialect that plans each, if several
    request.
    """
    if dialect not in BY_CONTAINER:
        return frozenset()
    try:
        asks = BY_NAME[dialect].parse(_candidate(pod), no_claim).asks
    except Refused:
        return frozenset()
    return frozenset(ask.container for ask in asks if len(asks) > 1 and container_key(ask.container) != VISIBLE_DEVICES)


def containers_without_devices(pod: Pod, dialect: str) -> frozenset[str]:
    """Names of the containers that see none of the pod's devices."""
    return BY_NAME[dialect].without_devices(pod)


def _candidate(pod: Pod) -> Candidate:
    """Raises `Refused` for malformed amounts."""
    return Candidate(pod, pod_amounts(pod, REQUEST_RESOURCES))


def no_claim(_namespace: str, _name: str) -> None:
    """Finds no claim."""
