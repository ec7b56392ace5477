"""The steps of a bind: reserve → read the pod → leases → check the reservation → Binding → confirm.

Called by `binder`. Steps of the ledger take a list of attempts, run in a thread with a database connection and share
one transaction where they can; requests to the API server are coroutines for one attempt. Each step may be repeated.
The API server may apply a Binding long after its sender gave up: a proxy held it, its storage hung, the sender was
paused.

Invariants:
- An unknown outcome is settled forward: the same Binding is sent again until an answer is definite.
- A Binding is sent only by the newest attempt at the reservation (`check`), and carries the pod's resourceVersion as it
  was read before that check. So once a later attempt has taken the reservation up and written to the pod (`_shut_out`),
  every Binding of an earlier attempt fails, however late it comes. Only after that write is a reservation given up of
  which an earlier Binding may be under way.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog

from allocations import ledger
from allocations.choices import State
from allocations.errors import MovedOn, Overtaken
from allocations.leases.kubernetes import KubernetesLeases
from allocations.leases.port import LeaseTaken
from allocations.ledger.binding import FIRST_ATTEMPT
from allocations.scheduling import limits
from allocations.scheduling.attempt import AGAIN, DONE, Attempt, FinalState, StepOutcome
from allocations.scheduling.bindings import attempt_annotation, binding_of, is_ours
from kube import pods
from kube.client import Cluster
from kube.errors import (
    ConflictInCluster,
    KubeError,
    NotFoundInCluster,
    OutcomeUnknown,
    PermanentKubeError,
    TemporaryKubeError,
)
from kube.keys import ATTEMPT
from kube.objects import Pod

log = structlog.get_logger(__name__)


def reserve(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Held → reserved, all in one transaction; a reservation that an earlier attempt left is taken up."""
    held = [one for one in attempts if one.live.state is not State.RESERVED]
    reserved = ledger.reserve([one.live.id for one in held], now=held[0].now, actor=held[0].actor) if held else set()
    outcomes = []
    for one in attempts:
        if one.live.state is State.RESERVED:
            outcomes.append(_take_up(one))
        elif one.live.id in reserved:
            one.reserved_as(FIRST_ATTEMPT)
            outcomes.append(DONE)
        else:
            outcomes.append(StepOutcome.open(MovedOn("the hold ended meanwhile")))
    return outcomes


def _take_up(attempt: Attempt) -> StepOutcome:
    live = attempt.live
    waits_from = None if attempt.collecting else attempt.now  # collection waits for a bind to end
    number = ledger.take_up(allocation_id=live.id, attempt=live.bind_attempt, now=waits_from)
    if number is None:
        return StepOutcome.open(Overtaken())
    attempt.resumed = attempt.unknown = True
    attempt.reserved_as(number)
    return DONE


def lease_rows(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Take the leases without Kubernetes: all of an attempt's or none."""
    outcomes = []
    for one in attempts:
        try:
            one.backends.leases.take(one.wants, one.live.holder.identity, now=one.now)
            outcomes.append(DONE)
        except LeaseTaken as taken:
            outcomes.append(StepOutcome.failed(taken))
    return outcomes


def check(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Check that the attempts were not overtaken, one query for all. Right before each sending."""
    current = ledger.current({one.live.id: one.live.bind_attempt for one in attempts})
    for one in attempts:
        if one.live.id in current:
            one.note_checked()
    return [DONE if one.live.id in current else StepOutcome.open(Overtaken()) for one in attempts]


def needs_look(attempt: Attempt) -> bool:
    """Whether a Binding of an attempt before this one may be under way."""
    return attempt.resumed and attempt.cluster is not None


def needs_sending(attempt: Attempt) -> bool:
    """Whether there is a pod that is to be bound still."""
    return attempt.cluster is not None and not attempt.bound


def needs_check(attempt: Attempt) -> bool:
    """Whether the attempt may have been overtaken in a way that the Binding itself does not guard against."""
    if not needs_sending(attempt):
        return False
    return attempt.sent or attempt.unknown or attempt.stood_still or not attempt.pod_version


def confirm(attempts: Sequence[Attempt]) -> list[StepOutcome]:
    """Reserved → bound, one transaction for all that end at the same time, or never. Where the pod has ended meanwhile,
    the attempt goes on to release what it bound.
    """
    now, actor = max(one.now for one in attempts), attempts[0].actor
    ends: dict[datetime | None, list[uuid.UUID]] = defaultdict(list)
    for one in attempts:
        ttl = one.live.request.ttl_seconds
        ends[now + timedelta(seconds=ttl) if ttl else None].append(one.live.id)
    bound = ledger.all_bound(ends, now=now, actor=actor)
    left = [one for one in attempts if one.live.id not in bound]
    ended = ledger.bound([one.live.id for one in left], now=now, actor=actor, ended=True) if left else set()
    reasons = ledger.noted_ends(ended) if ended else {}
    for one in left:
        if one.live.id in reasons:
            one.sources, one.ending = (State.BOUND,), FinalState(State.RELEASED, reasons[one.live.id])
    return [
        DONE if one.live.id in bound | ended else StepOutcome.open(MovedOn("the reservation was settled meanwhile"))
        for one in attempts
    ]


async def look(attempt: Attempt) -> StepOutcome:
    """Read the pod before anything is sent for a reservation of an earlier attempt: it may be bound already."""
    assert attempt.cluster is not None
    return await _read(attempt, attempt.cluster) or DONE


async def lease(attempt: Attempt) -> StepOutcome:
    """Take one Lease a device, all at once."""
    leases = attempt.backends.leases
    assert isinstance(leases, KubernetesLeases)
    try:
        await leases.atake(attempt.wants, attempt.live.holder.identity, now=attempt.now, timeout=limits.REQUEST_SECONDS)
    except LeaseTaken as taken:
        return given_up(attempt, taken)
    except PermanentKubeError as error:
        return given_up(attempt, f"the API server refused: {error}")
    except TemporaryKubeError as error:
        return StepOutcome.open(f"the API server does not answer: {error}")
    return DONE


async def send(attempt: Attempt) -> StepOutcome:
    """Send the Binding once; or where it cannot succeed any more, shut out those under way."""
    cluster = attempt.cluster
    assert cluster is not None
    if attempt.refusal is not None:
        return await _shut_out(attempt, cluster, attempt.refusal)
    now = time.monotonic()
    if attempt.deadline is None:
        attempt.deadline = now + limits.COLLECTING_DEADLINE.total_seconds()
    if now >= attempt.deadline:
        return await _out_of_time(attempt, cluster)
    binding = binding_of(attempt.live, pod_version=attempt.pod_version)
    before = asyncio.get_running_loop().time() + min(limits.REQUEST_SECONDS, attempt.deadline - now)
    attempt.sent = True
    try:
        await pods.bind(cluster, binding, timeout=limits.REQUEST_SECONDS, retry=False, before=before)
    except OutcomeUnknown as error:
        attempt.unknown = True
        log.info("bind.answer_lost", pod=attempt.live.holder.label, error=str(error))
        return await _later(attempt, cluster)
    except TemporaryKubeError as error:
        log.info("bind.again", pod=attempt.live.holder.label, error=str(error))
        return await _later(attempt, cluster)
    except KubeError as error:
        return await _not_taken(attempt, cluster, error)
    return DONE


async def _not_taken(attempt: Attempt, cluster: Cluster, error: KubeError) -> StepOutcome:
    """The API server refused the Binding: read the pod to see whether it can be sent again."""
    sent_with = attempt.pod_version
    if attempt.conflicts and await cluster.apause(limits.PAUSE_SECONDS):
        return await _out_of_time(attempt, cluster)
    ended = await _read(attempt, cluster)
    if ended is not None:
        return ended
    if isinstance(error, ConflictInCluster) and attempt.pod_version != sent_with:  # the pod changed after it was read
        attempt.conflicts += 1
        return AGAIN
    return given_up(attempt, f"the API server refused the Binding: {error}")


async def _later(attempt: Attempt, cluster: Cluster) -> StepOutcome:
    """Send the Binding again after a while, unless the process ends meanwhile."""
    return await _out_of_time(attempt, cluster) if await cluster.apause(limits.PAUSE_SECONDS) else AGAIN


async def _out_of_time(attempt: Attempt, cluster: Cluster) -> StepOutcome:
    if not attempt.unknown:
        return StepOutcome.open("the API server did not take the Binding in time")
    ended = await _read(attempt, cluster)
    return ended or StepOutcome.open("the answers to the Binding were lost, and the pod is not bound yet")


def given_up(attempt: Attempt, why: str | Exception) -> StepOutcome:
    """End the attempt. Where a Binding of this reservation may be under way, it is shut out first."""
    failed = StepOutcome.failed(why)
    if not attempt.unknown or attempt.cluster is None:
        return failed
    if not attempt.live.pod_version:
        return StepOutcome.open(f"{why}; a Binding sent before may be applied still")
    attempt.refusal = failed.error
    return AGAIN


async def _shut_out(attempt: Attempt, cluster: Cluster, why: Exception) -> StepOutcome:
    """Write to the pod, so that Bindings sent with an earlier resourceVersion fail.

    The write is conditional on the pod as it was read last, so that a late one fails once another allocation's Binding
    has marked the pod.
    """
    live, attempt.shut_outs = attempt.live, attempt.shut_outs + 1
    try:
        found: Pod | None = await pods.annotate(
            cluster,
            namespace=live.holder.namespace,
            name=live.holder.pod_name,
            uid=live.holder.pod_uid,
            annotations={ATTEMPT: attempt_annotation(live)},
            version=attempt.pod_version,
            timeout=limits.REQUEST_SECONDS,
        )
    except (ConflictInCluster, NotFoundInCluster):
        try:
            found = await _find(attempt, cluster)
        except KubeError as error:
            return StepOutcome.open(_silent(error))
    except KubeError as error:
        return StepOutcome.open(f"{why}; the pod cannot be written: {error}")
    ended = _judged(attempt, found)
    if ended is not None:
        return ended
    # also where the answer was lost
    if found is not None and found.annotations.get(ATTEMPT) == attempt_annotation(live):
        return StepOutcome.failed(why)
    if attempt.shut_outs < limits.SHUT_OUT_TRIES:
        return AGAIN
    return StepOutcome.open(f"{why}; the pod changed at this moment")


async def _read(attempt: Attempt, cluster: Cluster) -> StepOutcome | None:
    """The outcome by the pod as it is now."""
    try:
        return _judged(attempt, await _find(attempt, cluster))
    except KubeError as error:
        return StepOutcome.open(_silent(error))


async def _find(attempt: Attempt, cluster: Cluster) -> Pod | None:
    holder = attempt.live.holder
    return await pods.afind(cluster, namespace=holder.namespace, name=holder.pod_name, timeout=limits.REQUEST_SECONDS)


def _silent(error: KubeError) -> str:
    return f"the API server does not say what became of the Binding: {error}"


def _judged(attempt: Attempt, pod: Pod | None) -> StepOutcome | None:
    """DONE where the pod is bound by the attempt, FAILED where it never will be; None: it is still to be bound."""
    if pod is None:
        return StepOutcome.failed("the pod is gone")
    if pod.metadata.uid != attempt.live.holder.pod_uid:
        return StepOutcome.failed("the pod was replaced by another of the same name")
    attempt.bound = bool(pod.spec.node_name) and is_ours(pod, attempt.live)
    if attempt.bound:
        return DONE
    if pod.spec.node_name:
        return StepOutcome.failed("the pod was bound by somebody else")
    if pod.metadata.deletion_timestamp:
        return StepOutcome.failed("the pod is being deleted")
    attempt.pod_version = pod.metadata.resource_version
    return None
