"""bind as a saga: reserved → leases → Binding → bound, each step idempotent, undone in reverse.

Called by the extender's bind and by REST claims (which have no Binding). Kept true: nothing goes
outside inside a database transaction, and no Binding later than `BIND_DEADLINE` after the reservation, so
that collection may act on older ones (a Lease that comes later is one too many, which reconciling takes away); a Binding whose
answer was lost, in this attempt or in one before it, is sent again and then read, never undone on a guess (DESIGN §3, Unknown outcomes). A process killed between any two steps leaves a row
that `allocations.collection` finishes or undoes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.conf import settings

from access.transactions import connection_let_go
from allocations import ledger
from allocations.choices import State
from allocations.errors import MovedOn
from allocations.leases.port import LeaseTaken, Want, lease_name
from allocations.ledger import Live
from allocations.outside import Outside
from audit.clock import database_now
from claims.dialects import VisibleDevices, binding_annotations
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
from kube.keys import ALLOCATED, CHOSEN_BY, KUBELET
from kube.objects import Pod

log = structlog.get_logger(__name__)

BIND_DEADLINE = timedelta(seconds=20)
"""No Binding is sent later than this after the reservation."""
REQUEST_SECONDS = 5.0
"""Time-out of one request to the API server within a bind."""
PAUSE_SECONDS = 0.2
"""Between two sendings of the same Binding."""


class BindFailed(Exception):
    """The attempt ended and everything it took was given back, or is being given back. The text says why."""


class OutcomeOpen(Exception):
    """Nobody knows yet whether the pod was bound: the reservation stays, collection reads the pod and decides."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One bind on its way, which began at `began_at` by the database's clock and `began` by the monotonic one, in seconds."""

    live: Live
    outside: Outside
    began_at: datetime
    began: float

    @property
    def deadline(self) -> float:
        """On the monotonic clock."""
        return self.began + BIND_DEADLINE.total_seconds()

    @property
    def now(self) -> datetime:
        """The database's clock, gone on by ours since the bind began: it need not be asked at every step."""
        return self.began_at + timedelta(seconds=time.monotonic() - self.began)

    @property
    def wants(self) -> list[Want]:
        """The leases of the attempt."""
        return wants_of(self.live)


def wants_of(live: Live) -> list[Want]:
    """The leases that an allocation needs, one a device."""
    return [
        Want(lease_name(grant.type, live.node, grant.minor), live.node, grant.uuid, grant.whole)
        for grant in live.grants
    ]


def binding_of(live: Live) -> pods.Binding:
    """The Binding of an allocation's pod, with what it carries into the pod."""
    if live.request.by_kubelet:
        annotations = {CHOSEN_BY: KUBELET}
    else:
        annotations = binding_annotations(
            request=live.request,
            node=live.node,
            grants=live.grants,
            visible=VisibleDevices(settings.GPUPLANE_VISIBLE_DEVICES),
            memory_total=live.memory_total.get,
            bus_id=live.bus_id.get,
        )
    holder = live.holder
    return pods.Binding(
        namespace=holder.namespace,
        name=holder.pod_name,
        uid=holder.pod_uid,
        node=live.node,
        annotations=annotations,
    )


def step_reserve(attempt: Attempt) -> None:
    """Held → reserved. A reservation of an earlier attempt of the same pod is taken up where it stands."""
    live = attempt.live
    if live.state is State.RESERVED:
        if not ledger.retake(allocation_id=live.id, now=attempt.now):
            raise MovedOn("the reservation was collected meanwhile")
    elif not ledger.reserve(allocation_id=live.id, now=attempt.now):
        raise MovedOn("the hold ended meanwhile")


def step_lease(attempt: Attempt) -> None:
    """One lease a device. Raises LeaseTaken, KubeError, and OutcomeOpen where an attempt before this one may have bound the pod."""
    cluster = attempt.outside.cluster
    if cluster is not None:
        connection_let_go()  # for the API server's answers, here and in the next step, binds wait by the dozen
    try:
        attempt.outside.leases.take(attempt.wants, attempt.live.holder.identity)
    except (LeaseTaken, PermanentKubeError) as error:
        if cluster is None or not _bound_before(attempt, cluster):
            raise
        log.warning("bind.bound_before", pod=attempt.live.holder.label, lease=str(error))


def step_bind(attempt: Attempt) -> None:
    """The Binding with the annotations; nothing to do without a cluster. Raises BindFailed, OutcomeOpen."""
    if attempt.outside.cluster is not None and attempt.live.holder.pod_uid:
        _send_binding(attempt, attempt.outside.cluster)


def step_confirm(attempt: Attempt) -> None:
    """Reserved → bound."""
    now = attempt.now
    ttl = attempt.live.request.ttl_seconds
    expires = now + timedelta(seconds=ttl) if ttl else None
    if not ledger.bound(allocation_id=attempt.live.id, now=now, expires_at=expires):
        raise MovedOn("the reservation was collected meanwhile")


BIND_STEPS: tuple[Callable[[Attempt], None], ...] = (step_reserve, step_lease, step_bind, step_confirm)


def carry_out(live: Live, outside: Outside, *, now: datetime) -> None:
    """Run the steps for a held (or reserved) allocation; undo what was done when one fails for good. `now` by the database's clock.

    Raises BindFailed, OutcomeOpen, MovedOn, and LeaseTaken (undone as well) when a stranger has a device.
    """
    attempt = Attempt(live, outside, began_at=now, began=time.monotonic())
    try:
        for step in BIND_STEPS:
            step(attempt)
    except BindFailed as failed:
        undo(live, outside, str(failed), State.FAILED)
        raise
    except LeaseTaken as taken:
        undo(live, outside, f"{taken.want.name} is held by {taken.holder}", State.RELEASED)
        raise
    except TemporaryKubeError as error:
        raise OutcomeOpen(f"the API server does not answer: {error}") from error
    except KubeError as error:
        undo(live, outside, f"the API server refused: {error}", State.FAILED)
        raise BindFailed(f"the API server refused: {error}") from error


def undo(
    live: Live,
    outside: Outside,
    reason: str,
    outcome: State,
    *,
    actor: str = "scheduler",
    reserved_before: datetime | None = None,
) -> bool:
    """Reserved → releasing → ended. True when the devices are back; False when collection has to go on."""
    now = database_now()
    begun = ledger.begin_release(
        allocation_id=live.id,
        sources=(State.RESERVED,),
        outcome=outcome,
        reason=reason,
        now=now,
        actor=actor,
        reserved_before=reserved_before,
    )
    return begun and finish(live, outside, outcome, actor=actor)


def finish(live: Live, outside: Outside, outcome: State, *, actor: str) -> bool:
    """Drop the leases of a releasing allocation, then end it. False: the API server is away, try again later."""
    try:
        outside.leases.drop(wants_of(live), live.holder.identity)
    except KubeError as error:
        log.warning("release.leases_left", allocation=str(live.id), error=str(error))
        return False
    return ledger.finish_release(allocation_id=live.id, outcome=outcome, now=database_now(), actor=actor)


def is_ours(pod: Pod, live: Live) -> bool:
    """Whether the pod, as read, was bound by this allocation's Binding."""
    return (
        pod.metadata.uid == live.holder.pod_uid
        and pod.spec.node_name == live.node
        and all(pod.annotations.get(key) == told for key, told in _marks(live).items())
    )


def _marks(live: Live) -> dict[str, str]:
    """The annotations by which a Binding is known to be that of the allocation."""
    return {key: told for key, told in binding_of(live).annotations.items() if key in {ALLOCATED, CHOSEN_BY}}


def _bound_before(attempt: Attempt, cluster: Cluster) -> bool:
    """Whether the pod was bound by an attempt of which this one took the reservation up. Raises OutcomeOpen where nobody can say."""
    live = attempt.live
    if live.state is not State.RESERVED or not live.holder.pod_uid:
        return False
    pod = _read(attempt, cluster)
    return pod is not None and is_ours(pod, live)


def _read(attempt: Attempt, cluster: Cluster) -> Pod | None:
    """The pod as it is now. Raises OutcomeOpen."""
    holder = attempt.live.holder
    try:
        return pods.find(cluster, namespace=holder.namespace, name=holder.pod_name, timeout=REQUEST_SECONDS)
    except KubeError as error:
        raise OutcomeOpen(f"the API server does not say what became of the Binding: {error}") from error


def _send_binding(attempt: Attempt, cluster: Cluster) -> None:
    """Send until it is known what became of it, within the deadline."""
    live = attempt.live
    binding = binding_of(live)
    unknown = False
    while time.monotonic() < attempt.deadline:
        try:
            pods.bind(cluster, binding, timeout=REQUEST_SECONDS)
        except (ConflictInCluster, NotFoundInCluster) as error:
            return _compare(attempt, cluster, str(error))
        except OutcomeUnknown as error:
            unknown = True
            log.info("bind.answer_lost", pod=live.holder.label, error=str(error))
        except TemporaryKubeError as error:
            log.info("bind.again", pod=live.holder.label, error=str(error))
        except KubeError as error:
            return _compare(attempt, cluster, str(error))
        else:
            return None
        if cluster.pause(PAUSE_SECONDS):
            break
    if unknown:
        return _compare(attempt, cluster, "")
    raise OutcomeOpen("the API server did not take the Binding in time")


def _compare(attempt: Attempt, cluster: Cluster, refusal: str) -> None:
    """Read the pod: ours is success; gone, another, bound otherwise, or refused and unbound is failure; else it stays open.

    `refusal` empty: nobody refused, so what was sent may still be applied after this look.
    """
    live = attempt.live
    pod = _read(attempt, cluster)
    if pod is None:
        raise BindFailed("the pod is gone")
    if pod.metadata.uid != live.holder.pod_uid:
        raise BindFailed("the pod was replaced by another of the same name")
    if is_ours(pod, live):
        return
    if pod.spec.node_name:
        raise BindFailed("the pod was bound by somebody else")
    if not refusal:
        raise OutcomeOpen("the answers to the Binding were lost, and the pod is not bound yet")
    raise BindFailed(f"the API server refused the Binding: {refusal}")
