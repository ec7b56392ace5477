"""When the API server last answered.

Written by reconciling and by the pod watch, read by pages and `/readyz`. Kept in Redis. Invariants: reading and writing
never raise; an unknown state is stale.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import structlog
from django.conf import settings

from storage.redis_client import REDIS_ERRORS, Purpose, Redis, shared_client

KEY: Final = "gpuplane:cluster"
STALE_AFTER: Final = timedelta(seconds=60)
"""More than two periods of reconciling."""

log = structlog.get_logger(__name__)


class ClusterHealth(msgspec.Struct, frozen=True):
    """`seen_at` None: never, or unknown. `problem`: why the last request failed, empty where it did not."""

    seen_at: datetime | None = None
    problem: str = ""

    def stale(self, now: datetime) -> bool:
        """Whether the state of the cluster may have changed unseen."""
        return bool(self.problem) or self.seen_at is None or now - self.seen_at > STALE_AFTER


def cluster_answered(now: datetime) -> None:
    """The API server has just answered."""
    _write({"seen": now.timestamp(), "problem": ""})


def cluster_failed(problem: str) -> None:
    """The API server did not answer, and why."""
    _write({"problem": problem[:300]})


def cluster_state() -> ClusterHealth | None:
    """None without a cluster."""
    if not settings.GPUPLANE_KUBECONFIG:
        return None
    try:
        found: Any = _client().hgetall(KEY)
    except REDIS_ERRORS as error:
        return ClusterHealth(problem=f"Redis does not answer: {error}")
    seen = found.get("seen")
    return ClusterHealth(
        seen_at=datetime.fromtimestamp(float(seen), UTC) if seen else None, problem=found.get("problem", "")
    )


def _write(fields: dict[Any, Any]) -> None:
    try:
        _client().hset(KEY, mapping=fields)
    except REDIS_ERRORS as error:
        log.warning("cluster.health_unwritten", error=str(error))


def _client() -> Redis:
    return shared_client(settings.GPUPLANE_REDIS_URL, Purpose.STATUS, decode=True)
