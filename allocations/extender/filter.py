"""filter: decide, and hold what was decided, so that the next pod sees it.

Called by the extender's views. A pod that asks for no devices passes everywhere; the others are placed
(`allocations.extender.pod_filter`), or refused for the rule that they break.
"""

from __future__ import annotations

from allocations.extender.filter_result import FilterResult, refused
from allocations.extender.pod_filter import PodFilter, refused_by_rule
from allocations.extender.reasons import malformed
from allocations.extender.wire import FilterRequest
from allocations.pod_request import Malformed, PodRequest, parse_pod_request
from allocations.scheduling.planning_input import WithClaim
from claims.dialects.request import Refusal
from claims.lookup import ClaimFinder


def filter_pod(request: FilterRequest) -> FilterResult:
    """Which of the request's nodes the pod may use."""
    pod, names = request.pod, request.names
    if pod is None:
        return refused(names, malformed(request.pod_problem))
    first = WithClaim(pod.metadata.uid)
    match parse_pod_request(pod, ClaimFinder(first.rows)):
        case None:
            return FilterResult(names)
        case Malformed(problem):
            return refused(names, malformed(problem))
        case PodRequest() as pod_request:
            return PodFilter(names, pod, pod_request, first).result()
        case Refusal() as refusal:
            return refused_by_rule(names, pod, refusal)
