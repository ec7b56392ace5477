"""Pods that ask for devices and wait, whether or not the extender was asked about them (VIEW-3).

kube-scheduler asks an extender only where its own filters left nodes, so the extender never sees a pod that CPU, taints
or a full fleet exclude. Called by filter, by the pod watch and by every comparison, which see every pod, and by the
task that plans for them. Invariants: one row a pod, deleted when the pod is bound, finished or gone; an answer of the
extender stays, beside what the scheduler says; the engine plans in the background, for a bounded time, pods planned for
longest ago first; pods that wait for others (a gate, another scheduler) are shown as such and not planned for.
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

from allocations import fleet
from allocations.attempts import LONGEST_VERSION, refused_condition
from allocations.backed_off_nodes import refusals
from allocations.component_pods import is_trigger
from allocations.engine.plan import plan
from allocations.engine.reasons import summary_text
from allocations.ledger.reads import request_of
from allocations.models import PodRefusal
from allocations.pod_request import Malformed, PodRequest, parse_pod_request, share_policy
from allocations.queued_pod import QueuedPod, gates_of_others, queued_pod
from audit.choices import EventKind
from audit.events import NewEvent
from audit.queue_wake import wake_queues
from audit.services import record_many
from claims.dialects.parse import asks_for_devices
from claims.dialects.request import DeviceRequest, Refusal
from claims.lookup import ClaimFinder
from claims.membership import is_queued
from claims.queues import DIRECTORY, FRESH_SECONDS
from kube.keys import CLAIM
from kube.objects import Pod
from nodes.choices import NodeState
from nodes.models import Node
from storage.cursors import write_rows
from storage.transactions import atomic_retry

QUEUED: Final = "queued"
"""Rule of pods that the queues admit."""
GATED: Final = "gated"
OTHER_SCHEDULER: Final = "other-scheduler"
NOT_ASKED: Final = "not-asked"
NOT_OURS: Final = (GATED, OTHER_SCHEDULER, NOT_ASKED)
"""Rules of pods that wait, but not for gpuplane."""

BATCH: Final = 500
ROWS_A_RUN: Final = 2000
PLAN_SECONDS: Final = 1.0
"""Of each run of planning, every five seconds."""
PLAN_AGAIN: Final = timedelta(seconds=60)
SEEN_AGAIN: Final = timedelta(minutes=5)
"""The row of an unchanged pod is written that often, so that collection knows that the pod still waits."""
ACTOR: Final = "planner"
DEFAULT_SCHEDULER: Final = "default-scheduler"
_DEFAULT_SCHEDULERS: Final = frozenset({"", DEFAULT_SCHEDULER})
_MESSAGE_LONGEST: Final = 2000
SOON: Final = "it is looked at within seconds"
_POD_FIELDS: Final = ["scheduler_name", "scheduler_message", "pod_version", "seen_at"]
_ANSWER_FIELDS: Final = [
    "claim_name",
    "request",
    "rule",
    "summary",
    "reasons",
    "planned_at",
    "last_at",
    "gang",
    "member",
]


@dataclass(frozen=True, slots=True)
class ParsedPod:
    """What is known of a pod before the engine plans for it. `nodes`: how many the rule that it breaks excludes;
    `member`: what the queues decide by, where they admit the pod.
    """

    request: DeviceRequest | None
    rule: str = ""
    summary: str = SOON
    nodes: int = 0
    member: QueuedPod | None = None


class Planned(NamedTuple):
    """The engine's answer to a request. `reasons`: reason → number of nodes, empty where a node has the devices."""

    rule: str
    summary: str
    reasons: dict[str, int]


def is_waiting(pod: Pod) -> bool:
    """Whether the pod asks for devices, in any dialect, and is bound nowhere. Trigger pods ask for a node."""
    over = is_trigger(pod) or pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp
    return not over and bool(pod.metadata.uid) and asks_for_devices(pod)


def scheduler_words(pod: Pod) -> str:
    """Why the pod is not scheduled, by the scheduler, or by the API server for a gated pod."""
    condition = refused_condition(pod)
    return "" if condition is None else (condition.message or condition.reason or "")[:_MESSAGE_LONGEST]


@atomic_retry
def refusal_note(
    *,
    pod: Pod,
    claim_name: str,
    request: DeviceRequest | None,
    rule: str,
    summary: str,
    reasons: dict[str, int],
    now: datetime,
) -> None:
    """Keep a refusal by the extender, and write an event unless its reasons are the last ones, numbers aside."""
    meta = pod.metadata
    summary = summary[:500]
    known = PodRefusal.objects.filter(pod_uid=meta.uid).first()
    if known is not None and (known.rule, set(known.reasons)) == (rule, set(reasons)):
        PodRefusal.objects.filter(pk=known.pk).update(
            last_at=now, count=F("count") + 1, summary=summary, reasons=reasons
        )
        return
    fields = {
        "namespace": meta.namespace,
        "pod_name": meta.name,
        "claim_name": claim_name[:253],
        "request": None if request is None else msgspec.to_builtins(request),
        "rule": rule,
        "summary": summary,
        "reasons": reasons,
        "last_at": now,
    }
    row, _ = PodRefusal.objects.update_or_create(
        pod_uid=meta.uid,
        defaults={**fields, "count": 1 if known is None else known.count + 1},
        create_defaults={**fields, "first_at": now},
    )
    event = _refusal_event(row, "scheduler", rule, summary, reasons, now)
    record_many([event])


def _refusal_event(
    row: PodRefusal, actor: str, rule: str, summary: str, reasons: dict[str, int], now: datetime
) -> NewEvent:
    return NewEvent(
        kind=EventKind.POD_REFUSED,
        message=f"{row.namespace}/{row.pod_name} cannot be placed: {summary}",
        actor=actor,
        at=now,
        namespace=row.namespace,
        name=row.pod_name,
        claim=row.claim_name,
        data={"reasons": reasons, "rule": rule},
    )


def note_waiting(pods: Sequence[Pod], now: datetime) -> None:
    """Keep a row for each of these waiting pods. Rows of unchanged pods are written every `SEEN_AGAIN`."""
    # before the transaction: a claim that is not mirrored yet is read from the API server, as filter did for its pods
    new, refused = _Parser(ClaimFinder()), _Parser(ClaimFinder(mirrored=True))
    for start in range(0, len(pods), BATCH):
        some = {pod.metadata.uid: pod for pod in pods[start : start + BATCH]}
        rows = PodRefusal.objects.filter(pod_uid__in=some, count__gt=0, member__isnull=True)
        asked = set(rows.values_list("pod_uid", flat=True))
        parsed = {uid: (refused if uid in asked else new).parse(pod) for uid, pod in some.items()}
        _note([*some.values()], parsed, now)


def queued_reason(pod: Pod, now: datetime) -> str:
    """Why a pod waits that the queues admit; one that they do not know yet is made known to them."""
    known = PodRefusal.objects.filter(pod_uid=pod.metadata.uid, member__isnull=False)
    reason = known.values_list("summary", flat=True).first()
    if reason is None:
        note_waiting([pod], now)
    elif not settings.GPUPLANE_KUBECONFIG:
        known.update(seen_at=now)  # no watch sees it
    return reason or SOON


def forget_waiting(pod_uids: Iterable[str]) -> int:
    """Delete the rows of pods that no longer wait; returns how many there were."""
    uids, ended = list(pod_uids), 0
    for start in range(0, len(uids), BATCH):
        ended += PodRefusal.objects.filter(pod_uid__in=uids[start : start + BATCH]).delete()[0]
    return ended


def compare_waiting(*, pods: Mapping[str, Pod], unreadable: Iterable[tuple[str, str]], listed_at: datetime) -> int:
    """Bring the rows in line with the cluster; returns how many were deleted. `pods`: by UID.

    Rows newer than `listed_at` are left alone, as are those of pods that cannot be read.
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
def _note(pods: Sequence[Pod], parsed: Mapping[str, ParsedPod], now: datetime) -> None:
    """What filter said of a pod stays, unless the queues admit the pod: then they say why it waits."""
    known = {row.pod_uid: row for row in PodRefusal.objects.filter(pod_uid__in=[pod.metadata.uid for pod in pods])}
    made: list[PodRefusal] = []
    changed: list[PodRefusal] = []
    answered: list[PodRefusal] = []
    for pod in pods:
        row, found = known.get(pod.metadata.uid), parsed[pod.metadata.uid]
        if row is None:
            meta = pod.metadata
            row = PodRefusal(pod_uid=meta.uid, namespace=meta.namespace, pod_name=meta.name, first_at=now, count=0)
            _set_answer(row, pod, found, now)
            _set_pod_fields(row, pod, now)
            made.append(row)
        else:
            queued = row.member is not None or found.member is not None
            if (queued or not row.count) and _differs(row, found):
                _set_answer(row, pod, found, now)
                answered.append(row)
            stale = row.seen_at is None or now - row.seen_at > SEEN_AGAIN
            if stale or row.pod_version != _version(pod) or row.scheduler_message != scheduler_words(pod):
                _set_pod_fields(row, pod, now)
                changed.append(row)
    PodRefusal.objects.bulk_create(made, update_conflicts=True, unique_fields=["pod_uid"], update_fields=_POD_FIELDS)
    write_rows(changed, _POD_FIELDS)
    write_rows(answered, _ANSWER_FIELDS)
    if any(row.member is not None for row in (*made, *answered)):
        wake_queues()


class _Parser:
    """Parses pods; a claim that several name is looked up once."""

    def __init__(self, finder: ClaimFinder) -> None:
        self._finder = finder
        self._queues = DIRECTORY.get(FRESH_SECONDS)

    def parse(self, pod: Pod) -> ParsedPod:
        gates, others = bool(pod.spec.scheduling_gates), gates_of_others(pod)
        if others:
            names = ", ".join(others)
            summary = f"the pod is gated: no scheduler looks at it before {names} is taken away"
            return ParsedPod(None, GATED, summary[:500])
        named = pod.spec.scheduler_name
        if named != settings.GPUPLANE_SCHEDULER_NAME and named not in _DEFAULT_SCHEDULERS:
            summary = f"it waits for the scheduler {named}, which has not asked gpuplane"
            return ParsedPod(None, OTHER_SCHEDULER, summary[:500])
        match parse_pod_request(pod, self._finder):
            case PodRequest() as pod_request if (
                is_queued(pod_request.membership, pod.metadata.namespace, self._queues) or gates
            ):
                # a pod with our gate that no queue admits any more waits until the loop takes it off
                return ParsedPod(pod_request.request, QUEUED, member=queued_pod(pod, pod_request))
            case PodRequest(request=request):
                return ParsedPod(request)
            case Refusal(rule=rule, reason=reason):
                return ParsedPod(None, rule, reason[:500], self._nodes)
            case Malformed(problem=problem):
                return ParsedPod(None, "malformed", problem[:500], self._nodes)
        return ParsedPod(None)

    @cached_property
    def _nodes(self) -> int:
        return Node.objects.exclude(state=NodeState.GONE).count()


def _differs(row: PodRefusal, parsed: ParsedPod) -> bool:
    stored = None if row.request is None else request_of(row.request)
    rule = row.rule if row.rule != NOT_ASKED else ""
    if parsed.member is not None:
        return row.member is None or msgspec.convert(row.member, QueuedPod) != parsed.member
    return (stored, rule) != (parsed.request, parsed.rule) or (bool(parsed.rule) and row.summary != parsed.summary)


def _set_answer(row: PodRefusal, pod: Pod, parsed: ParsedPod, now: datetime) -> None:
    claim = pod.annotations.get(CLAIM, "")
    row.claim_name = claim[:253] if claim.isprintable() else ""
    row.request = None if parsed.request is None else msgspec.to_builtins(parsed.request)
    if row.rule != QUEUED or parsed.rule != QUEUED:  # a reason of the queues stays until they have another
        row.summary = parsed.summary
        row.reasons = {parsed.summary: parsed.nodes} if parsed.nodes else {}
    row.rule, row.planned_at, row.last_at = parsed.rule, None, now
    row.gang = "" if parsed.member is None else parsed.member.pod_request.membership.gang
    row.member = None if parsed.member is None else msgspec.to_builtins(parsed.member)


def _set_pod_fields(row: PodRefusal, pod: Pod, now: datetime) -> None:
    row.scheduler_name = pod.spec.scheduler_name[:253]
    row.scheduler_message = scheduler_words(pod)
    row.pod_version = _version(pod)
    row.seen_at = now


def _version(pod: Pod) -> str:
    return pod.metadata.resource_version[:LONGEST_VERSION]


def plan_waiting(*, now: datetime, clock: Callable[[], float] = time.monotonic, seconds: float = PLAN_SECONDS) -> int:
    """Plan for pods that the extender was not asked about lately, once for equal requests; returns how many."""
    rows = list(_due(now))
    if not rows:
        return 0
    look = fleet.current()
    ends = clock() + seconds
    known: dict[DeviceRequest, Planned] = {}
    planned_for: dict[DeviceRequest, list[PodRefusal]] = defaultdict(list)
    events: list[NewEvent] = []
    for row in rows:
        request = request_of(row.request).under(share_policy())
        if request not in known:
            if clock() > ends:
                break
            known[request] = _planned(look, request)
        planned = known[request]
        if planned.reasons and set(planned.reasons) != set(row.reasons):
            events.append(_refusal_event(row, ACTOR, "", planned.summary, planned.reasons, now))
        planned_for[request].append(row)
    for request, alike in planned_for.items():
        for start in range(0, len(alike), BATCH):
            _write_planned(alike[start : start + BATCH], known[request], now)
    record_many(events)
    return sum(map(len, planned_for.values()))


def _due(now: datetime) -> Iterable[PodRefusal]:
    """Rows without an answer in the last `PLAN_AGAIN`: those never planned for first, then the oldest."""
    before = now - PLAN_AGAIN
    unasked = Q(count=0) | Q(last_at__lt=before)
    rows = PodRefusal.objects.filter(unasked, Q(planned_at__isnull=True) | Q(planned_at__lt=before))
    rows = rows.filter(rule__in=("", NOT_ASKED), request__isnull=False, seen_at__isnull=False)
    return rows.order_by(F("planned_at").asc(nulls_first=True), "pk")[:ROWS_A_RUN]


def _planned(look: fleet.FleetSnapshot, request: DeviceRequest) -> Planned:
    decision = plan(look.snapshot, request, blocked=look.without_group(request), verdicts_up_to=0)
    if decision.node is None:
        reasons = refusals(decision, look).counts()
        return Planned("", summary_text(len(decision.candidates), reasons.items())[:500], reasons)
    return Planned(NOT_ASKED, f"{decision.node} has the devices; the scheduler has not asked for them"[:500], {})


@atomic_retry
def _write_planned(rows: Sequence[PodRefusal], planned: Planned, now: datetime) -> None:
    """Write one answer to rows of equal requests, unless the extender answered or the pod changed meanwhile."""
    locked = PodRefusal.objects.select_for_update().filter(pk__in=[row.pk for row in rows])
    stored = {pk: (count, last_at) for pk, count, last_at in locked.values_list("pk", "count", "last_at")}
    unchanged = [row.pk for row in rows if stored.get(row.pk) == (row.count, row.last_at)]
    PodRefusal.objects.filter(pk__in=unchanged).update(
        rule=planned.rule, summary=planned.summary, reasons=planned.reasons, planned_at=now
    )
