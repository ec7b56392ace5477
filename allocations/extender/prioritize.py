"""prioritize: scores 0–10 for the nodes that passed, in the engine's order (CLAIM-4).

In decisive mode one node passed and gets 10. In advisory mode the score is the node's place in the engine's order, so
kube-scheduler's choice follows it.
"""

from __future__ import annotations

import orjson

from allocations import fleet, ledger
from allocations.choices import State
from allocations.engine.plan import feasible, plan
from allocations.extender.pod_filter import candidates_of
from allocations.extender.wire import FilterRequest
from allocations.pod_request import PodRequest, parse_pod_request

HIGHEST = 10


def prioritize_pod(request: FilterRequest) -> bytes:
    """The HostPriorityList: a bare array of Host and Score."""
    scores = _scores(request)
    return orjson.dumps([{"Host": name, "Score": scores.get(name, 0)} for name in request.names])


def _scores(request: FilterRequest) -> dict[str, int]:
    """Node → score; nodes left out get 0."""
    pod = request.pod
    pod_request = None if pod is None else parse_pod_request(pod)
    if pod is None or not isinstance(pod_request, PodRequest):
        return {}
    look = fleet.current()
    snapshot = look.snapshot
    own = ledger.read_pod_allocation(pod.metadata.uid, look.now)
    if own.live is not None and own.live.state is not State.RELEASING:
        return {own.live.node: HIGHEST}
    decision = plan(
        snapshot,
        pod_request.request,
        candidates=candidates_of(snapshot, request.names).rows,
        last=[snapshot.node_index[name] for name in own.shunned if name in snapshot.node_index],
        blocked=look.blocked(pod.metadata.uid, pod_request.rank, pod_request.request),
        verdicts_up_to=0,
    )
    return {name: round(HIGHEST * score) for name, score in feasible(decision, snapshot)}
