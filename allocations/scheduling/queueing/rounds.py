"""One round: read the input, decide, and carry the decision out."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from allocations.engine.queueing.rounds import Admission, QueueDecision, decide
from allocations.errors import NewerDecision
from allocations.ledger.queue_fence import raise_fence, read_fence
from allocations.models import PodRefusal, QueueState
from allocations.scheduling.queueing.admission import Admitted, admit, remove_gates, remove_stale_gates
from allocations.scheduling.queueing.evictions import evict, keep_for_takers, open_to
from allocations.scheduling.queueing.gangs import note_admitted, note_reasons, update_gangs
from allocations.scheduling.queueing.round_input import InputReader, RoundInput
from claims.membership import names_no_queue
from claims.queue_tree import DEFAULT, Amount, Name
from kube.client import Cluster
from storage.cursors import write_rows
from storage.enqueue import send_after_commit

PROTECTED: Final = timedelta(seconds=10)
"""So long the plan is made without a pod whose budget forbade its eviction."""

WRITE_EVENTS: Final = "allocations.tasks.write_pending_events"
EVENTS_AFTER_SECONDS: Final = 0.5
"""Seconds from a changed reason to its event."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RoundResult:
    """`again`: something changed in the round, so that the next is to follow at once."""

    admitted: int
    evicted: int
    waiting: int
    again: bool


class Rounds:
    """The rounds of one run of the loop. `cluster` None: REST claims alone, which nobody evicts."""

    def __init__(self, cluster: Cluster | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises the fence, which ends the rounds of any other worker."""
        self._cluster = cluster
        self._clock = clock
        self._events_at = 0.0
        """Before then nothing is sent: what was sent last has not run yet."""
        self._fence = raise_fence()
        self._reader = InputReader()
        self._protected: dict[str, datetime] = {}

    def run(self) -> RoundResult:
        """Run one round. Raises NewerDecision when another worker has raised the fence, or a REST claim came before."""
        self._fence.admissions = read_fence().admissions
        inputs = self._reader.read(self._protected)
        now = inputs.now
        self._protected = {uid: until for uid, until in self._protected.items() if until > now}
        stale = 0
        if self._cluster is not None:
            self._ungate([(row, row.allocation_id) for row in inputs.gated if row.allocation_id is not None], now)
            stale = remove_stale_gates(self._cluster, inputs.outside)
        gangs = update_gangs(self._cluster, inputs, spared=self._protected)
        self._protected |= dict.fromkeys(gangs.stayed, now + PROTECTED)
        inputs = inputs.without_gangs(gangs.undone)
        decided = decide(inputs.decision_input)
        ready, later = _by_workload(inputs, decided)
        open_to(inputs, ready)
        try:
            admitted = admit(inputs, ready, fence=self._fence)
        except NewerDecision:
            if self.is_latest():
                keep_for_takers(inputs, [*ready, *later])  # whose victims may be gone by now
            raise
        note_admitted([row for row, _ in admitted], now)
        self._ungate([(row, id_) for row, id_ in admitted if row.pod.gated], now)
        keep_for_takers(inputs, later)
        protected = evict(self._cluster, inputs, decided.evictions)
        self._protected |= dict.fromkeys(protected, now + PROTECTED)
        if write_reasons(inputs, decided, later):
            self._request_events()
        write_queues(inputs, decided)
        return RoundResult(
            len(admitted),
            len(decided.evictions),
            len(decided.waiting) + len(inputs.problems) + len(later),
            again=bool(admitted or decided.evictions or stale),
        )

    def is_latest(self) -> bool:
        """Whether no other worker has raised the fence."""
        return read_fence().number == self._fence.number

    def _request_events(self) -> None:
        """Have another worker write events that say why pods wait: an event is a request to the API server."""
        now = self._clock()
        if self._cluster is not None and now >= self._events_at:
            self._events_at = now + EVENTS_AFTER_SECONDS
            send_after_commit(WRITE_EVENTS, delay_seconds=EVENTS_AFTER_SECONDS)

    def _ungate(self, rows: Sequence[Admitted], now: datetime) -> None:
        """Remove the gates of these pods, which are admitted."""
        if self._cluster is None or not rows:
            return
        remove_gates(self._cluster, rows, now=now)


def _by_workload(inputs: RoundInput, decided: QueueDecision) -> tuple[list[list[Admission]], list[list[Admission]]]:
    """(workloads that may go now, those that wait for others to go), in the order of the decision."""
    workload_of = {pod: name for name, pods in inputs.members.items() for pod in pods}
    grouped: defaultdict[str, list[Admission]] = defaultdict(list)
    for one in decided.admissions:
        grouped[workload_of[one.pod]].append(one)
    ready = [some for some in grouped.values() if not any(one.waits_for for one in some)]
    return ready, [some for some in grouped.values() if any(one.waits_for for one in some)]


def write_reasons(inputs: RoundInput, decided: QueueDecision, later: Sequence[Sequence[Admission]]) -> bool:
    """Write why each pod waits, where it changed; whether any did."""
    reasons = reasons_of(inputs, decided, later)
    changed = []
    for name, reason in reasons.items():
        row = inputs.waiting[name]
        if row.summary != reason[:500]:
            changed.append(PodRefusal(pk=row.pk, summary=reason[:500], reasons={reason[:500]: 0}, last_at=inputs.now))
    write_rows(changed, ["summary", "reasons", "last_at"])
    by_gang = {row.gang: reasons[name] for name, row in inputs.waiting.items() if row.gang and name in reasons}
    note_reasons(inputs.states, by_gang)
    return bool(changed)


def reasons_of(inputs: RoundInput, decided: QueueDecision, later: Sequence[Sequence[Admission]]) -> Mapping[str, str]:
    """Why each pod waits, by its name."""
    reasons = dict(inputs.problems)
    for workload in later:
        victims = {pod for one in workload for pod in one.waits_for}
        text = f"waits for {len(victims)} pod{'s that are' if len(victims) != 1 else ' that is'} being evicted"
        reasons |= {one.pod: text for one in workload}
    for name, why in decided.waiting.items():
        reason = why.reason if why.decision is None else why.decision.summary
        reasons |= dict.fromkeys(inputs.members[name], reason)
    return {name: _queue_gone(inputs, name) + reason for name, reason in reasons.items()}


def _queue_gone(inputs: RoundInput, name: str) -> str:
    """That the pod is in `default` since the queue of its label is gone; empty where it is not."""
    membership = inputs.waiting[name].pod.pod_request.membership
    if not names_no_queue(membership, inputs.queues):
        return ""
    return f"queue {membership.queue} does not exist, so the pod is in queue {DEFAULT}: "


def write_queues(inputs: RoundInput, decided: QueueDecision) -> None:
    """Write what each queue has and is due, for its status and its page, where it changed."""
    tree = inputs.queues.tree
    if not inputs.queues.stored:
        QueueState.objects.all().delete()
        return
    waiting: defaultdict[str, int] = defaultdict(int)
    for workload in inputs.decision_input.waiting:
        if workload.name in decided.waiting:
            for above in tree.paths[workload.queue]:
                waiting[above] += 1
    there = {row.name: row for row in QueueState.objects.all()}
    for queue in tree.queues.values():
        quotas = [
            {
                "models": list(quota.models),
                "deserved": _number(quota.deserved),
                "limit": None if quota.limit is None else _number(quota.limit),
                "weight": _number(quota.weight),
                "fairShare": _number(decided.shares[Name(queue.name, quota.group)]),
                "allocated": _number(decided.allocated.get(Name(queue.name, quota.group), 0)),
            }
            for quota in queue.quotas
        ]
        before = there.pop(queue.name, None)
        if before is None or (before.quotas, before.waiting) != (quotas, waiting[queue.name]):
            QueueState.objects.update_or_create(
                name=queue.name,
                defaults={"quotas": quotas, "waiting": waiting[queue.name], "decided_at": inputs.now},
            )
    QueueState.objects.filter(name__in=there).delete()


def _number(amount: Amount) -> float:
    """A whole number where it is one."""
    return amount.numerator if amount.denominator == 1 else round(float(amount), 6)
