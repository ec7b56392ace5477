"""filter: decide, and hold what was decided, so that the next pod sees it (DESIGN §2, Filter decides).

Steps: read the pod's request → its own live allocation → the fleet's picture → the engine decides →
the ledger holds → answer; or it refuses, and less important pods may have to make way (`allocations.making_way`). Kept true: a pod that holds devices for good is answered with its node and
nothing changes; a refusal is never given from a picture older than the request, nor while an expired
hold could make room, nor for a promise that has ended, nor a nominated pod while its victims have gone; losing a race to another replica means reading again and deciding again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat

import numpy as np
from django.conf import settings
from numpy.typing import NDArray

from allocations import fleet, ledger, making_way
from allocations.asking import Asks, pod_asks
from allocations.choices import State
from allocations.collection import expire_holds, lapsed_drop
from allocations.ended import settle_ended
from allocations.engine.decision import Decision
from allocations.engine.picture import Picture
from allocations.engine.plan import plan
from allocations.engine.reasons import summary_text
from allocations.errors import LostRace, MovedOn, PodHasOne
from allocations.extender import counters
from allocations.extender.advised import asks_note
from allocations.extender.identity import pod_problem
from allocations.extender.reasons import BEING_UNDONE, ELSEWHERE, NOT_REGISTERED, RACING
from allocations.extender.wire import Asked, unreadable_answer
from allocations.ledger.hold import EXPLAINED_UP_TO
from allocations.outside import outside
from allocations.refusals import refusal_note
from allocations.unbound import hold_seconds
from audit.clock import database_now
from claims.dialects import asks_for_devices
from claims.dialects.request import Refusal
from kube.keys import CLAIM
from kube.objects import Pod

ATTEMPTS = 12
"""Lost races before the pod is sent back to the queue."""


def filter_pod(asked: Asked) -> bytes:
    """The ExtenderFilterResult for one ExtenderArgs."""
    pod = asked.pod
    if pod is None:
        counters.refused([counters.MALFORMED])
        return asked.refuse(asked.pod_problem) if asked.names else unreadable_answer(b"", asked.pod_problem)
    problem = pod_problem(pod)
    if problem:
        if not asks_for_devices(pod):
            return asked.answer(asked.names, {}, {})
        counters.refused([counters.MALFORMED])
        return asked.refuse(problem)
    asks = pod_asks(pod)
    if asks is None:
        return asked.answer(asked.names, {}, {})
    if isinstance(asks, Refusal):
        return _refused_by_rule(asked, pod, asks)
    return _Filter(asked, pod, asks).answer()


@dataclass(frozen=True, slots=True)
class Candidates:
    """Node rows asked about, ascending; `rows` None means every node of the picture. `unknown`: names it does not have."""

    rows: NDArray[np.int32] | None
    unknown: Sequence[str]


def candidates_of(picture: Picture, names: Sequence[str]) -> Candidates:
    """Which rows of the picture the names are."""
    rows = np.fromiter(map(picture.node_index.get, names, repeat(-1)), dtype=np.int32, count=len(names))
    strange = np.flatnonzero(rows < 0)
    asked = np.zeros(len(picture.node_names), dtype=np.bool_)
    asked[np.delete(rows, strange) if len(strange) else rows] = True
    known = None if asked.all() else np.flatnonzero(asked).astype(np.int32)
    return Candidates(rows=known, unknown=[names[place] for place in strange.tolist()])


class _Filter:
    """One pod's way from question to answer."""

    def __init__(self, asked: Asked, pod: Pod, asks: Asks) -> None:
        self.asked = asked
        self.pod = pod
        self.asks = asks
        self.holder = ledger.pod_holder(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        self._seconds: int | None = None

    def answer(self) -> bytes:
        """Decide, hold, answer; again when a race was lost."""
        dropped = settled = False
        blocked: set[int] = set()
        for attempt in range(ATTEMPTS):
            look = fleet.look()
            picture, now = look.picture, look.now
            kept = look.kept_from(self.pod.metadata.uid, self.asks.rank)
            own = ledger.read_own(self.pod.metadata.uid, now)
            if own.live is not None and own.live.state is not State.HELD:
                return self._already(own.live)
            if own.live is not None and own.live.lapsed(now):
                lapsed_drop(own.live.id, now)  # its node now ranks last
                continue
            candidates = candidates_of(picture, self.asked.names)
            decision = self._decide(picture, candidates, own, blocked | kept)
            if decision.node is None:
                if not dropped and expire_holds(now):
                    dropped = True
                    continue
                if not settled and self._nominated_to_what_ended(picture, now):
                    settled = True
                    continue
                return self._refuse(decision, candidates, picture, own, now)
            if settings.GPUPLANE_EXTENDER_MODE == "advisory":
                if outside().cluster is None:
                    asks_note(self.pod.metadata.uid, self.asks, now)
                return self._advise(decision, candidates)
            try:
                ledger.hold(
                    holder=self.holder,
                    request=self.asks.request,
                    decision=decision,
                    claim_id=self.asks.claim_id,
                    previous=own.live,
                    now=now,
                    hold_seconds=self._hold_seconds(),
                    priority=self.asks.priority,
                    rank=self.asks.rank,
                    confined=self.asks.confined or decision.by_kubelet,
                    attempt=self.asks.attempt,
                )
            except LostRace as lost:
                if attempt >= ATTEMPTS // 2:
                    blocked.update(lost.device_ids)
            except (MovedOn, PodHasOne):
                continue
            else:
                return self._chosen(decision, candidates)
        counters.refused([counters.RACING])
        return self.asked.refuse(RACING, resolvable=True)

    def _hold_seconds(self) -> int:
        """How long a hold lasts; what it takes from the API server is read once a filter, and for few pods."""
        if self._seconds is None:
            self._seconds = hold_seconds(self.asks)
        return self._seconds

    def _nominated_to_what_ended(self, picture: Picture, now: datetime) -> bool:
        """Whether devices came back, at this look, on the node for which others were evicted for this pod."""
        node = self.pod.status.nominated_node_name
        return bool(node and node in picture.node_index and settle_ended(node=node, now=now).released)

    def _decide(self, picture: Picture, candidates: Candidates, own: ledger.Own, blocked: set[int]) -> Decision:
        last = [picture.node_index[name] for name in own.shunned if name in picture.node_index]
        return plan(
            picture,
            self.asks.request,
            candidates=candidates.rows,
            own=None if own.live is None else own.live.amounts,
            last=last,
            blocked=blocked,
        )

    def _already(self, live: ledger.Live) -> bytes:
        if live.state is State.RELEASING:
            counters.refused([counters.BEING_UNDONE])
            return self.asked.refuse(BEING_UNDONE)  # no other pod's end would help
        if live.node in self.asked.names:
            return self.asked.answer([live.node], {}, {})
        counters.refused([counters.ELSEWHERE])
        return self.asked.refuse(ELSEWHERE)

    def _chosen(self, decision: Decision, candidates: Candidates) -> bytes:
        """The one node; why others lost goes along while that is cheap, else explain tells."""
        if len(decision.candidates) > EXPLAINED_UP_TO:
            return self.asked.answer([str(decision.node)], {}, {})
        failed, unresolvable = refused_nodes(decision, candidates)
        return self.asked.answer([str(decision.node)], failed, unresolvable)

    def _advise(self, decision: Decision, candidates: Candidates) -> bytes:
        failed, unresolvable = refused_nodes(decision, candidates)
        return self.asked.answer([name for name, _ in decision.feasible()], failed, unresolvable)

    def _refuse(
        self, decision: Decision, candidates: Candidates, picture: Picture, own: ledger.Own, now: datetime
    ) -> bytes:
        failed, unresolvable = refused_nodes(decision, candidates)
        reasons = decision.counts()
        if candidates.unknown:
            reasons[NOT_REGISTERED] = len(candidates.unknown)
        counters.refused([*decision.kinds(), *([counters.NOT_REGISTERED] if candidates.unknown else [])])
        refusal_note(
            pod=self.pod,
            claim_name=self.asks.request.claim,
            request=self.asks.request,
            rule="",
            summary=summary_text(len(self.asked.names), reasons.items()),
            reasons=reasons,
            now=now,
        )
        if failed:
            self._make_way(candidates, picture, own, now)
        return self.asked.answer([], failed, unresolvable)

    def _make_way(self, candidates: Candidates, picture: Picture, own: ledger.Own, now: datetime) -> None:
        """Others may have to go: kube-scheduler finds out by a node that makes way."""
        making_way.begin(
            pod=self.pod,
            priority=self.asks.priority,
            request=self.asks.request,
            picture=picture,
            nodes=None if candidates.rows is None else set(candidates.rows.tolist()),
            own=None if own.live is None else own.live.amounts,
            now=now,
        )


def refused_nodes(decision: Decision, candidates: Candidates) -> tuple[dict[str, str], dict[str, str]]:
    """(FailedNodes, FailedAndUnresolvableNodes): node → reason."""
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = dict.fromkeys(candidates.unknown, NOT_REGISTERED)
    for name, reason in decision.refused():
        (failed if reason.resolvable else unresolvable)[name] = reason.text
    return failed, unresolvable


def _refused_by_rule(asked: Asked, pod: Pod, refusal: Refusal) -> bytes:
    named = pod.annotations.get(CLAIM, "")
    counters.refused([refusal.rule])
    refusal_note(
        pod=pod,
        claim_name=named if named.isprintable() else "",
        request=None,
        rule=refusal.rule,
        summary=refusal.reason,
        reasons={refusal.reason: len(asked.names)},
        now=database_now(),
    )
    return asked.refuse(refusal.reason)
