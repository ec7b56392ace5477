"""Explains a pod or a claim (VIEW-3): what it holds, or what keeps it waiting, node by node.

Called by REST and pages. A placed pod is explained by its allocation row; a waiting one by a new decision of the
engine on the present snapshot, beside what its scheduler says. Invariants: nodes are paged by name, none is left out;
equal requests are decided once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import structlog
from django.db.models import Exists, OuterRef

from access.actors import Actor
from access.errors import NotFound
from allocations import fleet
from allocations.backed_off_nodes import PUT_OFF, PUT_OFF_DEVICE, refusals
from allocations.backends import current_backends
from allocations.choices import LIVE, State
from allocations.engine.decision import Decision
from allocations.engine.explain import DeviceVerdict, count_devices, explain_devices
from allocations.engine.plan import plan, verdicts_of
from allocations.engine.reasons import summary_text
from allocations.gang_queues import read_gang_queues, waits_in
from allocations.ledger.reads import request_of
from allocations.models import Allocation, PodRefusal, QueueState
from allocations.pod_request import share_policy
from allocations.queued_pod import QueuedPod
from allocations.reservation_overviews import nodes_put_off
from allocations.selectors import with_devices
from allocations.waiting import DEFAULT_SCHEDULER, GATED, NOT_ASKED, OTHER_SCHEDULER, is_waiting, note_waiting
from audit.models import Event
from claims.dialects.ignored import sentences
from claims.dialects.request import DeviceRequest
from claims.lookup import ClaimFinder
from claims.models import GpuClaim
from claims.queues import DIRECTORY, FRESH_SECONDS
from kube import pods as kube_pods
from kube.errors import KubeError

NODES_SHOWN = 100
"""Nodes of a page; reasons are counted over all."""
NODES_MOST = 1000
EVENTS_SHOWN = 50
PODS_SHOWN = 100
KEPT = "devices that it needs are reserved for other pods"
READ_SECONDS = 2.0

log = structlog.get_logger(__name__)


class NodePage(msgspec.Struct, frozen=True):
    """A page of the nodes by name: `size` of those after `after`."""

    after: str = ""
    size: int = NODES_SHOWN


_FIRST_PAGE = NodePage()


def pod_explain(namespace: str, name: str, actor: Actor, nodes: NodePage = _FIRST_PAGE) -> dict[str, Any]:
    """Everything known about the newest pod of that name. Raises NotFound where the actor sees none."""
    if not actor.sees(namespace):
        raise NotFound(f"no pod {namespace}/{name} is known")
    allocations = Allocation.objects.filter(namespace=namespace, pod_name=name)
    allocation = with_devices(allocations).order_by("-created_at").first()
    refusal = _refusal(namespace, name)
    if allocation is None and refusal is None and _note_new_pod(namespace, name):
        refusal = _refusal(namespace, name)
    if allocation is not None and (
        allocation.state in LIVE or refusal is None or refusal.last_at < allocation.created_at
    ):
        answer = _of_allocation(allocation)
        if allocation.state in LIVE and not allocation.explanation:
            answer["reasons"] = _reasons(_why_others_lose(allocation))
    elif refusal is not None:
        answer = _of_refusal(refusal, _Decisions(fleet.current(), nodes))
    else:
        raise NotFound(f"no pod {namespace}/{name} is known")
    return {**answer, "timeline": _timeline(Event.objects.filter(namespace=namespace, name=name))}


def _refusal(namespace: str, name: str) -> PodRefusal | None:
    return PodRefusal.objects.filter(namespace=namespace, pod_name=name).order_by("-last_at").first()


def _note_new_pod(namespace: str, name: str) -> bool:
    """Note a waiting pod that neither watch nor extender has seen yet; False where there is none."""
    cluster = current_backends().cluster
    if cluster is None:
        return False
    try:
        pod = kube_pods.find(cluster, namespace=namespace, name=name, timeout=READ_SECONDS)
    except (KubeError, ValueError) as error:
        log.info("explain.pod_unread", namespace=namespace, name=name, error=str(error))
        return False
    if pod is None or not is_waiting(pod):
        return False
    note_waiting([pod], fleet.current().now)
    return True


def claim_explain(namespace: str, name: str, actor: Actor, nodes: NodePage = _FIRST_PAGE) -> dict[str, Any]:
    """Who holds devices through the claim, and which of its pods wait, and why. Raises NotFound.

    Of pods of equal requests the first has the nodes; the others name it in `same_as`.
    """
    claim = GpuClaim.objects.filter(namespace=namespace, name=name).first() if actor.sees(namespace) else None
    if claim is None:
        raise NotFound(f"no GpuClaim {namespace}/{name}")
    live = Allocation.objects.filter(namespace=namespace, claim_name=name, state__in=LIVE)
    holding = live.filter(pod_uid=OuterRef("pod_uid"))
    waiting = PodRefusal.objects.filter(~Exists(holding), namespace=namespace, claim_name=name)
    newest = with_devices(live).order_by("-created_at")[:PODS_SHOWN]
    pods = [_of_allocation(allocation) for allocation in newest]
    refusals = list(waiting.order_by("-last_at")[:PODS_SHOWN])
    if refusals:
        decisions = _Decisions(fleet.current(), nodes)
        pods += [_of_refusal(refusal, decisions) for refusal in refusals]
    return {
        "claim": name,
        "namespace": namespace,
        "summary": _claim_summary(live.count(), waiting.count()),
        "pods": pods,
        "timeline": _timeline(Event.objects.filter(namespace=namespace, claim=name)),
    }


def _of_allocation(allocation: Allocation) -> dict[str, Any]:
    return {
        "pod": allocation.pod_name or allocation.holder,
        "namespace": allocation.namespace,
        "uid": allocation.pod_uid,
        "allocation": str(allocation.id),
        "claim": allocation.claim_name,
        "state": allocation.state,
        "node": allocation.node.name,
        "devices": [
            {
                "uuid": device.uuid,
                "minor": device.minor,
                "type": device.type,
                "core": device.core_percent,
                "memory": device.memory_bytes or None,
                "whole": device.whole,
                "problem": device.problem,
            }
            for device in allocation.devices.all()
        ],
        "summary": allocation.reason if allocation.state in {State.RELEASED, State.FAILED} else allocation.summary,
        "reasons": _reasons(allocation.explanation),
        "warnings": _warnings(allocation.request),
        **_NO_NODES,
        "workload": None,
        "scheduler": None,
    }


_NO_NODES: dict[str, Any] = {
    "nodes": [],
    "nodes_total": 0,
    "nodes_next": None,
    "nodes_previous": None,
    "same_as": None,
    "device_reasons": [],
}


def _of_refusal(refusal: PodRefusal, decisions: _Decisions) -> dict[str, Any]:
    why: dict[str, Any] = {"summary": refusal.summary, "reasons": _reasons(refusal.reasons), **_NO_NODES}
    waits_for_others = refusal.rule in (GATED, OTHER_SCHEDULER)
    if refusal.request is not None and not waits_for_others:
        why = decisions.on(refusal)
    if refusal.member is not None:
        why["summary"] = refusal.summary  # the queues' reason comes before those of nodes and devices
    elif refusal.rule == "claim-missing" and ClaimFinder()(refusal.namespace, refusal.claim_name) is not None:
        why["reasons"] = []
        why["summary"] = f"GpuClaim {refusal.claim_name} exists now; the scheduler has not asked again yet"
    return {
        "pod": refusal.pod_name,
        "namespace": refusal.namespace,
        "uid": refusal.pod_uid,
        "allocation": None,
        "claim": refusal.claim_name,
        "state": "pending",
        "node": None,
        "devices": [],
        "warnings": _warnings(refusal.request),
        **why,
        "workload": _workload(refusal),
        "scheduler": {
            "name": refusal.scheduler_name or DEFAULT_SCHEDULER,
            "message": refusal.scheduler_message,
            "refused": refusal.count,
        },
    }


def _workload(refusal: PodRefusal) -> dict[str, Any] | None:
    """The queue and the gang of a pod that the queues admit, and where these stand."""
    if refusal.member is None:
        return None
    membership = msgspec.convert(refusal.member, QueuedPod).pod_request.membership
    namespace, queues = refusal.namespace, DIRECTORY.get(FRESH_SECONDS)
    by_gang = read_gang_queues(queues, namespace=namespace, gang=membership.gang) if membership.gang else {}
    queue = waits_in(membership, namespace, queues, by_gang)
    state = QueueState.objects.filter(name=queue).first()
    return {
        "queue": queue,
        "gang": membership.gang or None,
        "priority": membership.priority,
        "preemptible": membership.preemptible,
        "quotas": [] if state is None else state.quotas,
        "reason": refusal.summary,
    }


def _warnings(request: Mapping[str, Any] | None) -> list[str]:
    """What of the pod the engine ignores, in the words of admission."""
    return sentences((request or {}).get("ignored", ()))


class _Decisions:
    """Decisions of the engine on one snapshot, one for all pods of equal requests."""

    def __init__(self, current: fleet.FleetSnapshot, nodes: NodePage) -> None:
        self._fleet = current
        self._snapshot = current.snapshot
        self._nodes = nodes
        self._known: dict[DeviceRequest, tuple[str, dict[str, Any] | str]] = {}
        """Request → the first pod of it, and why it is refused or the node that could serve it."""

    def on(self, refusal: PodRefusal) -> dict[str, Any]:
        """What the engine says of a pod that was refused."""
        request = request_of(refusal.request).under(share_policy())
        first = request not in self._known
        if first:
            decision = plan(self._snapshot, request, blocked=self._fleet.without_group(request), verdicts_up_to=0)
            self._known[request] = (refusal.pod_name, decision.node or self._why_refused(request, decision))
        pod, why = self._known[request]
        if isinstance(why, str):
            summary = KEPT if self._is_kept_from(refusal, request) else _placeable(refusal, why)
            return {"summary": summary, "reasons": [], **_NO_NODES}
        return why if first or not why["nodes"] else {**why, "nodes": [], "same_as": pod}

    def _is_kept_from(self, refusal: PodRefusal, request: DeviceRequest) -> bool:
        """Whether only devices that are kept for preemptors could serve the pod."""
        kept = self._fleet.kept_from(refusal.pod_uid, None)
        blocked = self._fleet.blocked(refusal.pod_uid, None, request)
        return bool(kept) and plan(self._snapshot, request, blocked=blocked, verdicts_up_to=0).node is None

    def _why_refused(self, request: DeviceRequest, decision: Decision) -> dict[str, Any]:
        verdicts = refusals(decision, self._fleet)
        refused = sorted(verdicts.refused(), key=lambda one: one[0])
        put_off = _PutOff(self._fleet, request) if any(reason is PUT_OFF for _, reason in refused) else None
        names = [node for node, _ in refused]
        start = bisect_right(names, self._nodes.after) if self._nodes.after else 0
        end = start + self._nodes.size
        return {
            "summary": summary_text(len(decision.candidates), verdicts.counts().items()),
            "reasons": _reasons(verdicts.counts()),
            "nodes": [
                {
                    "node": node,
                    "reason": reason.text if put_off is None or reason is not PUT_OFF else put_off.reason(node),
                    "resolvable": reason.resolvable,
                    "devices": self._devices(request, node, put_off),
                }
                for node, reason in refused[start:end]
            ],
            "nodes_total": len(refused),
            "nodes_next": names[end - 1] if end < len(names) else None,
            "nodes_previous": (
                (names[start - self._nodes.size - 1] if start > self._nodes.size else "") if start else None
            ),
            "same_as": None,
            "device_reasons": [
                {"reason": reason, "devices": count} for reason, count in count_devices(self._snapshot, request).items()
            ],
        }

    def _devices(self, request: DeviceRequest, node: str, put_off: _PutOff | None) -> list[dict[str, Any]]:
        verdicts = explain_devices(self._snapshot, request, self._snapshot.node_index[node])
        return [(verdict if put_off is None else put_off.on_device(verdict))._asdict() for verdict in verdicts]


class _PutOff:
    """Why and until when nodes begin no new group."""

    def __init__(self, look: fleet.FleetSnapshot, request: DeviceRequest) -> None:
        self._nodes = {one.node.name: one for one in nodes_put_off(now=look.now)}
        rows = look.snapshot.index.rows_of(sorted(look.without_group(request))).tolist()
        self._devices = {look.snapshot.device_uuid[row] for row in rows if row >= 0}

    def reason(self, node: str) -> str:
        """The reason of the node, with the time and the failure before."""
        known = self._nodes.get(node)
        return PUT_OFF.text if known is None else f"{PUT_OFF.text}, until {known.until:%H:%M:%S} UTC: {known.reason}"

    def on_device(self, verdict: DeviceVerdict) -> DeviceVerdict:
        """A device that could serve as a new group's."""
        return verdict._replace(reason=verdict.reason or PUT_OFF_DEVICE) if verdict.uuid in self._devices else verdict


def _placeable(refusal: PodRefusal, node: str) -> str:
    """The summary of a pod that the engine could place now."""
    if refusal.count and refusal.rule != NOT_ASKED:
        return f"{node} can serve it now; the scheduler has not asked again yet"
    return f"{node} can serve it now; the scheduler has not asked about it, for reasons of its own"


def _reasons(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"reason": reason, "nodes": count} for reason, count in counts.items()]


def _why_others_lose(allocation: Allocation) -> dict[str, int]:
    """Reason → number of other nodes; decided now, where the fleet was too large for it when the pod was placed."""
    snapshot = fleet.current().snapshot
    own = {
        device.device_id: (device.core_percent, device.memory_bytes)
        for device in allocation.devices.all()
        if device.device_id is not None
    }
    decision = plan(snapshot, request_of(allocation.request).under(share_policy()), own=own)
    return verdicts_of(decision, snapshot).counts()


def _timeline(events: Any) -> list[dict[str, Any]]:
    newest: Iterable[Event] = events.order_by("-id")[:EVENTS_SHOWN]
    return [
        {"at": event.at.isoformat(), "kind": event.kind, "actor": event.actor, "message": event.message}
        for event in newest
    ]


def _claim_summary(holding: int, waiting: int) -> str:
    held = {0: "nobody holds devices through the claim", 1: "1 holder has devices through the claim"}
    summary = held.get(holding, f"{holding} holders have devices through the claim")
    return summary if not waiting else f"{summary}; {waiting} waiting"
