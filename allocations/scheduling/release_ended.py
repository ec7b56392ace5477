"""Release the devices of ended pods of one node at once, for a pod whose victims have just gone.

Called by filter and preempt for pods that kube-scheduler has nominated to a node, and before a node is reserved. A
victim's end reaches kube-scheduler and the watch at the same moment, and the scheduler asks at once: a pod that is
refused before the watch has released the devices would have more pods evicted elsewhere. Invariants: leases go first,
each move is conditional, and nothing changes while the API server does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from allocations.backends import current_backends
from allocations.choices import State
from allocations.models import Allocation
from allocations.scheduling.binder import finish, release_now
from kube import pods
from kube.errors import KubeError
from kube.objects import Pod

LIST_SECONDS = 2.0
LATELY = timedelta(seconds=10)
SOON = timedelta(minutes=1)
"""A release that takes longer is stuck, and no longer waited for."""
ACTOR = "scheduler"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """`released`: allocations that were ended now. `leaving`: UIDs of pods that are being deleted, or whose release is
    under way elsewhere.

    `there`: the node's pods by UID, None where they could not be read, or the ledger has nobody on the node.
    """

    released: int = 0
    leaving: frozenset[str] = frozenset()
    there: Mapping[str, Pod] | None = field(default=None, compare=False)


def release_finished(*, node: str, now: datetime) -> Ended:
    """Release what pods that are gone or finished hold on the node."""
    backends = current_backends()
    # Held and reserved ones belong to pods that are being placed; the ledger is read before the cluster.
    rows = Allocation.objects.filter(node__name=node, state__in=(State.BOUND, State.RELEASING)).exclude(pod_uid="")
    held = list(rows.values_list("pk", "pod_uid", "namespace", "pod_name", "state", "outcome", "releasing_at"))
    if backends.cluster is None or not held:
        return Ended()
    try:
        found = pods.list_all(backends.cluster, field_selector=f"spec.nodeName={node}", timeout=LIST_SECONDS)
    except KubeError as error:
        log.info("release_ended.pods_unread", node=node, error=str(error))
        return Ended()
    there = {pod.metadata.uid: pod for pod in found.items}
    unreadable = {item.key for item in found.unreadable}
    released, leaving = 0, set()
    for pk, uid, namespace, name, state, outcome, releasing_at in held:
        pod = there.get(uid)
        if state != State.RELEASING and (namespace, name) in unreadable:
            continue
        if state == State.RELEASING:
            back = finish(pk, backends, State(outcome), now=now, actor=ACTOR)
        elif pod is None or pod.finished:
            reason = "the pod is gone" if pod is None else f"the pod has {pod.status.phase.lower()}"
            back = release_now(allocation_id=pk, reason=reason, now=now, actor=ACTOR)
        elif pod.metadata.deletion_timestamp:
            back = False
        else:
            continue
        if back:
            released += 1
        elif releasing_at is None or now - releasing_at < SOON:
            leaving.add(uid)
    if released:
        log.info("release_ended.released", node=node, released=released)
    return Ended(released, frozenset(leaving), there)


def released_lately(*, node: str, now: datetime) -> bool:
    """Whether devices of the node came back within `LATELY`."""
    return Allocation.objects.filter(node__name=node, state=State.RELEASED, ended_at__gt=now - LATELY).exists()
