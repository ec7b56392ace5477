"""Publishes where GpuQueues and GpuGangs stand, in their `status` at the API server (QUEUE-1, CLAIM-8).

Called by `allocations.tasks.publish_claims`. Invariants: a status is written only when it differs from what was
published last; what could not be written waits for the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import structlog

from allocations.publish.claim_status import FAILING_MOST, status_publish
from allocations.queue_statuses import gang_statuses, queue_statuses
from claims.kinds import GANG, QUEUE, Kind
from kube.client import Cluster
from kube.errors import TemporaryKubeError

TRIES_A_TURN: Final = 200
"""Of each kind, with those that the API server refuses."""
CHUNK: Final = 500

log = structlog.get_logger(__name__)

StatusesOf = Callable[[Sequence[Any]], dict[int, dict[str, Any]]]

_PARTS: Final[tuple[tuple[Kind[Any], StatusesOf], ...]] = (
    (QUEUE, queue_statuses),
    (GANG, gang_statuses),
)


class Publisher:
    """Of one process. A run goes on behind the object at which the last one ended."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, str]] = {}

    def publish(self, *, cluster: Cluster, now: datetime) -> int:
        """Write every status that changed, a bounded number of each kind; how many.

        A queue, or a namespace's gangs, that cannot be written for the moment waits for the next run, and delays no
        other. Raises TemporaryKubeError where nothing could be written.
        """
        written, failed = 0, list[TemporaryKubeError]()
        for kind, statuses_of in _PARTS:
            tried, failing = 0, set[str]()
            for row, status in self._changed(kind, statuses_of):
                if tried >= TRIES_A_TURN or len(failing) >= FAILING_MOST:
                    break
                if _scope(row) in failing:
                    continue
                tried += 1
                self._last[kind.name] = row.namespace, row.name
                try:
                    written += status_publish(kind, cluster=cluster, row=row, status=status, now=now)
                except TemporaryKubeError as error:
                    log.warning("queues.status_unwritten", object=str(row), error=str(error))
                    failing.add(_scope(row))
                    failed.append(error)
        if failed and not written:
            raise failed[0]
        return written

    def _changed(self, kind: Kind[Any], statuses_of: StatusesOf) -> Iterator[tuple[Any, dict[str, Any]]]:
        rows = sorted(kind.rows, key=lambda row: (row.namespace, row.name))
        last = self._last.get(kind.name, ("", ""))
        first = next((place for place, row in enumerate(rows) if (row.namespace, row.name) > last), 0)
        rows = rows[first:] + rows[:first]
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            statuses = statuses_of(some)
            yield from ((row, statuses[row.pk]) for row in some if statuses[row.pk] != row.published_status)


def _scope(row: Any) -> str:
    """What fails together."""
    return str(row.namespace or row.name)
