"""What the scaling page shows: requests with their nodes as timelines, pools, and how long nodes took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.models import Count

from access.actors import Actor
from access.choices import Role
from allocations.models import Allocation
from autoscaling import shapes
from autoscaling.choices import ACTIVE, RequestState, Step, TriggerState
from autoscaling.models import NodeClaim, Pool, ScalingRequest, Trigger
from autoscaling.pools import most_of
from autoscaling.selectors import STEP_TEXTS, pods_of_requests, pool_list, request_list

REQUESTS_SHOWN: Final = 20
PODS_SHOWN: Final = 5
NODES_SHOWN: Final = 20
CLAIMS_DRAWN: Final = 500
GONE_TEXT: Final = "it had its devices; Karpenter has taken the node away again"
_TONES: Final = {
    RequestState.SERVED: "ok",
    RequestState.FAILED: "bad",
    RequestState.CANCELLED: "quiet",
}


class StepShown(NamedTuple):
    """A step of a timeline. `tone`: done, now (what is waited for), failed, empty for later ones; `seconds`: since the
    first step, of the present one till now; None for one that is not reached.
    """

    label: str
    tone: str
    seconds: float | None


class NodeShown(NamedTuple):
    """A node that is wanted."""

    name: str
    gpus: int
    text: str
    steps: tuple[StepShown, ...]


class RequestShown(NamedTuple):
    """A scaling request. `reason`: where no node says it; `more`: pods that are not named."""

    request: ScalingRequest
    tone: str
    reason: str
    pods: tuple[str, ...]
    more: int
    nodes: tuple[NodeShown, ...]
    may_cancel: bool


class PoolShown(NamedTuple):
    """A pool. `nodes`: that there are, or are being made; `left`: that may still be made, None for any number."""

    pool: Pool
    nodes: int
    gpus: int
    model: str
    source: str
    left: int | None
    problem: str


def requests_shown(actor: Actor, *, now: datetime) -> list[RequestShown]:
    """The newest requests."""
    rows = list(request_list()[:REQUESTS_SHOWN])
    waiting = _pods(rows)
    triggers = {row.pk: list(row.triggers.all()) for row in rows}
    names = [one.node_claim for some in triggers.values() for one in some if one.node_claim]
    claims = {claim.name: claim for claim in NodeClaim.objects.filter(name__in=names).order_by("pk")}
    found = []
    for row in rows:
        pods = waiting.get(row.pk, [])
        named = [f"{namespace}/{name}" for namespace, name in pods if actor.sees(namespace)][:PODS_SHOWN]
        some = [one for one in triggers[row.pk] if one.state != TriggerState.WITHDRAWN or row.state not in ACTIVE]
        nodes = tuple(_node(one, claims.get(one.node_claim), now) for one in some[:NODES_SHOWN])
        said = row.reason in {one.reason for one in some[:NODES_SHOWN]}
        found.append(
            RequestShown(
                row,
                _TONES.get(RequestState(row.state), "info"),
                "" if said else row.reason,
                tuple(named),
                len(pods) - len(named),
                nodes,
                row.state in ACTIVE and actor.role != Role.VIEWER,
            )
        )
    return found


def _pods(rows: Sequence[ScalingRequest]) -> Mapping[int, list[tuple[str, str]]]:
    """Number of a request → (namespace, name) of its pods: those that wait, then those that were bound since."""
    found = {pk: list(pods) for pk, pods in pods_of_requests(rows).items()}
    requests_of: dict[str, set[int]] = {}
    for row in rows:
        for uid in {uid for trigger in row.triggers.all() for uid in trigger.pods}:
            requests_of.setdefault(uid, set()).add(row.pk)
    bound = Allocation.objects.filter(pod_uid__in=list(requests_of)).order_by("namespace", "pod_name")
    for uid, namespace, name in bound.values_list("pod_uid", "namespace", "pod_name").distinct():
        for pk in requests_of[uid]:
            pods = found.setdefault(pk, [])
            if (namespace, name) not in pods:
                pods.append((namespace, name))
    return found


def _node(trigger: Trigger, claim: NodeClaim | None, now: datetime) -> NodeShown:
    began, state = trigger.created_at, TriggerState(trigger.state)
    gone = claim.deleted_at if claim is not None and state == TriggerState.SERVED else None
    reached = [("Trigger pod", began)]
    reached += [(step.label, getattr(claim, f"{step.value}_at", None)) for step in Step]
    if gone is not None:
        reached.append(("Gone again", gone))
    steps = []
    next_tone = {TriggerState.FAILED: "failed", TriggerState.WITHDRAWN: ""}.get(state, "now")
    for label, at in reached:
        if at is not None:
            steps.append(StepShown(label, "done", _since(began, at)))
        else:
            steps.append(StepShown(label, next_tone, _since(began, now) if next_tone == "now" else None))
            next_tone = ""
    text = GONE_TEXT if gone is not None else trigger.reason or STEP_TEXTS[state]
    if trigger.said and state == TriggerState.CREATED and not trigger.node_claim:
        text = f"{text} ({trigger.said})"
    named = trigger.node or trigger.node_claim or trigger.name
    return NodeShown(trigger.name, trigger.gpus, f"{named}: {text}", tuple(steps))


def _since(began: datetime | None, at: datetime) -> float | None:
    """Seconds; clocks of the API server and of the database differ, and the former counts whole seconds."""
    return max((at - began).total_seconds(), 0.0) if began is not None else None


def pools_shown() -> list[PoolShown]:
    """Every pool."""
    found = []
    made = NodeClaim.objects.filter(deleted_at__isnull=True).values_list("pool").annotate(Count("pk")).order_by()
    nodes = dict(made)
    for pool in pool_list():
        shape = pool.shape
        found.append(
            PoolShown(
                pool,
                nodes.get(pool.name, 0),
                shapes.gpus_of(shape) if shape else 0,
                shapes.model_of(shape) if shape else "",
                pool.source.label,
                most_of(pool, coming=0),
                pool.problem or pool.closed or ("" if shape else "nobody says what its nodes have"),
            )
        )
    return found


def provision_times() -> Mapping[str, Any]:
    """`times` (seconds since 1970), and by pool the seconds of each node until its inventory, null elsewhere."""
    rows: Sequence[NodeClaim] = list(
        reversed(NodeClaim.objects.filter(inventory_at__isnull=False).order_by("-created_at", "-pk")[:CLAIMS_DRAWN])
    )
    pools: dict[str, list[float | None]] = {name: [None] * len(rows) for name in sorted({row.pool for row in rows})}
    for at, row in enumerate(rows):
        if row.inventory_at is not None:
            pools[row.pool][at] = max((row.inventory_at - row.created_at).total_seconds(), 0)
    return {"times": [row.created_at.timestamp() for row in rows], "pools": pools}
