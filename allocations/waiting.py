"""Pods that ask for devices and wait, whether or not the extender was asked about them (VIEW-3).

kube-scheduler asks an extender only about nodes that its own filters left, so a pod that CPU, taints or a full fleet keep
off is never heard of there. Called by the pod watch and by every comparison, which know every pod, and by the task that
plans for them. Invariants: one row a pod, which ends when the pod is bound, finished or gone; of a pod that the extender
was asked about, its answer stays, beside what the scheduler says; the engine is asked in the background, a bounded time a
turn, those first who were looked at longest ago; pods that wait for somebody else (a gate, another scheduler) are shown
as such and not planned.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final, NamedTuple

import msgspec
from django.conf import settings
from django.db.models import F, Q

from access.transactions import atomic_retry
from allocations import fleet
from allocations.asking import with_settings
from allocations.attempts import LONGEST_VERSION, refused_condition
from allocations.engine.picture import Picture
from allocations.engine.plan import plan
from allocations.ledger.own import request_of
from allocations.models import PodRefusal
from audit.choices import Kind
from audit.cursors import write_rows
from audit.happenings import Happening
from audit.services import record_many
from claims.dialects import ClaimSpec, asks_for_devices, parse_pod
from claims.dialects.request import DeviceRequest, Refusal
from claims.lookup import ClaimFinder
from kube.keys import CLAIM
from kube.objects import Pod
from nodes.choices import NodeState
from nodes.models import Node

GATED: Final = "gated"
OTHER_SCHEDULER: Final = "other-scheduler"
NOT_ASKED: Final = "not-asked"
NOT_OURS: Final = (GATED, OTHER_SCHEDULER, NOT_ASKED)
"""Rules of pods that wait, but not for an answer of ours."""

BATCH: Final = 500
ROWS_A_TURN: Final = 2000
PLAN_SECONDS: Final = 1.0
"""Of each turn of planning, every five seconds."""
LOOK_AGAIN: Final = timedelta(seconds=60)
SEEN_AGAIN: Final = timedelta(minutes=5)
"""A row whose pod is as it was is written that often, so that collection knows that the pod waits still."""
ACTOR: Final = "planner"
DEFAULT_SCHEDULER: Final = "default-scheduler"
_DEFAULT_SCHEDULERS: Final = frozenset({"", DEFAULT_SCHEDULER})
_MESSAGE_LONGEST: Final = 2000
_SCHEDULERS_OWN: Final = ["scheduler_name", "scheduler_message", "pod_version", "seen_at"]
_OURS: Final = ["claim_name", "request", "rule", "summary", "reasons", "planned_at", "last_at"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of a pod before the engine has looked."""

    request: DeviceRequest | None
    rule: str = ""
    summary: str = "it is looked at within seconds"
    nodes: int = 0
    """How many the rule, where the pod breaks one, keeps it from."""


class Planned(NamedTuple):
    """What the engine says of a request. `reasons`: why → how many nodes, empty where a node has the devices."""

    rule: str
    summary: str
    reasons: dict[str, int]


def is_waiting(pod: Pod) -> bool:
    """Whether the pod asks for devices, in any dialect, and is bound nowhere."""
    over = pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp
    return not over and bool(pod.metadata.uid) and asks_for_devices(pod)


def scheduler_words(pod: Pod) -> str:
    """What the scheduler, or the API server for a gated pod, says of why it is not scheduled."""
    told = refused_condition(pod)
    return "" if told is None else (told.message or told.reason or "")[:_MESSAGE_LONGEST]


def note_waiting(pods: Sequence[Pod], now: datetime) -> None:
    """Keep a row for each of these pods that wait. Those whose rows say the same already are left alone for a while."""
    answers = _Answers()
    for start in range(0, len(pods), BATCH):
        some = pods[start : start + BATCH]
        uids = [pod.metadata.uid for pod in some]
        asked = set(PodRefusal.objects.filter(pod_uid__in=uids, count__gt=0).values_list("pod_uid", flat=True))
        # before the transaction: a claim that is not mirrored yet is read from the API server
        _note(some, {pod.metadata.uid: answers(pod) for pod in some if pod.metadata.uid not in asked}, now)


def forget_waiting(pod_uids: Iterable[str]) -> int:
    """End the rows of pods that wait no more; how many there were."""
    uids, ended = list(pod_uids), 0
    for start in range(0, len(uids), BATCH):
        ended += PodRefusal.objects.filter(pod_uid__in=uids[start : start + BATCH]).delete()[0]
    return ended


def compare_waiting(*, pods: Mapping[str, Pod], unreadable: Iterable[tuple[str, str]], listed_at: datetime) -> int:
    """Make the rows what the cluster shows; how many ended. `pods`: by UID, as they were listed after `listed_at`.

    Rows that are newer than the list are left alone, as are those of pods that cannot be read.
    """
    note_waiting([pod for pod in pods.values() if is_waiting(pod)], listed_at)
    hidden = set(unreadable)
    older = PodRefusal.objects.filter(Q(seen_at__isnull=True) | Q(seen_at__lte=listed_at), last_at__lte=listed_at)
    rows = older.values_list("pod_uid", "namespace", "pod_name")
    gone = [
        uid
        for uid, namespace, name in rows
        if (namespace, name) not in hidden and not (uid in pods and is_waiting(pods[uid]))
    ]
    return forget_waiting(gone)


@atomic_retry
def _note(pods: Sequence[Pod], answers: Mapping[str, Answer], now: datetime) -> None:
    known = {row.pod_uid: row for row in PodRefusal.objects.filter(pod_uid__in=[pod.metadata.uid for pod in pods])}
    made: list[PodRefusal] = []
    changed: list[PodRefusal] = []
    answered: list[PodRefusal] = []
    for pod in pods:
        row, answer = known.get(pod.metadata.uid), answers.get(pod.metadata.uid)
        if row is None:
            if answer is not None:
                made.append(_schedulers_words(_new(pod, answer, now), pod, now))
            continue
        if answer is not None and not row.count and _is_other(row, answer):
            answered.append(_answer(row, pod, answer, now))
        stale = row.seen_at is None or now - row.seen_at > SEEN_AGAIN
        if stale or row.pod_version != _version(pod) or row.scheduler_message != scheduler_words(pod):
            changed.append(_schedulers_words(row, pod, now))
    PodRefusal.objects.bulk_create(
        made, update_conflicts=True, unique_fields=["pod_uid"], update_fields=_SCHEDULERS_OWN
    )
    write_rows(changed, _SCHEDULERS_OWN)
    write_rows(answered, _OURS)


class _Answers:
    """Parses pods; a claim that several name is looked for once."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], ClaimSpec | Refusal | None] = {}

    def __call__(self, pod: Pod) -> Answer:
        gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
        if gates:
            names = ", ".join(gates)
            return Answer(None, GATED, f"the pod is gated: no scheduler looks at it before {names} is taken away"[:500])
        named = pod.spec.scheduler_name
        if named != settings.GPUPLANE_SCHEDULER_NAME and named not in _DEFAULT_SCHEDULERS:
            words = f"it waits for the scheduler {named}, which has not asked gpuplane"
            return Answer(None, OTHER_SCHEDULER, words[:500])
        parsed = parse_pod(pod, find_claim=self._claim)
        if isinstance(parsed, Refusal):
            return Answer(None, parsed.rule, parsed.reason[:500], self._nodes)
        return Answer(None if parsed is None else with_settings(parsed))

    @cached_property
    def _nodes(self) -> int:
        return Node.objects.exclude(state=NodeState.GONE).count()

    def _claim(self, namespace: str, name: str) -> ClaimSpec | Refusal | None:
        key = (namespace, name)
        if key not in self._claims:
            self._claims[key] = ClaimFinder()(namespace, name)
        return self._claims[key]


def _is_other(row: PodRefusal, answer: Answer) -> bool:
    stored = None if row.request is None else request_of(row.request)
    rule = row.rule if row.rule != NOT_ASKED else ""
    return (stored, rule) != (answer.request, answer.rule) or (bool(answer.rule) and row.summary != answer.summary)


def _new(pod: Pod, answer: Answer, now: datetime) -> PodRefusal:
    meta = pod.metadata
    row = PodRefusal(pod_uid=meta.uid, namespace=meta.namespace, pod_name=meta.name, first_at=now, count=0)
    return _answer(row, pod, answer, now)


def _answer(row: PodRefusal, pod: Pod, answer: Answer, now: datetime) -> PodRefusal:
    claim = pod.annotations.get(CLAIM, "")
    row.claim_name = claim[:253] if claim.isprintable() else ""
    row.request = None if answer.request is None else msgspec.to_builtins(answer.request)
    row.rule, row.summary, row.planned_at, row.last_at = answer.rule, answer.summary, None, now
    row.reasons = {answer.summary: answer.nodes} if answer.nodes else {}
    return row


def _schedulers_words(row: PodRefusal, pod: Pod, now: datetime) -> PodRefusal:
    row.scheduler_name = pod.spec.scheduler_name[:253]
    row.scheduler_message = scheduler_words(pod)
    row.pod_version = _version(pod)
    row.seen_at = now
    return row


def _version(pod: Pod) -> str:
    return pod.metadata.resource_version[:LONGEST_VERSION]


# planning


def plan_waiting(*, now: datetime, clock: Callable[[], float] = time.monotonic, seconds: float = PLAN_SECONDS) -> int:
    """Ask the engine about pods that the extender was not asked about lately; how many. Those who ask the same share an answer."""
    rows = list(_due(now))
    if not rows:
        return 0
    picture, _ = fleet.current()
    ends = clock() + seconds
    known: dict[DeviceRequest, Planned] = {}
    asking: dict[DeviceRequest, list[PodRefusal]] = defaultdict(list)
    told: list[Happening] = []
    for row in rows:
        request = with_settings(request_of(row.request))
        if request not in known:
            if clock() > ends:
                break
            known[request] = _planned(picture, request)
        planned = known[request]
        if planned.reasons and set(planned.reasons) != set(row.reasons):
            told.append(_refused(row, planned.summary, planned.reasons, now))
        asking[request].append(row)
    for request, alike in asking.items():
        for start in range(0, len(alike), BATCH):
            _write_planned(alike[start : start + BATCH], known[request], now)
    record_many(told)
    return sum(map(len, asking.values()))


def _due(now: datetime) -> Iterable[PodRefusal]:
    """Rows to plan for: those never looked at first, then those looked at longest ago; by nobody within `LOOK_AGAIN`."""
    before = now - LOOK_AGAIN
    unasked = Q(count=0) | Q(last_at__lt=before)
    rows = PodRefusal.objects.filter(unasked, Q(planned_at__isnull=True) | Q(planned_at__lt=before))
    rows = rows.filter(rule__in=("", NOT_ASKED), request__isnull=False, seen_at__isnull=False)
    return rows.order_by(F("planned_at").asc(nulls_first=True), "pk")[:ROWS_A_TURN]


def _planned(picture: Picture, request: DeviceRequest) -> Planned:
    """What the engine says of the whole fleet."""
    decision = plan(picture, request)
    if decision.node is None:
        return Planned("", decision.summary[:500], decision.counts())
    return Planned(NOT_ASKED, f"{decision.node} has the devices; the scheduler has not asked for them"[:500], {})


@atomic_retry
def _write_planned(rows: Sequence[PodRefusal], planned: Planned, now: datetime) -> None:
    """One statement for all that ask the same.

    A row that the extender answered meanwhile, or whose pod asks for something else now, keeps what it says.
    """
    locked = PodRefusal.objects.select_for_update().filter(pk__in=[row.pk for row in rows])
    stored = {pk: (count, last_at) for pk, count, last_at in locked.values_list("pk", "count", "last_at")}
    unchanged = [row.pk for row in rows if stored.get(row.pk) == (row.count, row.last_at)]
    PodRefusal.objects.filter(pk__in=unchanged).update(
        rule=planned.rule, summary=planned.summary, reasons=planned.reasons, planned_at=now
    )


def _refused(row: PodRefusal, summary: str, reasons: dict[str, int], now: datetime) -> Happening:
    return Happening(
        kind=Kind.POD_REFUSED,
        message=f"{row.namespace}/{row.pod_name} cannot be placed: {summary}",
        actor=ACTOR,
        at=now,
        namespace=row.namespace,
        name=row.pod_name,
        claim=row.claim_name,
        data={"reasons": reasons, "rule": ""},
    )
