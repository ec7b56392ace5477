"""Placement: plan, hold, and retry when a race is lost.

Called by filter, by bind for a pod without a usable hold, and by REST claims.

Invariants:
- Nothing is refused from a snapshot older than the request, nor while an expired hold could make room.
- A pod whose allocation is reserved, bound or releasing keeps it.
- Devices that are reserved for other preemptors are left alone.
- At most `TRIES` holds are tried.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from allocations import fleet, ledger
from allocations.choices import State
from allocations.engine.decision import Decision
from allocations.engine.plan import plan
from allocations.engine.snapshot import Snapshot
from allocations.errors import LostRace, MovedOn, PodHasOne
from allocations.leases.port import LeaseTaken
from allocations.ledger.external_holders import external_holder_set
from allocations.pod_request import PodRequest
from allocations.scheduling.expired_holds import expire_holds, lapsed_drop

TRIES: Final = 12
TRUSTED_TRIES: Final = TRIES // 2
"""After so many tries the devices of a lost race are left out; before, the next snapshot is trusted to show them."""
EXPLAINED_UP_TO: Final = 256
"""Candidates up to which a success has the reasons of other nodes; past it that is left to explain."""

Rows = NDArray[np.int32] | Sequence[int] | None
"""Node rows of a snapshot, ascending; None: every node."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Who asks for what.

    `hold_seconds`: replaces the asks' own; called once, when devices were found, since it may read from the API server.
    """

    holder: ledger.Holder
    asks: PodRequest
    hold_seconds: Callable[[], int] | None = None
    actor: str = "scheduler"
    queued: bool = False
    """Only the hold that the queues have made may be prolonged, or moved to other candidates."""


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


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    """The queues have not admitted the pod."""


@dataclass(frozen=True, slots=True)
class LostEveryRace:
    """Others took the devices first, each time."""


Outcome = Placed | Advised | AlreadyAllocated | Unplaced | NotAdmitted | LostEveryRace
_NOTHING: Final = ledger.PodAllocation(live=None, shunned=frozenset())


def place(
    request: PlacementRequest,
    candidates: Callable[[Snapshot], Rows],
    *,
    once_more: Callable[[fleet.FleetSnapshot], bool] | None = None,
    holds: bool = True,
    then: Callable[[uuid.UUID], object] | None = None,
) -> Outcome:
    """Find devices among the candidates and hold them.

    `once_more`: called before a refusal; True, once, to plan again. `holds` False: decide only. `then`: the next step,
    with the allocation's id; when it raises LeaseTaken or MovedOn, placing goes on. Raises what `candidates` and `then`
    raise otherwise.
    """
    uid, asks = request.holder.pod_uid, request.asks
    lost: set[int] = set()
    expired = False
    hold_seconds: int | None = None
    for number in range(TRIES):
        look = fleet.current()
        own = ledger.read_pod_allocation(uid, look.now) if uid else _NOTHING
        live = own.live
        if live is not None and live.state is not State.HELD:
            return AlreadyAllocated(live)
        if live is not None and live.lapsed(look.now):
            lapsed_drop(live.id, look.now)  # its node now ranks last
            continue
        if live is None and request.queued:
            return NotAdmitted()
        decision = plan(
            look.snapshot,
            asks.request,
            candidates=candidates(look.snapshot),
            own=None if live is None else live.amounts,
            last=[look.snapshot.node_index[name] for name in own.shunned if name in look.snapshot.node_index],
            blocked=lost | look.kept_from(uid, asks.rank),
            verdicts_up_to=EXPLAINED_UP_TO,
        )
        if decision.node is None:
            if not expired and expire_holds(look.now):
                expired = True
            elif once_more is not None and once_more(look):
                once_more = None
            else:
                return Unplaced(decision, look, own)
            continue
        if not holds:
            return Advised(decision, look)
        if hold_seconds is None:
            hold_seconds = asks.hold_seconds if request.hold_seconds is None else request.hold_seconds()
        try:
            allocation_id = ledger.hold(
                asks.terms(request.holder, by_kubelet=decision.by_kubelet, actor=request.actor),
                decision=decision,
                previous=live,
                now=look.now,
                hold_seconds=hold_seconds,
            )
            if then is not None:
                then(allocation_id)
        except LostRace as race:
            if number >= TRUSTED_TRIES:
                lost.update(race.device_ids)
        except LeaseTaken as taken:
            external_holder_set(taken.want.device_uuid, taken.holder, now=look.now, actor=request.actor)
        except (MovedOn, PodHasOne):
            continue
        else:
            return Placed(decision, allocation_id)
    return LostEveryRace()
