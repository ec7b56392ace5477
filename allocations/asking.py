"""From a pod, or a stored request, to what the engine is asked: one way for every verb and every caller.

Called by filter, prioritize, bind and preempt, by REST claims and by explain. Kept true: the settings
are applied here and nowhere else, so the same pod asks the same wherever it is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from allocations.attempts import UNKNOWN, Attempt, attempt_of
from claims.admission.confinement import is_confined
from claims.admission.counted import is_counted
from claims.dialects import parse_pod
from claims.dialects.request import DeviceRequest, Refusal, SharePolicy
from claims.lookup import ClaimFinder
from kube.objects import Pod, Volume


@dataclass(frozen=True, slots=True)
class Awaited:
    """Names of PersistentVolumeClaims and ResourceClaims of a namespace; empty for one that has none yet."""

    namespace: str
    volume_claims: tuple[str, ...] = ()
    resource_claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asks:
    """What a pod asks for, and what a hold of it is made of.

    `claim_id`: row of its GpuClaim. `hold_seconds`: how long a hold lasts where kube-scheduler has nothing to wait for
    between filter and bind. `confined`: its containers carry our reference (CLAIM-7).
    """

    request: DeviceRequest
    claim_id: int | None
    hold_seconds: int
    confined: bool
    attempt: Attempt = UNKNOWN
    """The scheduler's, with the pod's resourceVersion."""
    priority: int | None = None
    """What the ledger notes for preemption; None: kube-scheduler does not count the pod, so preemption passes it over."""
    rank: int | None = None
    """The pod's priority, counted or not: by it devices that are promised to others are kept from the pod. None: below every pod."""
    awaited: Awaited | None = None
    """What kube-scheduler may wait for; whether it has to is known at filter (`allocations.unbound`)."""


def pod_asks(pod: Pod) -> Asks | Refusal | None:
    """What the pod asks for; a refusal that says which rule it breaks; None where it asks for no devices."""
    finder = ClaimFinder()
    parsed = parse_pod(pod, find_claim=finder)
    if parsed is None or isinstance(parsed, Refusal):
        return parsed
    return Asks(
        with_settings(parsed),
        finder.claim_id,
        settings.GPUPLANE_HOLD_SECONDS,
        is_confined(pod),
        attempt_of(pod),
        priority=noted_priority(pod),
        rank=_rank(pod),
        awaited=awaited_by(pod),
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


def awaited_by(pod: Pod) -> Awaited | None:
    """The volume and resource claims that the pod names; None where there are none."""
    volumes, claims = pod.spec.volumes or (), pod.spec.resource_claims or ()
    if not claims and not any(one.persistent_volume_claim is not None or one.ephemeral is not None for one in volumes):
        return None
    named = [_volume_claim(pod, volume) for volume in volumes]
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or ()}
    return Awaited(
        namespace=pod.metadata.namespace,
        volume_claims=tuple(sorted({name for name in named if name is not None})),
        resource_claims=tuple(
            sorted({str(claim.get("resourceClaimName") or made.get(str(claim.get("name"))) or "") for claim in claims})
        ),
    )


def _volume_claim(pod: Pod, volume: Volume) -> str | None:
    """The PersistentVolumeClaim behind a volume; that of an ephemeral one has the name of pod and volume."""
    if volume.persistent_volume_claim is not None:
        return str(volume.persistent_volume_claim.get("claimName") or "")
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else None
