"""Publishes where GpuQueues and GpuGangs stand, in their `status` at the API server (QUEUE-1, CLAIM-8).

Called by `allocations.tasks.publish_claims`. Invariants: a status is written only when it differs from what was
published last; what could not be written waits for the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from allocations.publish.claim_status import status_publish
from allocations.queue_statuses import gang_statuses, queue_statuses
from claims.kinds import GANG, QUEUE, Kind
from kube.client import Cluster

WRITES_A_TURN: Final = 200
CHUNK: Final = 500

_PARTS: Final[tuple[tuple[Kind[Any], Callable[[Sequence[Any]], dict[int, dict[str, Any]]]], ...]] = (
    (QUEUE, queue_statuses),
    (GANG, gang_statuses),
)


def publish(*, cluster: Cluster, now: datetime) -> int:
    """Write every status that changed, a bounded number; how many. Raises TemporaryKubeError."""
    written = 0
    for kind, statuses_of in _PARTS:
        rows = list(kind.rows)
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            statuses = statuses_of(some)
            for row in some:
                if statuses[row.pk] == row.published_status:
                    continue
                if written >= WRITES_A_TURN:
                    return written
                status_publish(kind, cluster=cluster, row=row, status=statuses[row.pk], now=now)
                written += 1
    return written
