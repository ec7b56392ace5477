"""Why: one answer for a pod or a claim (VIEW-3). What it holds, or what keeps it waiting, node by node.

Called by REST and pages. A placed pod is explained from its allocation row; a waiting one by asking the
engine again, over the picture of this moment, so that the answer is never older than the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from django.db.models import Exists, OuterRef

from access.actors import Actor
from access.errors import NotFound
from allocations import fleet
from allocations.asking import with_settings
from allocations.choices import LIVE, State
from allocations.engine.explain import count_devices, explain_devices
from allocations.engine.picture import Picture
from allocations.engine.plan import plan
from allocations.ledger.own import request_of
from allocations.models import Allocation, PodRefusal
from allocations.selectors import granted
from audit.models import Event
from claims.dialects.ignored import sentences
from claims.lookup import ClaimFinder
from claims.models import GpuClaim

NODES_TOLD = 100
"""Nodes told one by one; reasons are counted over all."""
EVENTS_TOLD = 50
PODS_TOLD = 100
KEPT = "devices that could serve it are kept for pods for which less important ones were evicted"


def pod_explain(namespace: str, name: str, actor: Actor) -> dict[str, Any]:
    """Everything known about the newest pod of that name. Raises NotFound where the actor sees none."""
    if not actor.sees(namespace):
        raise NotFound(f"no pod {namespace}/{name} is known")
    allocation = (
        Allocation.objects.filter(namespace=namespace, pod_name=name)
        .select_related("node")
        .prefetch_related(granted())
        .order_by("-created_at")
        .first()
    )
    refusal = PodRefusal.objects.filter(namespace=namespace, pod_name=name).order_by("-last_at").first()
    if allocation is not None and (
        allocation.state in LIVE or refusal is None or refusal.last_at < allocation.created_at
    ):
        told = _allocation_told(allocation)
        if allocation.state in LIVE and not allocation.explanation:
            told["reasons"] = _reasons(_others_lose(allocation))
    elif refusal is not None:
        look = fleet.look()
        told = _refusal_told(refusal, look)
        _tell_devices(told, refusal, look.picture)
    else:
        raise NotFound(f"no pod {namespace}/{name} is known")
    return {**told, "timeline": _timeline(Event.objects.filter(namespace=namespace, name=name))}


def claim_explain(namespace: str, name: str, actor: Actor) -> dict[str, Any]:
    """Who holds devices through the claim, and which of its pods wait, and why. Raises NotFound."""
    claim = GpuClaim.objects.filter(namespace=namespace, name=name).first() if actor.sees(namespace) else None
    if claim is None:
        raise NotFound(f"no GpuClaim {namespace}/{name}")
    live = Allocation.objects.filter(namespace=namespace, claim_name=name, state__in=LIVE)
    holding = live.filter(pod_uid=OuterRef("pod_uid"))
    waiting = PodRefusal.objects.filter(~Exists(holding), namespace=namespace, claim_name=name)
    newest = live.select_related("node").prefetch_related(granted()).order_by("-created_at")
    pods = [_allocation_told(allocation) for allocation in newest[:PODS_TOLD]]
    refusals = list(waiting.order_by("-last_at")[:PODS_TOLD])
    if refusals:
        look = fleet.look()
        pods += [_refusal_told(refusal, look) for refusal in refusals]
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
        "nodes": [],
        "device_reasons": [],
    }


def _refusal_told(refusal: PodRefusal, look: fleet.Look) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    reasons, summary = refusal.reasons, refusal.summary
    if refusal.request is not None:
        request = with_settings(request_of(refusal.request))
        decision, kept = plan(look.picture, request), look.kept_from(refusal.pod_uid, None)
        if decision.node is None:
            summary = decision.summary
            reasons = decision.counts()
            nodes = [
                {"node": node, "reason": reason.text, "resolvable": reason.resolvable}
                for node, reason in islice(decision.refused(), NODES_TOLD)
            ]
        elif kept and plan(look.picture, request, blocked=kept).node is None:
            reasons, summary = {}, KEPT
        else:
            reasons, summary = {}, f"{decision.node} can serve it now; the scheduler has not asked again yet"
    elif refusal.rule == "claim-missing" and ClaimFinder()(refusal.namespace, refusal.claim_name) is not None:
        reasons, summary = {}, f"GpuClaim {refusal.claim_name} exists now; the scheduler has not asked again yet"
    return {
        "pod": refusal.pod_name,
        "namespace": refusal.namespace,
        "uid": refusal.pod_uid,
        "allocation": None,
        "claim": refusal.claim_name,
        "state": "pending",
        "node": None,
        "devices": [],
        "summary": summary,
        "reasons": _reasons(reasons),
        "warnings": _warnings(refusal.request),
        "nodes": nodes,
        "device_reasons": [],
    }


def _warnings(request: Mapping[str, Any] | None) -> list[str]:
    """What the pod has that the engine does not look at, in the words of admission."""
    return sentences((request or {}).get("ignored", ()))


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


def _tell_devices(told: dict[str, Any], refusal: PodRefusal, picture: Picture) -> None:
    """Add to each node told why each of its devices cannot serve, and of how many in the fleet that is so."""
    if refusal.request is None or not told["nodes"]:
        return
    request = with_settings(request_of(refusal.request))
    for node in told["nodes"]:
        verdicts = explain_devices(picture, request, picture.node_index[node["node"]])
        node["devices"] = [verdict._asdict() for verdict in verdicts]
    told["device_reasons"] = [
        {"reason": reason, "devices": count} for reason, count in count_devices(picture, request).items()
    ]


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
