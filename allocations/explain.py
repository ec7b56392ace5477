"""Why: one answer for a pod or a claim (VIEW-3). What it holds, or what keeps it waiting, node by node.

Called by REST and pages. A placed pod is explained from its allocation row; a waiting one by asking the
engine again, over the picture of this moment, so that the answer is never older than the question, beside what its
scheduler says. Invariants: nodes are told in pages by name, none is left out; what pods ask alike is worked out once.
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
from allocations.asking import with_settings
from allocations.choices import LIVE, State
from allocations.engine.explain import count_devices, explain_devices
from allocations.engine.plan import plan
from allocations.ledger.own import request_of
from allocations.models import Allocation, PodRefusal
from allocations.outside import outside
from allocations.selectors import granted
from allocations.waiting import DEFAULT_SCHEDULER, GATED, NOT_ASKED, OTHER_SCHEDULER, is_waiting, note_waiting
from audit.clock import database_now
from audit.models import Event
from claims.dialects.ignored import sentences
from claims.dialects.request import DeviceRequest
from claims.lookup import ClaimFinder
from claims.models import GpuClaim
from kube import pods as kube_pods
from kube.errors import KubeError

NODES_TOLD = 100
"""Nodes of a page; reasons are counted over all."""
NODES_MOST = 1000
EVENTS_TOLD = 50
PODS_TOLD = 100
KEPT = "devices that could serve it are kept for pods for which less important ones were evicted"
READ_SECONDS = 2.0

log = structlog.get_logger(__name__)


class NodesAsked(msgspec.Struct, frozen=True):
    """Which nodes are told one by one: `size` of them, by name, those after `after`."""

    after: str = ""
    size: int = NODES_TOLD


def pod_explain(namespace: str, name: str, actor: Actor, nodes: NodesAsked = NodesAsked()) -> dict[str, Any]:  # noqa: B008 - frozen
    """Everything known about the newest pod of that name. Raises NotFound where the actor sees none."""
    if not actor.sees(namespace):
        raise NotFound(f"no pod {namespace}/{name} is known")
    allocation = (
        Allocation.objects.filter(namespace=namespace, pod_name=name)
        .select_related("node")
        .defer("node__links", "node__disputed")
        .prefetch_related(granted())
        .order_by("-created_at")
        .first()
    )
    refusal = _refusal(namespace, name)
    if allocation is None and refusal is None and _noted_now(namespace, name):
        refusal = _refusal(namespace, name)
    if allocation is not None and (
        allocation.state in LIVE or refusal is None or refusal.last_at < allocation.created_at
    ):
        told = _allocation_told(allocation)
        if allocation.state in LIVE and not allocation.explanation:
            told["reasons"] = _reasons(_others_lose(allocation))
    elif refusal is not None:
        told = _refusal_told(refusal, _Answers(fleet.look(), nodes))
    else:
        raise NotFound(f"no pod {namespace}/{name} is known")
    return {**told, "timeline": _timeline(Event.objects.filter(namespace=namespace, name=name))}


def _refusal(namespace: str, name: str) -> PodRefusal | None:
    return PodRefusal.objects.filter(namespace=namespace, pod_name=name).order_by("-last_at").first()


def _noted_now(namespace: str, name: str) -> bool:
    """Whether there is such a pod, so new that neither watch nor extender has told of it; then it is noted."""
    cluster = outside().cluster
    if cluster is None:
        return False
    try:
        pod = kube_pods.find(cluster, namespace=namespace, name=name, timeout=READ_SECONDS)
    except (KubeError, ValueError) as error:
        log.info("explain.pod_unread", namespace=namespace, name=name, error=str(error))
        return False
    if pod is None or not is_waiting(pod):
        return False
    note_waiting([pod], database_now())
    return True


def claim_explain(namespace: str, name: str, actor: Actor, nodes: NodesAsked = NodesAsked()) -> dict[str, Any]:  # noqa: B008 - frozen
    """Who holds devices through the claim, and which of its pods wait, and why. Raises NotFound.

    Pods that ask alike have the same nodes: the first of them has them, the others name it in `same_as`.
    """
    claim = GpuClaim.objects.filter(namespace=namespace, name=name).first() if actor.sees(namespace) else None
    if claim is None:
        raise NotFound(f"no GpuClaim {namespace}/{name}")
    live = Allocation.objects.filter(namespace=namespace, claim_name=name, state__in=LIVE)
    holding = live.filter(pod_uid=OuterRef("pod_uid"))
    waiting = PodRefusal.objects.filter(~Exists(holding), namespace=namespace, claim_name=name)
    newest = (
        live.select_related("node")
        .defer("node__links", "node__disputed")
        .prefetch_related(granted())
        .order_by("-created_at")
    )
    pods = [_allocation_told(allocation) for allocation in newest[:PODS_TOLD]]
    refusals = list(waiting.order_by("-last_at")[:PODS_TOLD])
    if refusals:
        answers = _Answers(fleet.look(), nodes)
        pods += [_refusal_told(refusal, answers) for refusal in refusals]
    return {
        "claim": name,
        "namespace": namespace,
        "summary": _claim_summary(live.count(), waiting.count()),
        "pods": pods,
        "timeline": _timeline(Event.objects.filter(namespace=namespace, claim=name)),
    }


def _allocation_told(allocation: Allocation) -> dict[str, Any]:
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


def _refusal_told(refusal: PodRefusal, answers: _Answers) -> dict[str, Any]:
    told: dict[str, Any] = {"summary": refusal.summary, "reasons": _reasons(refusal.reasons), **_NO_NODES}
    if refusal.rule in (GATED, OTHER_SCHEDULER):
        pass  # it is not for us to answer yet
    elif refusal.request is not None:
        told = answers(refusal)
    elif refusal.rule == "claim-missing" and ClaimFinder()(refusal.namespace, refusal.claim_name) is not None:
        told["reasons"] = []
        told["summary"] = f"GpuClaim {refusal.claim_name} exists now; the scheduler has not asked again yet"
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
        **told,
        "scheduler": {
            "name": refusal.scheduler_name or DEFAULT_SCHEDULER,
            "message": refusal.scheduler_message,
            "refused": refusal.count,
        },
    }


def _warnings(request: Mapping[str, Any] | None) -> list[str]:
    """What the pod has that the engine does not look at, in the words of admission."""
    return sentences((request or {}).get("ignored", ()))


class _Answers:
    """What the engine says at this moment, once for all pods that ask the same."""

    def __init__(self, look: fleet.Look, nodes: NodesAsked) -> None:
        self._look = look
        self._picture = look.picture
        self._nodes = nodes
        self._known: dict[DeviceRequest, tuple[str, dict[str, Any]]] = {}

    def __call__(self, refusal: PodRefusal) -> dict[str, Any]:
        request = with_settings(request_of(refusal.request))
        first = request not in self._known
        if first:
            self._known[request] = (refusal.pod_name, self._told(request))
        pod, told = self._known[request]
        if told["node"]:
            kept = self._is_kept_from(refusal, request)
            told = {**told, "summary": KEPT if kept else _asked_words(refusal, told["summary"])}
        told = {key: value for key, value in told.items() if key != "node"}
        return told if first or not told["nodes"] else {**told, "nodes": [], "same_as": pod}

    def _is_kept_from(self, refusal: PodRefusal, request: DeviceRequest) -> bool:
        """Whether it could be placed, were it not for what is promised to preemptors."""
        kept = self._look.kept_from(refusal.pod_uid, None)
        return bool(kept) and plan(self._picture, request, blocked=kept).node is None

    def _told(self, request: DeviceRequest) -> dict[str, Any]:
        decision = plan(self._picture, request)
        if decision.node is not None:
            return {"node": decision.node, "summary": decision.node, "reasons": [], **_NO_NODES}
        refused = sorted(decision.refused(), key=lambda one: one[0])
        names = [node for node, _ in refused]
        start = bisect_right(names, self._nodes.after) if self._nodes.after else 0
        end = start + self._nodes.size
        return {
            "node": None,
            "summary": decision.summary,
            "reasons": _reasons(decision.counts()),
            "nodes": [
                {
                    "node": node,
                    "reason": reason.text,
                    "resolvable": reason.resolvable,
                    "devices": [
                        verdict._asdict()
                        for verdict in explain_devices(self._picture, request, self._picture.node_index[node])
                    ],
                }
                for node, reason in refused[start:end]
            ],
            "nodes_total": len(refused),
            "nodes_next": names[end - 1] if end < len(names) else None,
            "nodes_previous": (names[start - self._nodes.size - 1] if start > self._nodes.size else "")
            if start
            else None,
            "same_as": None,
            "device_reasons": [
                {"reason": reason, "devices": count} for reason, count in count_devices(self._picture, request).items()
            ],
        }


def _asked_words(refusal: PodRefusal, node: str) -> str:
    """Of a pod that the engine could place at this moment."""
    if refusal.count and refusal.rule != NOT_ASKED:
        return f"{node} can serve it now; the scheduler has not asked again yet"
    return f"{node} can serve it now; the scheduler has not asked about it, for reasons of its own"


def _reasons(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"reason": reason, "nodes": count} for reason, count in counts.items()]


def _others_lose(allocation: Allocation) -> dict[str, int]:
    """Why other nodes could not serve it now; a fleet too large to be told when it was placed is asked again."""
    picture, _ = fleet.current()
    own = {
        device.device_id: (device.core_percent, device.memory_bytes)
        for device in allocation.devices.all()
        if device.device_id is not None
    }
    return plan(picture, with_settings(request_of(allocation.request)), own=own).counts()


def _timeline(events: Any) -> list[dict[str, Any]]:
    newest: Iterable[Event] = events.order_by("-id")[:EVENTS_TOLD]
    return [
        {"at": event.at.isoformat(), "kind": event.kind, "actor": event.actor, "message": event.message}
        for event in newest
    ]


def _claim_summary(holding: int, waiting: int) -> str:
    held = {0: "nobody holds devices through the claim", 1: "1 holder has devices through the claim"}
    told = held.get(holding, f"{holding} holders have devices through the claim")
    return told if not waiting else f"{told}; {waiting} waiting"
