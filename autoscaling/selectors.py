"""Reads of growth, for REST, pages, explain and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.db.models import Prefetch, QuerySet

from access.errors import NotFound
from autoscaling.choices import TriggerState
from autoscaling.models import NodeClaim, PodGrowth, Pool, ScalingRequest, Trigger
from autoscaling.pools import most_of

STEP_TEXTS: Final = {
    TriggerState.WANTED: "its trigger pod is to be made",
    TriggerState.CREATED: "Karpenter has not taken its trigger pod up yet",
    TriggerState.LAUNCHING: "it is being launched",
    TriggerState.REGISTERED: "it is registered, and not ready yet",
    TriggerState.READY: "it is ready, and has not told what it has yet",
    TriggerState.SERVED: "it has its devices",
    TriggerState.FAILED: "it failed",
    TriggerState.WITHDRAWN: "it is no longer wanted",
}


class PodGrowthShown(NamedTuple):
    """What is known of the node that a pod waits for. `node_claim`, `node`: empty where there is none yet."""

    pool: str
    state: str
    text: str
    trigger: str
    node_claim: str
    node: str


def pool_list() -> QuerySet[Pool]:
    """The pools that there are."""
    return Pool.objects.filter(deleted_at__isnull=True)


def pool_get(name: str) -> Pool:
    """One of them. Raises NotFound."""
    row = pool_list().filter(name=name).first()
    if row is None:
        raise NotFound(f"there is no pool {name}")
    return row


def request_list() -> QuerySet[ScalingRequest]:
    """All scaling requests, the newest first, with their triggers (without the pods' manifests)."""
    return ScalingRequest.objects.prefetch_related(Prefetch("triggers", Trigger.objects.defer("manifest")))


def request_get(pk: int) -> ScalingRequest:
    """One of them. Raises NotFound."""
    row = request_list().filter(pk=pk).first()
    if row is None:
        raise NotFound(f"there is no scaling request {pk}")
    return row


def node_claim_list() -> QuerySet[NodeClaim]:
    """All NodeClaims, the newest first."""
    return NodeClaim.objects.all()


def pod_growth(*, namespace: str, name: str) -> PodGrowthShown | None:
    """What growth does for a waiting pod; None where the plan says nothing of it."""
    row = PodGrowth.objects.filter(namespace=namespace, pod_name=name).first()
    if row is None:
        return None
    trigger = Trigger.objects.filter(name=row.trigger).first() if row.trigger else None
    return PodGrowthShown(
        pool=row.pool,
        state=trigger.state if trigger is not None else "",
        text=_text(row, trigger),
        trigger=row.trigger,
        node_claim=trigger.node_claim if trigger is not None else "",
        node=trigger.node if trigger is not None else "",
    )


class GrowthWords(NamedTuple):
    """What is said to a pod. `coming`: a node is made for it."""

    coming: bool
    text: str


def growth_of_pods(uids: Iterable[str]) -> Mapping[str, GrowthWords]:
    """UID → what is said to the pod, for those of these pods that the plan says something of."""
    rows = list(PodGrowth.objects.filter(pod_uid__in=list(uids)))
    texts = growth_texts(rows)
    return {row.pod_uid: GrowthWords(bool(row.pool), texts[row.pod_uid]) for row in rows}


def growth_texts(rows: Iterable[PodGrowth]) -> Mapping[str, str]:
    """UID → what is said to the pod."""
    rows = list(rows)
    triggers = {one.name: one for one in Trigger.objects.filter(name__in={row.trigger for row in rows if row.trigger})}
    return {row.pod_uid: _text(row, triggers.get(row.trigger)) for row in rows}


def _text(row: PodGrowth, trigger: Trigger | None) -> str:
    if not row.pool:
        return f"no node is made for it: {row.reason}"[:500]
    if trigger is None:
        return f"waits for a new node of pool {row.pool}"
    text = f"waits for a new node of pool {row.pool}"
    if trigger.node_claim:
        text += f", NodeClaim {trigger.node_claim}"
    said = f" ({trigger.said})" if trigger.said and not trigger.node_claim else ""
    return f"{text}: {STEP_TEXTS[TriggerState(trigger.state)]}{said}"[:500]


def pods_of_requests(rows: Sequence[ScalingRequest]) -> Mapping[int, list[tuple[str, str]]]:
    """Number of a request → (namespace, name) of the pods that wait for its nodes. `rows`: of `request_list`."""
    triggers = {trigger.name: row.pk for row in rows for trigger in row.triggers.all()}
    found: dict[int, list[tuple[str, str]]] = {}
    said = PodGrowth.objects.filter(trigger__in=list(triggers)).order_by("namespace", "pod_name")
    for trigger, namespace, name in said.values_list("trigger", "namespace", "pod_name"):
        found.setdefault(triggers[trigger], []).append((namespace, name))
    return found


def scenario_pools() -> list[dict[str, Any]]:
    """The pools of known shape, as a scenario has them."""
    found = []
    for pool in pool_list():
        shape = pool.shape
        if shape is None:
            continue
        most = most_of(pool, coming=0)
        entry = {
            "name": pool.name,
            "weight": pool.weight,
            "labels": pool.labels,
            "taints": pool.taints,
            "node": {"devices": shape["devices"], "links": shape["links"]},
        }
        found.append(entry | ({} if most is None else {"max": most}))
    return found
