"""prioritize: scores 0–10 for the nodes that passed, in the engine's order (CLAIM-4).

In decisive mode one node passed and gets 10. In advisory mode the score is the place in the very
order in which the engine would choose, so kube-scheduler's choice follows it.
"""

from __future__ import annotations

import orjson

from allocations import fleet, ledger
from allocations.asking import pod_asks
from allocations.choices import State
from allocations.engine.plan import plan
from allocations.extender.filter import candidates_of
from allocations.extender.identity import pod_problem
from allocations.extender.wire import Asked
from claims.dialects.request import Refusal

HIGHEST = 10


def prioritize_pod(asked: Asked) -> bytes:
    """The HostPriorityList: a bare array of Host and Score."""
    return _list(asked, _scores(asked))


def _scores(asked: Asked) -> dict[str, int]:
    """Node → score; nodes left out get 0."""
    pod = asked.pod
    if pod is None or pod_problem(pod):
        return {}
    asks = pod_asks(pod)
    if asks is None or isinstance(asks, Refusal):
        return {}
    look = fleet.look()
    picture = look.picture
    own = ledger.read_own(pod.metadata.uid, look.now)
    if own.live is not None and own.live.state is not State.RELEASING:
        return {own.live.node: HIGHEST}
    decision = plan(
        picture,
        asks.request,
        candidates=candidates_of(picture, asked.names).rows,
        last=[picture.node_index[name] for name in own.shunned if name in picture.node_index],
        blocked=look.kept_from(pod.metadata.uid, asks.rank),
    )
    return {name: round(HIGHEST * score) for name, score in decision.feasible()}


def _list(asked: Asked, scores: dict[str, int]) -> bytes:
    return orjson.dumps([{"Host": name, "Score": scores.get(name, 0)} for name in asked.names])
