"""The devices that a workload could get if every pod that may be evicted for it were gone.

Called by `reclaim`. A victim on any other device would be evicted in vain, and would use up the amount that may be
reclaimed from its queue.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from allocations.engine.needs import Need
from allocations.engine.plan import plan, serving
from allocations.engine.queueing.equal_pods import both

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from allocations.engine.queueing.placing import Placer
    from allocations.engine.queueing.workloads import Workload
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest


def devices_that_help(
    placer: Placer, snapshot: Snapshot, workload: Workload, *, blocked: Collection[int]
) -> NDArray[np.bool_]:
    """[d] these devices; none where it could be placed nowhere. `snapshot`: without all who may be taken."""
    found = np.zeros(len(snapshot.device_uuid), np.bool_)
    within = placer.rows_with_room(snapshot, workload, blocked=blocked)
    for request, allowed in dict.fromkeys((member.request, member.rows) for member in workload.members):
        found |= _of_request(snapshot, request, both(allowed, within), blocked)
    rows = snapshot.index.rows_of(list(blocked))
    found[rows[rows >= 0]] = False
    return found


def _of_request(
    snapshot: Snapshot, request: DeviceRequest, rows: Sequence[int] | None, blocked: Collection[int]
) -> NDArray[np.bool_]:
    found = np.zeros(len(snapshot.device_uuid), np.bool_)
    decision = plan(snapshot, request, candidates=rows, blocked=blocked, verdicts_up_to=0)
    if decision.node is None:
        return found
    able = serving(decision, snapshot)
    for ask in request.asks:
        need = Need(snapshot, ask)
        fits = need.view.rows[need.fits]
        found[fits[able[snapshot.device_node[fits]]]] = True
    return found
