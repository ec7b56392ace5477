"""Writes on behalf of users: claim devices without a pod, renew, release.

Called by REST and pages. The same ledger and rules as for pods (CLAIM-9, CLAIM-10).
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import structlog
from django.conf import settings

from access.actors import Actor
from access.errors import BadInput, Conflict, DoesNotFit, NotFound, Unavailable
from allocations import ledger
from allocations.backends import current_backends
from allocations.choices import State
from allocations.engine.resize import Amounts
from allocations.errors import MovedOn
from allocations.models import Allocation
from allocations.pod_request import PodRequest, share_policy
from allocations.scheduling import binder
from allocations.scheduling.attempt import BindFailed, OutcomeOpen
from allocations.scheduling.placement import Outcome, Placed, PlacementRequest, RefusedByQueues, Unplaced, place
from allocations.scheduling.queueing.rest_claims import place_in_queue
from allocations.scheduling.resizing import resize_share
from audit.choices import EventKind
from audit.services import record
from claims.dialects.claim_manifest import TTL_SECONDS_MOST, stored_claim
from claims.dialects.gpuclaim import claim_request
from claims.dialects.request import CORE_WHOLE, Dialect, Refusal
from claims.membership import Membership, queues_admit
from claims.models import GpuClaim
from kube import pods
from kube.errors import ConflictInCluster, KubeError, TemporaryKubeError
from kube.quantities import QuantityError, RawQuantity, parse_quantity

log = structlog.get_logger(__name__)


def claim_devices(*, claim: GpuClaim, actor: Actor, holder: str = "", queue: str = "") -> Allocation:
    """Give devices to a client without a pod, as the claim asks. Returns a bound allocation.

    `holder`: the client's name for itself, part of the lease's holder identity; `queue`: the queue that admits it, else
    that of the namespace, if any. Raises DoesNotFit with the engine's summary or the queue's reason,
    Conflict for a claim that cannot be served, Unavailable when a part is down.
    """
    actor.require_write(claim.namespace)
    manifest = {"metadata": {"name": claim.name, "namespace": claim.namespace}, "spec": claim.spec}
    spec = stored_claim(claim.name, manifest)
    if isinstance(spec, Refusal):
        raise Conflict(spec.reason)
    if spec is None:
        raise NotFound(f"GpuClaim {claim.name} does not exist")
    if spec.gang_ref:
        raise Conflict(f"GpuClaim {claim.name} has a gangRef: a gang is made of pods, and this is none")
    request = claim_request(spec, name=claim.name, dialect=Dialect.REST).under(share_policy())
    identity = f"{claim.namespace}/{holder or claim.name}/{uuid.uuid4()}"
    who = ledger.Holder(namespace=claim.namespace, identity=identity)
    membership = Membership(queue=queue, preemptible=False)
    pod_request = PodRequest(request, claim.id, settings.GPUPLANE_HOLD_SECONDS, confined=True, membership=membership)

    def bind(allocation_id: uuid.UUID) -> None:
        live = ledger.read_live(allocation_id)
        if live is None:
            raise MovedOn("the hold ended meanwhile")
        binder.bind(live, current_backends(), now=live.made_at)

    wanted = PlacementRequest(who, pod_request, actor=actor.name)
    outcome: Outcome | RefusedByQueues
    try:
        if queues_admit(membership, claim.namespace):
            outcome = place_in_queue(wanted, then=bind)
        elif queue:
            raise Conflict(f"queue {queue} does not exist")
        else:
            outcome = place(wanted, lambda *_: None, then=bind)
    except OutcomeOpen as error:
        raise Unavailable(str(error)) from error
    except BindFailed as error:
        raise Conflict(str(error)) from error
    match outcome:
        case Placed(allocation_id=allocation_id):
            return Allocation.objects.get(pk=allocation_id)
        case Unplaced(decision=decision):
            raise DoesNotFit(decision.summary)
        case RefusedByQueues(reason=reason):
            raise DoesNotFit(reason)
    raise DoesNotFit("others took the devices first, again and again")


def allocation_renew(*, allocation: Allocation, actor: Actor, ttl_seconds: int | None, now: datetime) -> Allocation:
    """Let a bound allocation end `ttl_seconds` from now (its own ttl where None).

    Raises Conflict (it has no end), MovedOn (it has ended), BadInput.
    """
    actor.require_write(allocation.namespace)
    _refuse_slot(allocation)
    ttl = ttl_seconds if ttl_seconds is not None else allocation.ttl_seconds
    if ttl is None:
        raise Conflict("the allocation has no end to renew; give ttlSeconds to set one")
    if not 1 <= ttl <= TTL_SECONDS_MOST:
        raise BadInput(f"ttlSeconds is 1 to {TTL_SECONDS_MOST}", field="ttlSeconds", rule="range")
    expires = now + timedelta(seconds=ttl)
    if not ledger.renew(allocation_id=allocation.id, expires_at=expires, ttl_seconds=ttl, now=now, actor=actor.name):
        raise MovedOn("the allocation is no longer bound")
    return Allocation.objects.get(pk=allocation.pk)


def claim_renew(*, claim: GpuClaim, actor: Actor, ttl_seconds: int | None, now: datetime) -> list[Allocation]:
    """Renew every bound allocation of the claim. Raises Conflict where there is none."""
    actor.require_write(claim.namespace)
    renewed = []
    for one in Allocation.objects.filter(claim=claim, state=State.BOUND):
        try:
            renewed.append(allocation_renew(allocation=one, actor=actor, ttl_seconds=ttl_seconds, now=now))
        except MovedOn:
            log.info("claim.renewed_too_late", allocation=str(one.pk))
    if not renewed:
        raise Conflict("nothing is allocated through the claim")
    return renewed


def allocation_release(*, allocation: Allocation, actor: Actor, evict: bool, now: datetime) -> Allocation:
    """Release the devices. Those of a living pod are released when it is gone; `evict` evicts it.

    That includes a pod that only has a hold: kube-scheduler may be binding it. Returns the allocation as it then is
    (still held or bound while an evicted pod ends). Raises Conflict (the pod lives), Unavailable (the API server is
    away).
    """
    actor.require_write(allocation.namespace)
    _refuse_slot(allocation)
    state = State(allocation.state)
    if state in {State.HELD, State.BOUND} and _pod_lives(allocation):
        if not evict:
            raise Conflict("the pod still lives; delete it, or release with evict=true")
        evicted = _evict(allocation, actor, now)
        if state is State.BOUND or _pod_lives(allocation):
            return evicted
    if state is State.HELD:
        dropped = ledger.drop_hold(
            allocation_id=allocation.id,
            outcome=State.RELEASED,
            reason=f"released by {actor.name}",
            now=now,
            actor=actor.name,
        )
        if not dropped:
            raise MovedOn("the allocation moved on at this moment; try again")
        return Allocation.objects.get(pk=allocation.pk)
    if state in {State.RELEASED, State.FAILED}:
        return allocation
    if state is State.RESERVED:
        raise Conflict("the pod is being bound at this moment; try again")
    if state is State.BOUND:
        binder.release_now(allocation_id=allocation.id, reason=f"released by {actor.name}", now=now, actor=actor.name)
    return Allocation.objects.get(pk=allocation.pk)


def allocation_resize(
    *, allocation: Allocation, actor: Actor, core: int | None, memory: RawQuantity | None, now: datetime
) -> Allocation:
    """Give the share of a bound allocation other amounts, per device; None: as before. Returns it as it then is.

    `core`: percent; `memory`: a quantity. Raises BadInput, and Conflict with the reason: whole devices, no room, a
    queue's limit, more in use.
    """
    actor.require_write(allocation.namespace)
    _refuse_slot(allocation)
    if core is None and memory is None:
        raise BadInput("give core, memory or both", rule="required")
    if core is not None and not 0 <= core <= CORE_WHOLE:
        raise BadInput(f"core is a percentage: 0 to {CORE_WHOLE}", field="core", rule="range")
    try:
        memory_bytes = None if memory is None else parse_quantity(memory)
    except QuantityError as error:
        raise BadInput(f"memory: {error}", field="memory", rule="quantity") from error
    if memory_bytes == 0:
        raise BadInput("memory must be more than 0", field="memory", rule="range")
    claim = allocation.claim
    if claim is not None and claim.spec.get("resize") is True:
        raise Conflict(f"the share follows GpuClaim {claim.name}, which says resize: edit the claim")
    amounts = Amounts(core_percent=core, memory_bytes=memory_bytes)
    resize_share(allocation.pk, amounts, backends=current_backends(), now=now, actor=actor.name)
    return Allocation.objects.get(pk=allocation.pk)


def _refuse_slot(allocation: Allocation) -> None:
    """Raise Conflict for the memory of a model that runs: it ends, and is as large, as its slot says."""
    if allocation.dialect == Dialect.SLOT:
        raise Conflict(f"a slot of a model has it ({allocation.holder}); stop the slot")


def _pod_lives(allocation: Allocation) -> bool:
    """Whether its holder is an unfinished pod of the cluster. Raises Unavailable."""
    cluster = current_backends().cluster
    if cluster is None or not allocation.pod_uid:
        return False
    try:
        pod = pods.find(cluster, namespace=allocation.namespace, name=allocation.pod_name)
    except KubeError as error:
        raise Unavailable(f"the API server does not say whether the pod lives: {error}") from error
    return pod is not None and pod.metadata.uid == allocation.pod_uid and not pod.finished


def _evict(allocation: Allocation, actor: Actor, now: datetime) -> Allocation:
    cluster = current_backends().cluster
    if cluster is None:
        return allocation
    try:
        pods.evict(cluster, namespace=allocation.namespace, name=allocation.pod_name, uid=allocation.pod_uid)
    except TemporaryKubeError as error:
        raise Unavailable(f"the pod cannot be evicted now: {error}") from error
    except ConflictInCluster:
        return Allocation.objects.get(pk=allocation.pk)
    except KubeError as error:
        raise Conflict(f"the API server refused the eviction: {error}") from error
    record(
        kind=EventKind.ALLOCATION_EVICTED,
        message=f"{allocation.namespace}/{allocation.pod_name} is asked to give its devices back",
        actor=actor.name,
        now=now,
        namespace=allocation.namespace,
        name=allocation.pod_name,
        node=allocation.node.name,
        claim=allocation.claim_name,
        allocation_id=allocation.pk,
    )
    return Allocation.objects.get(pk=allocation.pk)
