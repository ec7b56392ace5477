"""What pods of one node have left behind, returned at once: for a pod whose victims have just gone.

Called by filter and preempt for pods that kube-scheduler has nominated to a node, and before a node makes way. A victim's end reaches kube-scheduler and our watch
at the same moment, and the scheduler asks at once: refused, because the watch is not through yet, the pod would have further pods
evicted, elsewhere. Kept true: as with every release, leases go first, each move is conditional, and a cluster that does not answer
changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from allocations import ledger
from allocations.choices import State
from allocations.models import Allocation
from allocations.outside import outside
from allocations.saga import finish
from allocations.services import release_now
from kube import pods
from kube.errors import KubeError
from kube.objects import Pod

LIST_SECONDS = 2.0
LATELY = timedelta(seconds=10)
SOON = timedelta(minutes=1)
"""A release that takes longer is stuck: nobody waits for what it may bring."""
ACTOR = "scheduler"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ended:
    """`released`: allocations that were ended now. `leaving`: UIDs of pods of the node that hold devices still, but not for long.

    They are told to go, or gone, and somebody else, the watch say, is at their release. `there`: the node's pods by UID, None where they could not be read, or nobody of the ledger was on the node.
    """

    released: int = 0
    leaving: frozenset[str] = frozenset()
    there: Mapping[str, Pod] | None = field(default=None, compare=False)


def settle_ended(*, node: str, now: datetime) -> Ended:
    """Release what pods that are gone or finished hold on the node, without waiting for watch or collection."""
    world = outside()
    # Held and reserved ones belong to pods that are being placed; the ledger is read before the cluster.
    rows = Allocation.objects.filter(node__name=node, state__in=(State.BOUND, State.RELEASING)).exclude(pod_uid="")
    held = list(rows.values_list("pk", "pod_uid", "namespace", "pod_name", "state", "outcome", "releasing_at"))
    if world.cluster is None or not held:
        return Ended()
    try:
        found = pods.list_all(world.cluster, field_selector=f"spec.nodeName={node}", timeout=LIST_SECONDS)
    except KubeError as error:
        log.info("ended.pods_unread", node=node, error=str(error))
        return Ended()
    there = {pod.metadata.uid: pod for pod in found.items}
    unreadable = {item.key for item in found.unreadable}
    released, leaving = 0, set()
    for pk, uid, namespace, name, state, outcome, releasing_at in held:
        pod = there.get(uid)
        if state != State.RELEASING and (namespace, name) in unreadable:
            continue
        if state == State.RELEASING:
            live = ledger.read_live(pk)
            back = live is not None and finish(live, world, State(outcome), actor=ACTOR)
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
        log.info("ended.settled", node=node, released=released)
    return Ended(released, frozenset(leaving), there)


def ended_lately(*, node: str, now: datetime) -> bool:
    """Whether devices of the node have come back a moment ago."""
    return Allocation.objects.filter(node__name=node, state=State.RELEASED, ended_at__gt=now - LATELY).exists()
