"""Writes that people and clients ask for: claim devices without a pod, renew, release.

Called by REST and pages. The same ledger and the same rules as for pods (CLAIM-9, CLAIM-10).
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta

import structlog

from access.actors import Actor
from access.errors import BadInput, Conflict, DoesNotFit, NotFound, Unavailable
from allocations import fleet, ledger
from allocations.asking import with_settings
from allocations.bindings import BindFailed, OutcomeOpen
from allocations.choices import State
from allocations.collection import expire_holds
from allocations.engine.plan import plan
from allocations.errors import LostRace, MovedOn
from allocations.leases.port import LeaseTaken
from allocations.ledger.strangers import stranger_set
from allocations.models import Allocation
from allocations.outside import outside
from allocations.saga import carry_out, finish
from audit.choices import Kind
from audit.services import record
from claims.dialects import claim_request, stored_claim
from claims.dialects.gpuclaim import GANGS_UNAVAILABLE, TTL_SECONDS_MOST
from claims.dialects.request import Dialect, Refusal
from claims.models import GpuClaim
from kube import pods
from kube.errors import ConflictInCluster, KubeError, TemporaryKubeError

log = structlog.get_logger(__name__)

HOLD_SECONDS = 30
ATTEMPTS = 8


def claim_devices(*, claim: GpuClaim, actor: Actor, holder: str = "") -> Allocation:
    """Give devices to a client without a pod, as the claim asks. Returns a bound allocation.

    `holder` is a word of the client's own, part of the lease's holder identity. Raises DoesNotFit with
    the engine's summary, Conflict for a claim that cannot be served, Unavailable when a part is down.
    """
    actor.require_write(claim.namespace)
    manifest = {"metadata": {"name": claim.name, "namespace": claim.namespace}, "spec": claim.spec}
    spec = stored_claim(claim.name, manifest)
    if isinstance(spec, Refusal):
        raise Conflict(spec.reason)
    if spec is None:
        raise NotFound(f"GpuClaim {claim.name} does not exist")
    if spec.gang_ref:
        raise Conflict(GANGS_UNAVAILABLE)
    request = with_settings(claim_request(spec, name=claim.name, dialect=Dialect.REST))
    identity = f"{claim.namespace}/{holder or claim.name}/{uuid.uuid4()}"
    who = ledger.Holder(namespace=claim.namespace, identity=identity)
    blocked: set[int] = set()
    for _ in range(ATTEMPTS):
        look = fleet.look()
        moment = look.now
        decision = plan(look.picture, request, blocked=blocked | look.kept_from("", None))
        if decision.node is None:
            if expire_holds(moment):
                continue
            raise DoesNotFit(decision.summary)
        try:
            allocation_id = ledger.hold(
                holder=who,
                request=request,
                decision=decision,
                claim_id=claim.id,
                previous=None,
                now=moment,
                hold_seconds=HOLD_SECONDS,
                actor=actor.name,
            )
            live = ledger.read_live(allocation_id)
            if live is None:
                continue
            carry_out(live, outside(), now=moment)
        except LostRace as lost:
            blocked.update(lost.device_ids)
        except LeaseTaken as taken:
            stranger_set(
                device_uuid=taken.want.device_uuid,
                stranger=taken.holder,
                now=moment,
                actor=actor.name,
            )
        except MovedOn:
            continue
        except OutcomeOpen as error:
            raise Unavailable(str(error)) from error
        except BindFailed as error:
            raise Conflict(str(error)) from error
        else:
            return Allocation.objects.get(pk=allocation_id)
    raise DoesNotFit("others took the devices first, again and again")


def allocation_renew(*, allocation: Allocation, actor: Actor, ttl_seconds: int | None, now: datetime) -> Allocation:
    """Let a bound, time-bounded allocation end `ttl_seconds` from now (its own ttl where None).

    Raises Conflict (nothing to renew), MovedOn (it has ended), BadInput.
    """
    actor.require_write(allocation.namespace)
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
    """Renew every bound allocation of the claim; Conflict when there is none. One that ends meanwhile is left out."""
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
    """Give the devices back. Devices of a living pod come back when it is gone: Conflict, unless `evict` asks it to go.

    A pod that only holds them so far is no different: kube-scheduler may be binding it at this moment.

    Returns the allocation as it then is (still held or bound while an evicted pod ends). Raises Conflict,
    Unavailable (the API server is away).
    """
    actor.require_write(allocation.namespace)
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
        release_now(allocation_id=allocation.id, reason=f"released by {actor.name}", now=now, actor=actor.name)
    return Allocation.objects.get(pk=allocation.pk)


def release_now(*, allocation_id: uuid.UUID, reason: str, now: datetime, actor: str) -> bool:
    """Bound → releasing → released. True when the devices are back, False when collection has to go on."""
    live = ledger.read_live(allocation_id)
    if live is None:
        return False
    begun = ledger.begin_release(
        allocation_id=allocation_id,
        sources=(State.BOUND,),
        outcome=State.RELEASED,
        reason=reason,
        now=now,
        actor=actor,
    )
    return begun and finish(live, outside(), State.RELEASED, actor=actor)


def _pod_lives(allocation: Allocation) -> bool:
    """Whether its holder is a pod that is there and has not finished; without a cluster there is none. Raises Unavailable."""
    cluster = outside().cluster
    if cluster is None or not allocation.pod_uid:
        return False
    try:
        pod = pods.find(cluster, namespace=allocation.namespace, name=allocation.pod_name)
    except KubeError as error:
        raise Unavailable(f"the API server does not say whether the pod lives: {error}") from error
    return pod is not None and pod.metadata.uid == allocation.pod_uid and not pod.finished


def _evict(allocation: Allocation, actor: Actor, now: datetime) -> Allocation:
    cluster = outside().cluster
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
        kind=Kind.ALLOCATION_EVICTED,
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
