"""When the cluster was last seen, for everybody who shows its state (DESIGN §6: API server down, shown as stale).

Written by reconciling and by the pod watch, read by pages and `/readyz`. Kept in Redis, as what it tells is
worth nothing after a restart. Kept true: reading and writing never raise; what is not known is not called fresh.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import msgspec
import redis
import structlog
from django.conf import settings

KEY: Final = "gpuplane:cluster"
STALE_AFTER: Final = timedelta(seconds=60)
"""More than two periods of reconciling."""
REDIS_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


class Sighting(msgspec.Struct, frozen=True):
    """`seen_at` None: never, or not known. `problem`: why the last try failed, empty when it did not."""

    seen_at: datetime | None = None
    problem: str = ""

    def stale(self, now: datetime) -> bool:
        """Whether what is shown may no longer be so."""
        return bool(self.problem) or self.seen_at is None or now - self.seen_at > STALE_AFTER


def cluster_seen(now: datetime) -> None:
    """The API server has just answered."""
    _write({"seen": now.timestamp(), "problem": ""})


def cluster_missed(problem: str) -> None:
    """The API server did not answer, and why."""
    _write({"problem": problem[:300]})


def cluster_sighting() -> Sighting | None:
    """None without a cluster."""
    if not settings.GPUPLANE_KUBECONFIG:
        return None
    try:
        found: Any = _client(settings.GPUPLANE_REDIS_URL).hgetall(KEY)
    except (redis.RedisError, OSError) as error:
        return Sighting(problem=f"Redis does not answer: {error}")
    seen = found.get(b"seen")
    return Sighting(
        seen_at=datetime.fromtimestamp(float(seen), UTC) if seen else None, problem=found.get(b"problem", b"").decode()
    )


def _write(fields: dict[Any, Any]) -> None:
    try:
        _client(settings.GPUPLANE_REDIS_URL).hset(KEY, mapping=fields)
    except (redis.RedisError, OSError) as error:
        log.warning("cluster.sighting_unwritten", error=str(error))


@lru_cache(maxsize=2)
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS)
