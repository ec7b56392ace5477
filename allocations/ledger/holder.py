"""Who holds, or wants to hold, devices (a pod, or a client over REST), and on which terms."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from allocations.attempts import UNKNOWN, Attempt
from claims.dialects.request import DeviceRequest
from claims.membership import NO_MEMBERSHIP, Membership


@dataclass(frozen=True, slots=True)
class Holder:
    """`pod_name` and `pod_uid` are empty for a REST client; `identity` goes into the leases."""

    namespace: str
    identity: str
    pod_name: str = ""
    pod_uid: str = ""

    @property
    def label(self) -> str:
        """`namespace/pod` for people, or the identity of a REST holder."""
        return f"{self.namespace}/{self.pod_name}" if self.pod_name else self.identity


def pod_holder(namespace: str, name: str, uid: str) -> Holder:
    """The holder of a pod's devices; identity `<namespace>/<pod>/<uid>`."""
    return Holder(namespace=namespace, identity=f"{namespace}/{name}/{uid}", pod_name=name, pod_uid=uid)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """For whom and for what devices are taken.

    `claim_id`: row of the GpuClaim. `priority`: the pod's, None where preemption cannot evict the holder. `rank`: the
    priority by which devices reserved for preemptors are kept from it, None below every pod. `confined`: the pod's
    containers carry our reference (CLAIM-7). `attempt`: the attempt of the scheduler that a hold is for.
    `membership`: the workload that the pod is part of.
    """

    holder: Holder
    request: DeviceRequest
    claim_id: int | None = None
    priority: int | None = None
    rank: int | None = None
    confined: bool = True
    actor: str = "scheduler"
    attempt: Attempt = UNKNOWN
    membership: Membership = NO_MEMBERSHIP
