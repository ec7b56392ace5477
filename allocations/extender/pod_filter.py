"""The filter of one pod that asks for devices: place it, and answer.

Called by `allocations.extender.filter`. Where the pod cannot be placed, less important pods are evicted for it
(`allocations.scheduling.preemption`). Invariants: a pod that is reserved or bound is answered with its node and nothing
changes; a nominated pod is not refused once its victims have gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import numpy as np
from django.conf import settings
from numpy.typing import NDArray

from allocations import fleet, ledger
from allocations.backed_off_nodes import refusals
from allocations.backends import current_backends
from allocations.choices import State
from allocations.engine.decision import Reason, Verdicts
from allocations.engine.plan import verdicts_of
from allocations.engine.reasons import summary_text
from allocations.engine.snapshot import Snapshot
from allocations.extender.advised import record_request
from allocations.extender.filter_result import FilterResult, refused
from allocations.extender.reasons import BEING_UNDONE, ELSEWHERE, NOT_REGISTERED, RACING
from allocations.pod_request import PodRequest
from allocations.scheduling import preemption
from allocations.scheduling.hold_duration import hold_seconds
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
from allocations.scheduling.planning_input import WithClaim
from allocations.scheduling.queueing.candidates import admitted_candidates
from allocations.scheduling.release_ended import release_finished
from allocations.waiting import QUEUED, note_waiting, queued_reason, refusal_note
from claims.dialects.request import Refusal
from kube.keys import CLAIM
from kube.objects import Pod
from storage.clock import database_now


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


class PodFilter:
    """The filter of one pod. `first`: has what was read with its claim."""

    def __init__(self, names: Sequence[str], pod: Pod, pod_request: PodRequest, first: WithClaim) -> None:
        self.names = names
        self.pod = pod
        self.pod_request = pod_request
        self._first = first
        self._candidates = Candidates(rows=None, unknown=())

    def result(self) -> FilterResult:
        """Place the pod."""
        meta = self.pod.metadata
        holder = ledger.pod_holder(meta.namespace, meta.name, meta.uid)
        outcome = place(
            PlacementRequest(
                holder,
                self.pod_request,
                partial(hold_seconds, self.pod_request),
                first=self._first.take,
                offered=self.names,
            ),
            self._rows,
            once_more=self._victims_gone,
            holds=settings.GPUPLANE_EXTENDER_MODE != "advisory",
        )
        match outcome:
            case Placed(decision=decision):
                # reasons of other nodes only where they were cheap; explain has them all
                failed = ({}, {}) if decision.verdicts is None else self._failed(decision.verdicts)
                return FilterResult([str(decision.node)], *failed)
            case Advised(decision=decision, look=look):
                if current_backends().cluster is None:
                    record_request(meta.uid, self.pod_request, look.now)
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
            case NotAdmitted(changed=changed):
                return self._wait_in_queue(changed=changed)
            case LostEveryRace():
                return refused(self.names, RACING)

    def _rows(self, snapshot: Snapshot, admitted: ledger.Live | None) -> NDArray[np.int32] | None:
        self._candidates = candidates_of(snapshot, self.names)
        rows = self._candidates.rows
        if admitted is None:
            return rows
        able = admitted_candidates(
            snapshot,
            range(len(snapshot.node_names)) if rows is None else rows.tolist(),
            held=admitted.node,
            membership=self.pod_request.membership,
            namespace=self.pod.metadata.namespace,
        )
        return np.asarray(able, dtype=np.int32)

    def _wait_in_queue(self, *, changed: bool) -> FilterResult:
        """Refuse, for as long as the queues have not admitted the pod, with the reason of its workload."""
        now = database_now()
        if changed:
            note_waiting([self.pod], now)
        reason = queued_reason(self.pod, now)
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
        verdicts = refusals(outcome.decision, look)
        reasons = verdicts.counts()
        if unknown:
            reasons[NOT_REGISTERED.text] = len(unknown)
        refusal_note(
            pod=self.pod,
            claim_name=self.pod_request.request.claim,
            request=self.pod_request.request,
            rule="",
            summary=summary_text(len(self.names), reasons.items()),
            reasons=reasons,
            now=look.now,
        )
        failed, unresolvable = self._failed(verdicts)
        preemptor = preemption.Preemptor.of(self.pod, self.pod_request, outcome.own.live)
        if failed and preemptor is not None:
            rows = self._candidates.rows
            nodes = None if rows is None else set(rows.tolist())
            preemption.begin(preemptor, snapshot=look.snapshot, nodes=nodes, now=look.now)
        return FilterResult((), failed, unresolvable, [*verdicts.kinds(), *([NOT_REGISTERED.kind] if unknown else [])])


def refused_by_rule(names: Sequence[str], pod: Pod, refusal: Refusal) -> FilterResult:
    """Refuse the pod for a rule of its dialect."""
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
