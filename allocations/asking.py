"""From a pod, or a stored request, to what the engine is asked: one way for every verb and every caller.

Called by filter, prioritize, bind and preempt, by REST claims and by explain. Kept true: the settings
are applied here and nowhere else, so the same pod asks the same wherever it is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from claims.admission.confinement import is_confined
from claims.admission.counted import is_counted
from claims.dialects import parse_pod
from claims.dialects.request import DeviceRequest, Refusal, SharePolicy
from claims.lookup import ClaimFinder
from kube.objects import Pod


@dataclass(frozen=True, slots=True)
class Asks:
    """What a pod asks for, and what a hold of it is made of.

    `claim_id`: row of its GpuClaim. `hold_seconds`: how long a hold lasts. `confined`: its containers carry our
    reference (CLAIM-7).
    """

    request: DeviceRequest
    claim_id: int | None
    hold_seconds: int
    confined: bool
    pod_version: str = ""
    """The pod's resourceVersion."""
    priority: int | None = None
    """What the ledger notes for preemption; None: kube-scheduler does not count the pod, so preemption passes it over."""
    rank: int | None = None
    """The pod's priority, counted or not: by it devices that are promised to others are kept from the pod. None: below every pod."""


def pod_asks(pod: Pod) -> Asks | Refusal | None:
    """What the pod asks for; a refusal that says which rule it breaks; None where it asks for no devices."""
    finder = ClaimFinder()
    parsed = parse_pod(pod, find_claim=finder)
    if parsed is None or isinstance(parsed, Refusal):
        return parsed
    return Asks(
        with_settings(parsed),
        finder.claim_id,
        hold_seconds(pod),
        is_confined(pod),
        pod_version=pod.metadata.resource_version,
        priority=noted_priority(pod),
        rank=_rank(pod),
    )


def noted_priority(pod: Pod) -> int | None:
    """The pod's priority where kube-scheduler counts it (`claims.admission.counted`), else None."""
    return _rank(pod) if is_counted(pod) else None


def _rank(pod: Pod) -> int:
    """The pod's priority; Kubernetes' have 32 bits."""
    return max(-(2**31), min(pod.priority, 2**31 - 1))


def with_settings(request: DeviceRequest) -> DeviceRequest:
    """The request as the settings have it."""
    return request.under(SharePolicy(settings.GPUPLANE_SHARE))


def hold_seconds(pod: Pod) -> int:
    """How long a hold lasts: longer where kube-scheduler may wait for volumes or claims before bind (DESIGN §3)."""
    volumes = pod.spec.volumes or ()
    waits = bool(pod.spec.resource_claims) or any(
        volume.persistent_volume_claim is not None or volume.ephemeral is not None for volume in volumes
    )
    return int(settings.GPUPLANE_LONG_HOLD_SECONDS if waits else settings.GPUPLANE_HOLD_SECONDS)
