"""preempt: keep only nodes where the engine finds a set once the victims' devices are free (DESIGN §4); name others where those offered would not do.

An echo would evict pods for nothing, again and again; so would an answer to a pod whose victims are going already. The
victims' devices come from the ledger by pod UID. The answer is in the Meta form (pods by UID), as kube-scheduler expects from every extender.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import orjson
import structlog
from django.db.models import QuerySet

from allocations import fleet, ledger, making_way
from allocations.asking import Asks, pod_asks
from allocations.choices import LIVE
from allocations.ended import ended_lately, settle_ended
from allocations.engine.plan import plan
from allocations.extender.identity import is_uid, pod_problem
from allocations.extender.wire import UNDECODABLE, PreemptArgs, decode_pod, is_there
from allocations.models import AllocationDevice
from allocations.outside import outside
from audit.announce import announce
from audit.clock import database_now
from claims.dialects import asks_for_devices
from claims.dialects.request import Refusal
from kube import pods
from kube.errors import KubeError
from kube.objects import Pod

READ_SECONDS = 2.0
UIDS_A_QUERY = 5_000
"""Databases bound the parameters of a statement."""

log = structlog.get_logger(__name__)


def preempt_pod(args: PreemptArgs) -> bytes:
    """ExtenderPreemptionResult for ExtenderPreemptionArgs."""
    offered = _offered(args)
    pod = None
    if is_there(args.Pod):
        try:
            pod = decode_pod(args.Pod)
        except UNDECODABLE:
            return _answer(offered, ())
    if pod is None:
        return _answer(offered, tuple(offered))
    if pod_problem(pod):
        return _answer(offered, () if asks_for_devices(pod) else tuple(offered))
    asks = pod_asks(pod)
    if asks is None:
        return _answer(offered, tuple(offered))
    if isinstance(asks, Refusal):
        return _answer(offered, ())
    if _waits_already(pod, asks, database_now()):
        return _answer(offered, ())
    look = fleet.look()
    picture, now = look.picture, look.now
    own = ledger.read_own(pod.metadata.uid, now).live
    kept = look.kept_from(pod.metadata.uid, asks.rank)
    freed = _amounts({uid for uids, _ in offered.values() for uid in uids})
    enough = []
    for node, (uids, _) in offered.items():
        if node not in picture.node_index:
            continue
        back: dict[int, tuple[int, int]] = {}
        for uid in uids:
            _add(back, freed.get(uid, ()))
        decision = plan(
            picture,
            asks.request,
            candidates=[picture.node_index[node]],
            own=None if own is None else own.amounts,
            freed=back,
            blocked=kept,
        )
        if decision.node is not None:
            enough.append(node)
    preemptor = None
    if asks.priority is not None:
        preemptor = making_way.Preemptor(pod, asks.priority, asks.request, None if own is None else own.amounts)
    made = making_way.answer(preemptor, {node: uids for node, (uids, _) in offered.items()}, enough=enough, now=now)
    chosen = {node: offered[node][0] for node in enough if node not in made.concerned} | made.victims
    return _answer({node: (uids, offered[node][1]) for node, uids in chosen.items()}, tuple(chosen))


def _waits_already(pod: Pod, asks: Asks, now: datetime) -> bool:
    """Whether others were evicted for the pod a moment ago, and what they held is enough: nobody else has to go.

    kube-scheduler may ask from what it knew before it noted the nomination, so the pod itself is read.
    """
    node = _nominated(pod)
    if not node:
        return False
    ended = settle_ended(node=node, now=now)
    # Twice where somebody leaves: who is gone between the look at the node and that at what they hold is missing from both.
    if not any(_is_room(pod, asks, node, ended.leaving) for _ in range(2 if ended.leaving else 1)):
        return False
    if not (ended.leaving or ended.released or ended_lately(node=node, now=now)):
        return False
    if not ended.leaving:
        announce(node=node)  # else the release of the last one does
    return True


def _is_room(pod: Pod, asks: Asks, node: str, leaving: frozenset[str]) -> bool:
    """Whether the node has what the pod asks for once those who are leaving are gone."""
    look = fleet.look()
    picture = look.picture
    row = picture.node_index.get(node)
    if row is None:
        return False
    own = ledger.read_own(pod.metadata.uid, look.now).live
    freed: dict[int, tuple[int, int]] = {}
    for grants in _amounts(set(leaving)).values():
        _add(freed, grants)
    decision = plan(
        picture,
        asks.request,
        candidates=[row],
        own=None if own is None else own.amounts,
        freed=freed,
        blocked=look.kept_from(pod.metadata.uid, asks.rank),
    )
    return decision.node is not None


def _nominated(pod: Pod) -> str:
    """The node for which kube-scheduler has evicted others for this pod, empty where it has not."""
    cluster = outside().cluster
    if pod.status.nominated_node_name or cluster is None:
        return pod.status.nominated_node_name or ""
    try:
        found = pods.find(cluster, namespace=pod.metadata.namespace, name=pod.metadata.name, timeout=READ_SECONDS)
    except KubeError as error:
        log.info("preempt.pod_unread", pod=pod.metadata.name, error=str(error))
        return ""
    return (found.status.nominated_node_name or "") if found is not None else ""


def _add(freed: dict[int, tuple[int, int]], grants: Iterable[tuple[int, int, int]]) -> None:
    for device_id, core, memory in grants:
        before = freed.get(device_id, (0, 0))
        freed[device_id] = (before[0] + core, before[1] + memory)


def _offered(args: PreemptArgs) -> dict[str, tuple[tuple[str, ...], int]]:
    """Node → (UIDs of its victims, violated disruption budgets), from either form."""
    offered: dict[str, tuple[tuple[str, ...], int]] = {}
    for node, meta in (args.NodeNameToMetaVictims or {}).items():
        offered[node] = (tuple(pod.UID for pod in meta.Pods or ()), meta.NumPDBViolations)
    for node, victims in (args.NodeNameToVictims or {}).items():
        offered[node] = (tuple(pod.metadata.uid for pod in victims.Pods or ()), victims.NumPDBViolations)
    return offered


def _amounts(uids: set[str]) -> dict[str, list[tuple[int, int, int]]]:
    """Pod UID → (device id, core percent, bytes) of what it holds."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    asked = sorted(filter(is_uid, uids))
    for start in range(0, len(asked), UIDS_A_QUERY):
        rows: QuerySet[AllocationDevice, tuple[str, int, int, int]] = AllocationDevice.objects.filter(
            live=True, allocation__state__in=LIVE, allocation__pod_uid__in=asked[start : start + UIDS_A_QUERY]
        ).values_list("allocation__pod_uid", "device_id", "core_percent", "memory_bytes")
        for uid, device_id, core, memory in rows:
            found.setdefault(uid, []).append((device_id, core, memory))
    return found


def _answer(offered: Mapping[str, tuple[tuple[str, ...], int]], kept: Sequence[str]) -> bytes:
    return orjson.dumps(
        {
            "NodeNameToMetaVictims": {
                node: {"Pods": [{"UID": uid} for uid in offered[node][0]], "NumPDBViolations": offered[node][1]}
                for node in kept
            }
        }
    )
