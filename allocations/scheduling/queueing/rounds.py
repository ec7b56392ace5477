"""One round: read the picture, decide, and carry the decision out."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from allocations.engine.queueing.rounds import Admission, Answer, decide
from allocations.ledger.queue_turns import begin_turn, read_fence
from allocations.models import PodRefusal, QueueState
from allocations.scheduling.queueing.admission import Admitted, admit, free_of_gates, take_gates_off
from allocations.scheduling.queueing.evictions import evict, keep_for_takers
from allocations.scheduling.queueing.gangs import follow_gangs, note_admitted, note_reasons
from allocations.scheduling.queueing.picture import Painter, Picture
from claims.queue_tree import Amount, Name
from kube.client import Cluster
from storage.cursors import write_rows
from storage.enqueue import send_after_commit

PROTECTED: Final = timedelta(seconds=10)
"""So long the plan is made without a pod whose budget forbade its eviction."""

TELL: Final = "allocations.tasks.tell_waiting"
TELLS_AFTER: Final = 0.5
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
    """The rounds of one turn. `cluster` None: REST claims alone, which nobody evicts."""

    def __init__(self, cluster: Cluster | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins a turn, which ends that of any other worker."""
        self._cluster = cluster
        self._clock = clock
        self._tells_at = 0.0
        """Before then nothing is sent: what was sent last has not run yet."""
        self._fence = begin_turn()
        self._painter = Painter()
        self._protected: dict[str, datetime] = {}

    def run(self) -> RoundResult:
        """Run one round. Raises MovedOn when another worker has begun a turn."""
        self._fence.admissions = read_fence().admissions
        picture = self._painter.picture(self._protected)
        now = picture.now
        self._protected = {uid: until for uid, until in self._protected.items() if until > now}
        freed = 0
        if self._cluster is not None:
            self._ungate([(row, row.allocation_id) for row in picture.gated if row.allocation_id is not None], now)
            freed = free_of_gates(self._cluster, picture.outside)
        follow_gangs(self._cluster, picture)
        answer = decide(picture.question)
        ready, later = _by_workload(picture, answer)
        admitted = admit(picture, ready, fence=self._fence)
        note_admitted([row for row, _ in admitted], now)
        self._ungate([(row, id_) for row, id_ in admitted if row.pod.gated], now)
        keep_for_takers(picture, later)
        protected = evict(self._cluster, picture, answer.evictions)
        self._protected |= dict.fromkeys(protected, now + PROTECTED)
        if write_reasons(picture, answer, later):
            self._tell_soon()
        write_queues(picture, answer)
        return RoundResult(
            len(admitted),
            len(answer.evictions),
            len(answer.waiting) + len(picture.problems) + len(later),
            again=bool(admitted or answer.evictions or freed),
        )

    def _tell_soon(self) -> None:
        """Have waiting pods told why they wait, by another worker: an event is a request to the API server."""
        now = self._clock()
        if self._cluster is not None and now >= self._tells_at:
            self._tells_at = now + TELLS_AFTER
            send_after_commit(TELL, delay_seconds=TELLS_AFTER)

    def _ungate(self, rows: Sequence[Admitted], now: datetime) -> None:
        """Take the gates off these pods, which are admitted."""
        if self._cluster is None or not rows:
            return
        take_gates_off(self._cluster, rows, now=now)


def _by_workload(picture: Picture, answer: Answer) -> tuple[list[list[Admission]], list[list[Admission]]]:
    """(workloads that may go now, those that wait for others to go), in the order of the decision."""
    workload_of = {pod: name for name, pods in picture.members.items() for pod in pods}
    grouped: defaultdict[str, list[Admission]] = defaultdict(list)
    for one in answer.admissions:
        grouped[workload_of[one.pod]].append(one)
    ready = [some for some in grouped.values() if not any(one.waits_for for one in some)]
    return ready, [some for some in grouped.values() if any(one.waits_for for one in some)]


def write_reasons(picture: Picture, answer: Answer, later: Sequence[Sequence[Admission]]) -> bool:
    """Write why each pod waits, where it changed; whether any did."""
    reasons = reasons_of(picture, answer, later)
    changed = []
    for name, reason in reasons.items():
        row = picture.waiting[name]
        if row.summary != reason[:500]:
            changed.append(PodRefusal(pk=row.pk, summary=reason[:500], reasons={reason[:500]: 0}, last_at=picture.now))
    write_rows(changed, ["summary", "reasons", "last_at"])
    by_gang = {row.gang: reasons[name] for name, row in picture.waiting.items() if row.gang and name in reasons}
    note_reasons(picture.states, by_gang)
    return bool(changed)


def reasons_of(picture: Picture, answer: Answer, later: Sequence[Sequence[Admission]]) -> Mapping[str, str]:
    """Why each pod waits, by its name."""
    reasons = dict(picture.problems)
    for workload in later:
        victims = {pod for one in workload for pod in one.waits_for}
        text = f"waits for {len(victims)} pod{'s that are' if len(victims) != 1 else ' that is'} being evicted"
        reasons |= {one.pod: text for one in workload}
    for name, why in answer.waiting.items():
        reason = why.reason if why.decision is None else why.decision.summary
        reasons |= dict.fromkeys(picture.members[name], reason)
    return reasons


def write_queues(picture: Picture, answer: Answer) -> None:
    """Write what each queue has and is due, for its status and its page, where it changed."""
    tree = picture.queues.tree
    if not picture.queues.stored:
        QueueState.objects.all().delete()
        return
    waiting: defaultdict[str, int] = defaultdict(int)
    for workload in picture.question.waiting:
        if workload.name in answer.waiting:
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
                "fairShare": _number(answer.shares[Name(queue.name, quota.group)]),
                "allocated": _number(answer.allocated.get(Name(queue.name, quota.group), 0)),
            }
            for quota in queue.quotas
        ]
        before = there.pop(queue.name, None)
        if before is None or (before.quotas, before.waiting) != (quotas, waiting[queue.name]):
            QueueState.objects.update_or_create(
                name=queue.name,
                defaults={"quotas": quotas, "waiting": waiting[queue.name], "decided_at": picture.now},
            )
    QueueState.objects.filter(name__in=there).delete()


def _number(amount: Amount) -> float:
    """A whole number where it is one."""
    return amount.numerator if amount.denominator == 1 else round(float(amount), 6)
