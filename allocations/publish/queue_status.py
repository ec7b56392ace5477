"""Publishes where GpuQueues and GpuGangs stand, in their `status` at the API server (QUEUE-1, CLAIM-8).

Called by `allocations.tasks.publish_claims`. Invariants: a status is written only when it differs from what was
published last; what could not be written waits for the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import structlog

from allocations.publish.claim_status import FAILING_MOST, status_publish
from allocations.queue_statuses import gang_statuses, queue_statuses
from claims.kinds import GANG, QUEUE, Kind
from kube.client import Cluster
from kube.errors import TemporaryKubeError

WRITES_A_TURN: Final = 200
TRIES_A_TURN: Final = 400
"""With those that the API server refuses."""
CHUNK: Final = 500

log = structlog.get_logger(__name__)

_PARTS: Final[tuple[tuple[Kind[Any], Callable[[Sequence[Any]], dict[int, dict[str, Any]]]], ...]] = (
    (QUEUE, queue_statuses),
    (GANG, gang_statuses),
)


def publish(*, cluster: Cluster, now: datetime) -> int:
    """Write every status that changed, a bounded number; how many.

    A queue, or a namespace's gangs, that cannot be written for the moment waits for the next run, and delays no other.
    Raises TemporaryKubeError where nothing could be written.
    """
    tried, written, failing = 0, 0, dict[str, TemporaryKubeError]()
    for kind, statuses_of in _PARTS:
        rows = list(kind.rows)
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            statuses = statuses_of(some)
            for row in some:
                if statuses[row.pk] == row.published_status or _scope(row) in failing:
                    continue
                if written >= WRITES_A_TURN or tried >= TRIES_A_TURN:
                    return written
                tried += 1
                try:
                    written += status_publish(kind, cluster=cluster, row=row, status=statuses[row.pk], now=now)
                except TemporaryKubeError as error:
                    log.warning("queues.status_unwritten", object=str(row), error=str(error))
                    failing[_scope(row)] = error
                    if len(failing) >= FAILING_MOST and not written:
                        raise
    if failing and not written:
        raise next(iter(failing.values()))
    return written


def _scope(row: Any) -> str:
    """What fails together."""
    return str(row.namespace or row.name)
