"""Makes the engine's request from a pod or from a stored request.

Called by filter, prioritize, bind and preempt, by REST claims and by explain. Invariants: settings are applied here and
nowhere else, so a pod has the same request for every caller.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from allocations.attempts import UNKNOWN, Attempt, attempt_of
from allocations.identity import pod_problem
from allocations.ledger.holder import Holder, Terms
from claims.admission.confinement import is_confined
from claims.admission.counted import is_counted
from claims.dialects.parse import no_claim, parse_pod
from claims.dialects.request import DeviceRequest, Refusal, SharePolicy
from claims.lookup import ClaimFinder
from claims.membership import NO_MEMBERSHIP, Membership, membership_of
from kube.objects import Pod, Volume


@dataclass(frozen=True, slots=True)
class UnboundClaims:
    """Names of PersistentVolumeClaims and ResourceClaims of a namespace; empty for one that has none yet."""

    namespace: str
    volume_claims: tuple[str, ...] = ()
    resource_claims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod asks for, and what its hold is made of.

    `claim_id`: row of its GpuClaim. `hold_seconds`: of a hold, where kube-scheduler waits for nothing between
    filter and bind. `confined`: its containers have the injected reference (CLAIM-7).
    """

    request: DeviceRequest
    claim_id: int | None
    hold_seconds: int
    confined: bool
    attempt: Attempt = UNKNOWN
    priority: int | None = None
    """For preemption of the pod; None: kube-scheduler does not count the pod, so it is never a victim."""
    rank: int | None = None
    """The pod's priority, by which devices are kept from it for preemptors. None: below every pod."""
    awaited: UnboundClaims | None = None
    """What kube-scheduler may wait for; filter finds out whether it does (`allocations.scheduling.hold_duration`)."""
    membership: Membership = NO_MEMBERSHIP
    """The workload that the pod is part of."""

    def terms(self, holder: Holder, *, by_kubelet: bool, actor: str) -> Terms:
        """The terms on which the pod takes devices. `by_kubelet`: the node's kubelet chooses them."""
        return Terms(
            holder=holder,
            request=self.request,
            claim_id=self.claim_id,
            priority=self.priority,
            rank=self.rank,
            confined=self.confined or by_kubelet,
            actor=actor,
            attempt=self.attempt,
            membership=self.membership,
        )


@dataclass(frozen=True, slots=True)
class Malformed:
    """A pod that asks for devices under a name, a namespace or a UID that Kubernetes gives to none."""

    problem: str


def parse_pod_request(pod: Pod, finder: ClaimFinder | None = None) -> PodRequest | Refusal | Malformed | None:
    """What the pod asks for; the rule that it breaks; None where it asks for no devices.

    `finder`: one for many pods.
    """
    rank, awaited, attempt = _rank(pod), unbound_claims_of(pod), attempt_of(pod)
    confined, counted = is_confined(pod), is_counted(pod)
    problem, finder = pod_problem(pod), finder or ClaimFinder()
    parsed = parse_pod(pod, find_claim=no_claim if problem else finder)
    if problem and parsed is not None:
        return Malformed(problem)
    if parsed is None or isinstance(parsed, Refusal):
        return parsed
    claim = finder.of(pod, parsed)
    return PodRequest(
        parsed.under(share_policy()),
        claim.claim_id,
        settings.GPUPLANE_HOLD_SECONDS,
        confined,
        priority=rank if counted else None,
        rank=rank,
        awaited=awaited,
        attempt=attempt,
        membership=membership_of(pod, claim.gang),
    )


def preemption_priority(pod: Pod) -> int | None:
    """The pod's priority where kube-scheduler counts it (`claims.admission.counted`), else None."""
    return _rank(pod) if is_counted(pod) else None


def _rank(pod: Pod) -> int:
    """The pod's priority; Kubernetes' have 32 bits."""
    return max(-(2**31), min(pod.priority, 2**31 - 1))


def share_policy() -> SharePolicy:
    """The fleet's, for `DeviceRequest.under`."""
    return SharePolicy(settings.GPUPLANE_SHARE)


def unbound_claims_of(pod: Pod) -> UnboundClaims | None:
    """The volume and resource claims that the pod names; None where there are none."""
    volumes, claims = pod.spec.volumes or (), pod.spec.resource_claims or ()
    if not claims and not any(one.persistent_volume_claim is not None or one.ephemeral is not None for one in volumes):
        return None
    named = [_volume_claim(pod, volume) for volume in volumes]
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or ()}
    return UnboundClaims(
        namespace=pod.metadata.namespace,
        volume_claims=tuple(sorted({name for name in named if name is not None})),
        resource_claims=tuple(
            sorted({str(claim.get("resourceClaimName") or made.get(str(claim.get("name"))) or "") for claim in claims})
        ),
    )


def _volume_claim(pod: Pod, volume: Volume) -> str | None:
    """The PersistentVolumeClaim of a volume; that of an ephemeral one is named after pod and volume."""
    if volume.persistent_volume_claim is not None:
        return str(volume.persistent_volume_claim.get("claimName") or "")
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else None
