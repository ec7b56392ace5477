"""Follows edited claims with `spec.resize`: their live shares get the claim's amounts, each by itself.

Called every few seconds by `allocations.tasks.resize_claims`. Invariants: it is level-based, so any number of turns may
run; a share that is refused keeps what it has, the claim's condition `Resized` says why, and each turn tries again; an
event is written when the condition changes, not each turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import structlog

from access.errors import Conflict
from allocations.backends import Backends
from allocations.choices import State
from allocations.engine.resize import WHOLE, Amounts, share_of
from allocations.ledger.reads import request_of
from allocations.models import Allocation
from allocations.scheduling.resizing.share import resize_share
from audit.choices import EventKind
from audit.services import record
from claims.choices import Phase
from claims.dialects.claim_manifest import ClaimSpec, parse_claim_spec
from claims.dialects.gpuclaim import claim_request
from claims.dialects.request import DeviceAsk
from claims.manifest_metadata import ManifestInvalid
from claims.models import GpuClaim
from storage.transactions import atomic_retry

ACTOR: Final = "claim"
CONDITION: Final = "Resized"

log = structlog.get_logger(__name__)


class _Condition(NamedTuple):
    """What the claim's condition says."""

    status: str
    reason: str
    message: str


def resize_claims(*, backends: Backends, now: datetime) -> int:
    """One turn over all claims that say so; how many shares were resized."""
    return sum(_follow(claim, backends, now) for claim in GpuClaim.objects.filter(spec__resize=True))


def _follow(claim: GpuClaim, backends: Backends, now: datetime) -> int:
    try:
        spec = parse_claim_spec(claim.spec)
    except ManifestInvalid:
        return 0  # the claim's phase says so
    if claim.phase == Phase.INVALID:
        return 0
    done, refused = 0, list[tuple[Allocation, str]]()
    held = Allocation.objects.filter(claim=claim, state=State.BOUND).select_related("node")
    for allocation in held.order_by("created_at", "id"):
        try:
            done += _resize(allocation, spec, backends, now)
        except Conflict as error:
            refused.append((allocation, str(error)))
    condition = _Condition("True", "AsClaimed", "")
    if refused:
        more = f"; {len(refused) - 1} more are refused" if len(refused) > 1 else ""
        condition = _Condition(
            "False", "Refused", f"{refused[0][0].pod_name or refused[0][0].holder}: {refused[0][1]}{more}"
        )
    if _note(claim.pk, condition, now) and refused:
        _record(claim, refused[0][0], refused[0][1], now)
    return done


def _resize(allocation: Allocation, spec: ClaimSpec, backends: Backends, now: datetime) -> bool:
    """Whether the share had other amounts. Raises Conflict."""
    request = request_of(allocation.request)
    wanted = claim_request(spec).asks[0]
    (first, *_) = request.asks
    if (_fixed(first), _amounts(first), first.whole) == (_fixed(wanted), _amounts(wanted), wanted.whole):
        return False
    has = share_of(request)
    if isinstance(has, str) or wanted.whole:
        raise Conflict(WHOLE if isinstance(has, str) and has == WHOLE else "a share cannot become whole devices")
    if _fixed(has) != _fixed(wanted):
        raise Conflict("the number and the type of devices cannot be changed in place")
    core, memory_bytes, memory_ratio = _amounts(wanted)
    amounts = Amounts(core, memory_bytes if memory_ratio is None else None, memory_ratio)
    return resize_share(allocation.pk, amounts, backends=backends, now=now, actor=ACTOR)


def _amounts(ask: DeviceAsk) -> tuple[int, int, int | None]:
    """Core, bytes and ratio; an amount that is not asked for is 0."""
    return ask.core_percent or 0, ask.memory_bytes or 0, ask.memory_ratio


def _fixed(ask: DeviceAsk) -> tuple[str, int]:
    return ask.type, ask.count


@atomic_retry
def _note(claim_id: int, condition: _Condition, now: datetime) -> bool:
    """Write the claim's condition; whether it says something else than before. A claim without a refusal gets none
    before its first.
    """
    claim = GpuClaim.objects.select_for_update(no_key=True).filter(pk=claim_id).first()
    if claim is None:
        return False
    before = next((one for one in claim.conditions if one["type"] == CONDITION), None)
    if before is None and condition.status == "True":
        return False
    if before is not None and _Condition(before["status"], before["reason"], before["message"]) == condition:
        return False
    since = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if before is not None and before["status"] == condition.status:
        since = before["lastTransitionTime"]
    written: Mapping[str, Any] = {"type": CONDITION, **condition._asdict(), "lastTransitionTime": since}
    others = [one for one in claim.conditions if one["type"] != CONDITION]
    GpuClaim.objects.filter(pk=claim_id).update(conditions=[*others, written])
    return True


def _record(claim: GpuClaim, allocation: Allocation, why: str, now: datetime) -> None:
    """An event, which also has the claim's status published."""
    record(
        kind=EventKind.RESIZE_REFUSED,
        message=f"{allocation.pod_name or allocation.holder} keeps its share on {allocation.node.name}: {why}",
        actor=ACTOR,
        now=now,
        namespace=claim.namespace,
        name=allocation.pod_name,
        node=allocation.node.name,
        claim=claim.name,
        allocation_id=allocation.pk,
    )
