"""What workers count, for Prometheus: added up in Redis, where any web process can read it.

Started in the processes `worker` and `watch` by `gpuplane.celery`; read by `fleet/metrics/`. A worker has no door, and would need a port, a
rule in the NetworkPolicy and a monitor of its own to be scraped for a few numbers that seldom change. So each adds what it has counted since
the last time to one Redis hash (HINCRBYFLOAT), every `SECONDS`; the sums of all workers, dead ones included, are one set of series under
the names that a web process uses for its own.

Kept true: counters and histograms only, for a gauge is a matter of one process; what could not be sent stays counted and is sent later; a worker
that is killed loses at most `SECONDS` of counting; one whose last sending was done but not answered counts that twice. Redis may lose
everything: to Prometheus that is a counter that starts again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final, cast

import orjson
import redis
import structlog
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

KEY: Final = "gpuplane:counted"
SECONDS: Final = 5.0
TIMEOUT_SECONDS: Final = 2.0
PREFIX: Final = "gpuplane_"
SUMS: Final = ("counter", "histogram")

log = structlog.get_logger(__name__)


class Relay:
    """One process's side: remembers what it has sent."""

    def __init__(self, client: redis.Redis, registry: CollectorRegistry = REGISTRY) -> None:
        self._client = client
        self._registry = registry
        self._sent: dict[str, float] = {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._away = False

    def start(self) -> None:
        """Send from a thread, until `stop`."""
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send what is left, and end."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(3 * TIMEOUT_SECONDS)

    def send(self) -> None:
        """Add what was counted since the last time. Raises Redis' errors; then it counts for the next."""
        now = dict(self._counted())
        grown = {field: value - self._sent.get(field, 0.0) for field, value in now.items()}
        news = {field: by for field, by in grown.items() if by or field not in self._sent}
        if not news:
            return
        with self._client.pipeline(transaction=True) as pipeline:
            for field, by in news.items():
                pipeline.hincrbyfloat(KEY, field, by)
            pipeline.execute()
        self._sent = now

    def _run(self) -> None:
        while not self._stopped.wait(SECONDS):
            self._try()
        self._try()

    def _try(self) -> None:
        try:
            self.send()
        except (redis.RedisError, OSError) as error:
            if not self._away:
                log.warning("relay.redis_down", why=str(error))
            self._away = True
        else:
            self._away = False

    def _counted(self) -> Iterator[tuple[str, float]]:
        for family in self._registry.collect():
            if not family.name.startswith(PREFIX) or family.type not in SUMS:
                continue
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    field = [family.name, family.type, sample.name, sample.labels]
                    yield orjson.dumps(field).decode(), sample.value


class _Counted(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """As Prometheus' library asks for them."""
        return iter(self._families)


def connect(url: str) -> redis.Redis:
    """A client that does not wait long."""
    client: redis.Redis = redis.Redis.from_url(
        url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
    )
    return client


def relayed(client: redis.Redis) -> str:
    """The sums of all workers, text format 0.0.4; nothing while Redis is away."""
    try:
        kept = cast("dict[bytes, bytes]", client.hgetall(KEY))
    except (redis.RedisError, OSError) as error:
        log.info("relay.unread", why=str(error))
        return ""
    families: dict[str, Metric] = {}
    for field, value in sorted(kept.items(), key=_order):
        name, kind, sample, labels = orjson.loads(field)
        family = families.setdefault(name, Metric(name, "Counted by all workers together", kind))
        family.add_sample(sample, labels, float(value))
    registry = CollectorRegistry()
    registry.register(_Counted(list(families.values())))
    return generate_latest(registry).decode()


def _order(kept: tuple[bytes, bytes]) -> tuple[str, str, float, str]:
    """Buckets of a histogram by their limit, as the format wants them."""
    name, _, sample, labels = orjson.loads(kept[0])
    limit = float(labels.get("le", "inf"))
    others = orjson.dumps({key: value for key, value in labels.items() if key != "le"}).decode()
    return name, others, limit, sample
