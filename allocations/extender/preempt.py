"""preempt: keep only nodes where the engine finds a set once the victims' devices are free.

Where the victims offered would not do, others are named. An echo would evict pods for nothing, again and again; so
would an answer to a pod whose victims are going already. The victims' devices come from the ledger by pod UID. The
answer is in the Meta form (pods by UID), as kube-scheduler expects from every extender.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime

import orjson
import structlog

from allocations import fleet, ledger
from allocations.backends import current_backends
from allocations.engine.plan import plan
from allocations.extender.wire import UNDECODABLE, PreemptArgs, decode_pod, is_there
from allocations.identity import is_uid
from allocations.pod_request import PodRequest, parse_pod_request
from allocations.scheduling import preemption
from allocations.scheduling.release_ended import release_finished, released_lately
from audit.requeue_notify import announce
from claims.membership import queues_admit
from kube import pods
from kube.errors import KubeError
from kube.objects import Pod
from storage.clock import database_now

READ_SECONDS = 2.0

Victims = Mapping[str, tuple[str, ...]]
"""Node → UIDs of the pods that are to be evicted there."""

log = structlog.get_logger(__name__)


def preempt_pod(args: PreemptArgs) -> bytes:
    """ExtenderPreemptionResult for ExtenderPreemptionArgs."""
    offered = {**(args.NodeNameToMetaVictims or {}), **(args.NodeNameToVictims or {})}
    victims = _victims(args, {node: one.uids for node, one in offered.items()})
    answer = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": offered[node].NumPDBViolations}
        for node, uids in victims.items()
    }
    return orjson.dumps({"NodeNameToMetaVictims": answer})


def _victims(args: PreemptArgs, offered: Victims) -> Victims:
    """Who is to be evicted on which of the nodes offered."""
    if not is_there(args.Pod):
        return offered
    try:
        pod = decode_pod(args.Pod)
    except UNDECODABLE:
        return {}
    pod_request = parse_pod_request(pod)
    if pod_request is None:
        return offered
    if not isinstance(pod_request, PodRequest) or queues_admit(pod_request.membership, pod.metadata.namespace):
        return {}  # the queues evict for their pods themselves
    if _waits_already(pod, pod_request, database_now()):
        return {}
    look = fleet.current()
    own = ledger.read_pod_allocation(pod.metadata.uid, look.now).live
    enough = _fitting(pod, pod_request, look, own, offered)
    answer = preemption.answer(preemption.Preemptor.of(pod, pod_request, own), offered, enough=enough, now=look.now)
    return {node: offered[node] for node in enough if node not in answer.concerned} | dict(answer.victims)


def _fitting(
    pod: Pod,
    pod_request: PodRequest,
    look: fleet.FleetSnapshot,
    own: ledger.Live | None,
    leaving: Mapping[str, Collection[str]],
) -> list[str]:
    """Those of the nodes that have what the pod asks for once `leaving` (node → UIDs of pods) are gone."""
    held = preemption.held_by(filter(is_uid, {uid for uids in leaving.values() for uid in uids}))
    blocked = look.blocked(pod.metadata.uid, pod_request.rank, pod_request.request)
    rows = {node: look.snapshot.node_index[node] for node in leaving if node in look.snapshot.node_index}
    decisions = {
        node: plan(
            look.snapshot,
            pod_request.request,
            candidates=[row],
            own=None if own is None else own.amounts,
            freed=[one for uid in leaving[node] for one in held.get(uid, ())],
            blocked=blocked,
            verdicts_up_to=0,
        )
        for node, row in rows.items()
    }
    return [node for node, decision in decisions.items() if decision.node is not None]


def _waits_already(pod: Pod, pod_request: PodRequest, now: datetime) -> bool:
    """Whether others were evicted for the pod a moment ago, and what they held is enough: nobody else has to go.

    kube-scheduler may ask from what it knew before it noted the nomination, so the pod itself is read.
    """
    node = _nominated(pod)
    if not node:
        return False
    ended = release_finished(node=node, now=now)
    # Twice where pods leave: one that goes between the reads of the snapshot and of its devices is missing from both.
    if not any(_has_room(pod, pod_request, node, ended.leaving) for _ in range(2 if ended.leaving else 1)):
        return False
    if not (ended.leaving or ended.released or released_lately(node=node, now=now)):
        return False
    if not ended.leaving:
        announce(node=node)  # else the release of the last one does
    return True


def _has_room(pod: Pod, pod_request: PodRequest, node: str, leaving: Collection[str]) -> bool:
    look = fleet.current()
    own = ledger.read_pod_allocation(pod.metadata.uid, look.now).live
    return bool(_fitting(pod, pod_request, look, own, {node: leaving}))


def _nominated(pod: Pod) -> str:
    """The node for which kube-scheduler has evicted others for this pod, empty where it has not."""
    cluster = current_backends().cluster
    if pod.status.nominated_node_name or cluster is None:
        return pod.status.nominated_node_name or ""
    try:
        found = pods.find(cluster, namespace=pod.metadata.namespace, name=pod.metadata.name, timeout=READ_SECONDS)
    except KubeError as error:
        log.info("preempt.pod_unread", pod=pod.metadata.name, error=str(error))
        return ""
    return (found.status.nominated_node_name or "") if found is not None else ""
