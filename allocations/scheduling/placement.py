"""Placement: plan, hold, and retry when a race is lost.

Called by filter, by bind for a pod without a usable hold, by REST claims (`place`, and `hold_found` for those that a
queue admits), by the queueing loop (`hold_workloads`), and for slots of models (`hold_found`).

Invariants:
- No other module holds devices.
- Nothing is refused from a snapshot older than the request, nor while an expired hold could make room.
- A pod whose allocation is reserved, bound or releasing keeps it.
- Devices that are reserved for other preemptors are left alone.
- At most `TRIES` holds are tried.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec
import structlog
from django.conf import settings

from allocations import fleet, ledger
from allocations.choices import State
from allocations.engine.decision import Decision
from allocations.engine.plan import EXPLAINED_UP_TO, NodeRows, plan
from allocations.engine.snapshot import Snapshot
from allocations.errors import LostRace, MovedOn, NewerDecision, PodHasOne
from allocations.leases.port import LeaseTaken
from allocations.ledger.external_holders import external_holder_set
from allocations.ledger.hold import NewHold, hold_all
from allocations.ledger.queue_fence import Fence
from allocations.pod_request import PodRequest
from allocations.scheduling.expired_holds import expire_holds, lapsed_drop
from allocations.scheduling.planning_input import PlanningInput, planning_input
from allocations.scheduling.queueing.candidates import admitted_request, others_of_mix
from claims.dialects.request import DeviceAsk, DeviceRequest
from claims.membership import Membership, queues_admit

TRIES: Final = 12
TRUSTED_TRIES: Final = TRIES // 2
"""After so many tries the devices of a lost race are left out; before, the next snapshot is trusted to show them."""

PODS_A_TRANSACTION: Final = 64
"""Pods of workloads that are held in one transaction, which costs the same for one pod as for many."""

CandidateRows = Callable[[Snapshot, ledger.Live | None], NodeRows]
"""The node rows that may serve a request; the second argument is the hold that the queues made for the pod, if any."""

Ended = TypeVar("Ended")
"""How placement ends without a hold."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Who asks for what.

    `hold_seconds`: replaces the asks' own; called once, when devices were found, since it may read from the API server.
    `first`: what the first try plans with, where that was read already. `offered`: names of the candidates, where the
    caller knows them before their rows.
    """

    holder: ledger.Holder
    pod_request: PodRequest
    hold_seconds: Callable[[], int] | None = None
    actor: str = "scheduler"
    first: Callable[[], PlanningInput | None] | None = None
    offered: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Placed:
    """The devices are held, and `then` was called."""

    decision: Decision
    allocation_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class Advised:
    """The devices were found; nothing is held."""

    decision: Decision
    look: fleet.FleetSnapshot


@dataclass(frozen=True, slots=True)
class AlreadyAllocated:
    """The pod's allocation is reserved, bound or being released."""

    live: ledger.Live


@dataclass(frozen=True, slots=True)
class Unplaced:
    """No candidate has room; `look` and `own` are what the decision is based on."""

    decision: Decision
    look: fleet.FleetSnapshot
    own: ledger.PodAllocation

    @property
    def now(self) -> datetime:
        """When it was decided."""
        return self.look.now


@dataclass(frozen=True, slots=True)
class RefusedByQueues:
    """The queues do not let the request go; `reason` says why."""

    reason: str
    now: datetime


@dataclass(frozen=True, slots=True)
class NotFree:
    """Devices that were chosen before are not free now; `reason` says which and why."""

    reason: str
    now: datetime


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    """The queues have not admitted the pod. `changed`: they had, for other devices than it asks for now."""

    changed: bool = False


@dataclass(frozen=True, slots=True)
class LostEveryRace:
    """Others took the devices first, each time."""


NotPlaced = Advised | AlreadyAllocated | Unplaced | NotAdmitted
Outcome = Placed | LostEveryRace | NotPlaced


class Found(NamedTuple):
    """Devices that one try found. `hold`: holds them, and returns the allocation's id. `now`: when it was decided."""

    decision: Decision
    hold: Callable[[], uuid.UUID]
    now: datetime


def place(
    request: PlacementRequest,
    candidates: CandidateRows,
    *,
    once_more: Callable[[fleet.FleetSnapshot], bool] | None = None,
    holds: bool = True,
    then: Callable[[uuid.UUID], object] | None = None,
) -> Outcome:
    """Find devices among the candidates and hold them.

    A pod of a queue gets no new hold here: the hold that its admission made is prolonged, or moved to other
    devices of the same models, even if `holds` is False; it ends where the pod asks for others by now.

    `once_more`: called before a refusal; True, once, to plan again. `holds` False: decide only. `then`: the next step,
    with the allocation's id; when it raises LeaseTaken or MovedOn, placing goes on. Raises what `candidates` and `then`
    raise otherwise.
    """
    find = _PodPlacement(request, candidates, holds=holds).find
    return hold_found(find, actor=request.actor, once_more=once_more, then=then)


def hold_found(
    find: Callable[[Collection[int]], Found | Ended | None],
    *,
    actor: str,
    once_more: Callable[[fleet.FleetSnapshot], bool] | None = None,
    then: Callable[[uuid.UUID], object] | None = None,
) -> Placed | LostEveryRace | Ended:
    """Hold the devices that `find` finds, and try again when a race is lost. `once_more`, `then`: as for `place`.

    `find`: one try. Its argument: ids of devices to leave out. What it returns but `Found` ends placement; None:
    something changed, so the next try reads the ledger again.
    """
    lost: set[int] = set()
    expired = False
    for number in range(TRIES):
        match find(lost):
            case None:
                continue
            case Unplaced(now=now) | RefusedByQueues(now=now) | NotFree(now=now) if not expired and expire_holds(now):
                expired = True
                continue
            case Unplaced(look=look) if once_more is not None and once_more(look):
                once_more = None
                continue
            case Found() as found:
                pass
            case outcome:
                return outcome
        try:
            allocation_id = found.hold()
            if then is not None:
                then(allocation_id)
        except LostRace as race:
            if number >= TRUSTED_TRIES:
                lost.update(race.device_ids)
        except LeaseTaken as taken:
            external_holder_set(taken.want.device_uuid, taken.holder, now=found.now, actor=actor)
        except (MovedOn, PodHasOne):
            continue
        else:
            return Placed(found.decision, allocation_id)
    return LostEveryRace()


class _PodPlacement:
    """The tries of one request."""

    def __init__(self, request: PlacementRequest, candidates: CandidateRows, *, holds: bool) -> None:
        self._request = request
        self._candidates = candidates
        uid, pod_request = request.holder.pod_uid, request.pod_request
        self._queued = bool(uid) and queues_admit(pod_request.membership, request.holder.namespace)
        self._holds = holds or self._queued
        self._hold_seconds: int | None = None

    def find(self, lost: Collection[int]) -> Found | NotPlaced | None:
        """Plan with the ledger as it is now."""
        request = self._request
        uid, pod_request = request.holder.pod_uid, request.pod_request
        first = None if request.first is None else request.first()
        look, own = first or planning_input(uid)
        live = own.live
        if live is not None and live.state is not State.HELD:
            return AlreadyAllocated(live)
        if live is not None and live.lapsed(look.now):
            lapsed_drop(live.id, look.now)  # its node now ranks last
            return None
        if live is None and self._queued:
            return NotAdmitted()
        admitted = live if self._queued else None
        if admitted is not None and _asks(admitted.request) != _asks(pod_request.request):
            return NotAdmitted(changed=True) if self._drop(admitted, look.now) else None
        decision = plan(
            look.snapshot,
            pod_request.request if admitted is None else admitted_request(look.snapshot, admitted, pod_request.request),
            candidates=partial(self._candidates, look.snapshot, admitted),
            offered=self._offered(len(look.snapshot.node_names)),
            own=None if live is None else live.amounts,
            last=[look.snapshot.node_index[name] for name in own.shunned if name in look.snapshot.node_index],
            blocked=look.blocked(
                uid,
                pod_request.rank,
                pod_request.request,
                admitted=() if admitted is None else admitted.amounts.keys(),
            ).union(lost, () if admitted is None else others_of_mix(look.snapshot, admitted)),
            verdicts_up_to=EXPLAINED_UP_TO,
        )
        if decision.node is None:
            return Unplaced(decision, look, own)
        if not self._holds:
            return Advised(decision, look)
        return Found(decision, partial(self._hold, decision, live, look.now), look.now)

    def _drop(self, admitted: ledger.Live, now: datetime) -> bool:
        return ledger.drop_hold(
            allocation_id=admitted.id,
            outcome=State.RELEASED,
            reason="the pod asks for other devices than it was admitted for",
            now=now,
            actor=self._request.actor,
        )

    def _offered(self, nodes: int) -> Sequence[str] | None:
        """The candidates' names, if they are most of the fleet and no reasons of other nodes are owed."""
        offered = self._request.offered
        is_most = EXPLAINED_UP_TO < nodes <= 2 * len(offered)
        return offered if is_most and self._holds and not self._queued else None

    def _hold(self, decision: Decision, live: ledger.Live | None, now: datetime) -> uuid.UUID:
        request, pod_request = self._request, self._request.pod_request
        if self._hold_seconds is None:
            self._hold_seconds = pod_request.hold_seconds if request.hold_seconds is None else request.hold_seconds()
        terms = pod_request.terms(request.holder, by_kubelet=decision.by_kubelet, actor=request.actor)
        if live is not None and self._queued:
            terms = msgspec.structs.replace(terms, membership=_as_admitted(live.membership, terms.membership))
        return ledger.hold(
            terms,
            decision=decision,
            previous=live,
            now=now,
            hold_seconds=self._hold_seconds,
        )


def _as_admitted(admitted: Membership, now: Membership) -> Membership:
    """What the pod counts as on other devices: nobody decided upon labels that were edited after its admission."""
    return msgspec.structs.replace(now, queue=admitted.queue, gang=admitted.gang, preemptible=admitted.preemptible)


def _asks(request: DeviceRequest) -> list[DeviceAsk]:
    """What it asks for, without what the engine gave to it."""
    return [msgspec.structs.replace(ask, given=()) for ask in request.asks]


def hold_workloads(
    workloads: Sequence[Sequence[NewHold]], *, fence: Fence, now: datetime
) -> list[list[uuid.UUID] | None]:
    """Hold the devices of these workloads in this order, each whole: the allocations, None where a race was lost.

    Several share a transaction; where that loses a race, each is held alone. There is no retry here: the caller decides
    about all of them again. Raises NewerDecision when others have decided meanwhile.
    """
    held: list[list[uuid.UUID] | None] = []
    for batch in _batches(workloads):
        together = [one for workload in batch for one in workload]
        if (ids := _hold_whole(together, fence, now)) is not None:
            rest = iter(ids)
            held += [[next(rest) for _ in workload] for workload in batch]
        elif len(batch) == 1:
            held.append(None)
        else:
            held += [_hold_whole(workload, fence, now) for workload in batch]
    return held


def _batches(workloads: Sequence[Sequence[NewHold]]) -> Iterator[list[Sequence[NewHold]]]:
    batch: list[Sequence[NewHold]] = []
    for workload in workloads:
        if batch and sum(map(len, batch)) + len(workload) > PODS_A_TRANSACTION:
            yield batch
            batch = []
        batch.append(workload)
    if batch:
        yield batch


def _hold_whole(holds: Sequence[NewHold], fence: Fence, now: datetime) -> list[uuid.UUID] | None:
    try:
        made = hold_all(holds, fence=fence, now=now)
    except NewerDecision:
        raise
    except (LostRace, PodHasOne, MovedOn) as error:
        log.info("placement.race_lost", pods=len(holds), first=holds[0].terms.holder.label, error=str(error))
        return None
    fence.admissions += 1
    return made


def hold_one(hold: NewHold, *, fence: Fence, now: datetime) -> uuid.UUID:
    """Hold the devices of a request that the queues let go, for `Found`. Raises LostRace, PodHasOne and MovedOn."""
    (made,) = hold_all([hold], fence=fence, now=now)
    return made


def hold_planned(terms: ledger.Terms, decision: Decision, *, now: datetime) -> uuid.UUID:
    """Hold the devices that a caller's own plan chose, for `Found`. Raises LostRace."""
    seconds = settings.GPUPLANE_HOLD_SECONDS
    return ledger.hold(terms, decision=decision, previous=None, now=now, hold_seconds=seconds)
