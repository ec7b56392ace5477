"""filter: decide, and hold what was decided, so that the next pod sees it.

Steps: read the pod's request, place it (`allocations.scheduling.placement`), answer; or refuse, and have less important
pods evicted (`allocations.scheduling.preemption`). Invariants: a pod that is reserved or bound is answered with its
node and nothing changes; a nominated pod is not refused once its victims have gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

import numpy as np
from django.conf import settings
from numpy.typing import NDArray

from allocations import fleet, ledger
from allocations.backends import backends
from allocations.choices import State
from allocations.engine.decision import Reason, Verdicts
from allocations.engine.plan import verdicts_of
from allocations.engine.reasons import summary_text
from allocations.engine.snapshot import Snapshot
from allocations.extender.advised import record_asks
from allocations.extender.reasons import BEING_UNDONE, ELSEWHERE, NOT_REGISTERED, RACING, malformed
from allocations.extender.wire import FilterRequest
from allocations.models import Allocation
from allocations.pod_request import Malformed, PodRequest, pod_request
from allocations.scheduling import preemption
from allocations.scheduling.placement import (
    Advised,
    AlreadyAllocated,
    LostEveryRace,
    NotAdmitted,
    Placed,
    PlacementRequest,
    Unplaced,
    place,
)
from allocations.scheduling.queueing.candidates import admitted_candidates
from allocations.scheduling.release_ended import release_finished
from allocations.scheduling.unbound import hold_seconds
from allocations.waiting import QUEUED, queued_reason, refusal_note
from claims.dialects.request import Refusal
from claims.membership import queues_admit
from kube.keys import CLAIM
from kube.objects import Pod
from storage.clock import database_now


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Names of the nodes that `passed`; node → reason for others. `kinds`: the sorts of reasons of a refusal."""

    passed: Sequence[str]
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    kinds: Sequence[str] = ()


def filter_pod(request: FilterRequest) -> FilterResult:
    """Which of the request's nodes the pod may use."""
    pod, names = request.pod, request.names
    if pod is None:
        return refused(names, malformed(request.pod_problem))
    match pod_request(pod):
        case None:
            return FilterResult(names)
        case Malformed(problem):
            return refused(names, malformed(problem))
        case PodRequest() as asks:
            queued = queues_admit(asks.membership, pod.metadata.namespace)
            return _Filter(names, pod, asks, queued=queued).result()
        case Refusal() as refusal:
            return _refused_by_rule(names, pod, refusal)


def refused(names: Sequence[str], reason: Reason) -> FilterResult:
    """Every node refused for this reason."""
    nodes = dict.fromkeys(names, reason.text)
    return FilterResult((), nodes if reason.resolvable else {}, {} if reason.resolvable else nodes, [reason.kind])


@dataclass(frozen=True, slots=True)
class Candidates:
    """`rows`: node rows, ascending, None for every node of the snapshot; `unknown`: names that it does not have."""

    rows: NDArray[np.int32] | None
    unknown: Sequence[str]


def candidates_of(snapshot: Snapshot, names: Sequence[str]) -> Candidates:
    """The snapshot's rows of these nodes."""
    rows = np.fromiter(map(snapshot.node_index.get, names, repeat(-1)), dtype=np.int32, count=len(names))
    unknown = np.flatnonzero(rows < 0)
    chosen = np.zeros(len(snapshot.node_names), dtype=np.bool_)
    chosen[np.delete(rows, unknown) if len(unknown) else rows] = True
    found = None if chosen.all() else np.flatnonzero(chosen).astype(np.int32)
    return Candidates(rows=found, unknown=[names[position] for position in unknown.tolist()])


class _Filter:
    """The filter of one pod."""

    def __init__(self, names: Sequence[str], pod: Pod, asks: PodRequest, *, queued: bool) -> None:
        """`queued`: the queues admit the pod."""
        self.names = names
        self.pod = pod
        self.asks = asks
        self.queued = queued
        self._candidates = Candidates(rows=None, unknown=())

    def result(self) -> FilterResult:
        """Place the pod."""
        meta = self.pod.metadata
        holder = ledger.pod_holder(meta.namespace, meta.name, meta.uid)
        outcome = place(
            PlacementRequest(holder, self.asks, partial(hold_seconds, self.asks), queued=self.queued),
            self._rows,
            once_more=self._victims_gone,
            holds=self.queued or settings.GPUPLANE_EXTENDER_MODE != "advisory",
        )
        match outcome:
            case Placed(decision=decision):
                # reasons of other nodes only where they were cheap; explain has them all
                failed = ({}, {}) if decision.verdicts is None else self._failed(decision.verdicts)
                return FilterResult([str(decision.node)], *failed)
            case Advised(decision=decision, look=look):
                if backends().cluster is None:
                    record_asks(meta.uid, self.asks, look.now)
                verdicts = verdicts_of(decision, look.snapshot)
                return FilterResult(verdicts.serving(), *self._failed(verdicts))
            case AlreadyAllocated(live=live) if live.state is State.RELEASING:
                return refused(self.names, BEING_UNDONE)
            case AlreadyAllocated(live=live) if live.node in self.names:
                return FilterResult([live.node])
            case AlreadyAllocated():
                return refused(self.names, ELSEWHERE)
            case Unplaced():
                return self._refuse(outcome)
            case NotAdmitted():
                return self._wait_in_queue()
            case LostEveryRace():
                return refused(self.names, RACING)

    def _rows(self, snapshot: Snapshot) -> NDArray[np.int32] | None:
        self._candidates = candidates_of(snapshot, self.names)
        return self._admitted_rows(snapshot) if self.queued else self._candidates.rows

    def _admitted_rows(self, snapshot: Snapshot) -> NDArray[np.int32]:
        meta, rows = self.pod.metadata, self._candidates.rows
        held = Allocation.objects.filter(pod_uid=meta.uid, state=State.HELD).values_list("node__name", flat=True)
        able = admitted_candidates(
            snapshot,
            range(len(snapshot.node_names)) if rows is None else rows.tolist(),
            held=held.first() or "",
            membership=self.asks.membership,
            namespace=meta.namespace,
        )
        return np.asarray(able, dtype=np.int32)

    def _wait_in_queue(self) -> FilterResult:
        """Refuse, for as long as the queues have not admitted the pod, with the reason of its workload."""
        reason = queued_reason(self.pod, database_now())
        return refused(self.names, Reason(reason, resolvable=False, kind=QUEUED))

    def _victims_gone(self, look: fleet.FleetSnapshot) -> bool:
        """Whether devices came back just now on the node for which others were evicted for this pod."""
        node = self.pod.status.nominated_node_name
        return bool(node and node in look.snapshot.node_index and release_finished(node=node, now=look.now).released)

    def _failed(self, verdicts: Verdicts) -> tuple[dict[str, str], dict[str, str]]:
        """(FailedNodes, FailedAndUnresolvableNodes): node → reason."""
        failed: dict[str, str] = {}
        unresolvable = dict.fromkeys(self._candidates.unknown, NOT_REGISTERED.text)
        for name, reason in verdicts.refused():
            (failed if reason.resolvable else unresolvable)[name] = reason.text
        return failed, unresolvable

    def _refuse(self, outcome: Unplaced) -> FilterResult:
        look, unknown = outcome.look, self._candidates.unknown
        verdicts = verdicts_of(outcome.decision, look.snapshot)
        reasons = verdicts.counts()
        if unknown:
            reasons[NOT_REGISTERED.text] = len(unknown)
        refusal_note(
            pod=self.pod,
            claim_name=self.asks.request.claim,
            request=self.asks.request,
            rule="",
            summary=summary_text(len(self.names), reasons.items()),
            reasons=reasons,
            now=look.now,
        )
        failed, unresolvable = self._failed(verdicts)
        preemptor = preemption.Preemptor.of(self.pod, self.asks, outcome.own.live)
        if failed and preemptor is not None:
            rows = self._candidates.rows
            nodes = None if rows is None else set(rows.tolist())
            preemption.begin(preemptor, snapshot=look.snapshot, nodes=nodes, now=look.now)
        return FilterResult((), failed, unresolvable, [*verdicts.kinds(), *([NOT_REGISTERED.kind] if unknown else [])])


def _refused_by_rule(names: Sequence[str], pod: Pod, refusal: Refusal) -> FilterResult:
    named = pod.annotations.get(CLAIM, "")
    refusal_note(
        pod=pod,
        claim_name=named if named.isprintable() else "",
        request=None,
        rule=refusal.rule,
        summary=refusal.reason,
        reasons={refusal.reason: len(names)},
        now=database_now(),
    )
    return refused(names, Reason(refusal.reason, resolvable=False, kind=refusal.rule))
