"""Metrics of workers for Prometheus, added up in Redis, where any web process can read them.

Started in the processes `worker` and `watch` by `gpuplane.celery`; read by `fleet/metrics/`. To be scraped, a worker
would need a port, a rule in the NetworkPolicy and a monitor of its own, for a few numbers that seldom change. Instead
each adds its increments to one Redis hash (HINCRBYFLOAT) every `SECONDS`; the sums of all workers, dead ones included,
are one set of series under the names that a web process uses.

Invariants: counters and histograms only, since a gauge is of one process; increments that could not be sent are sent
later; a worker that is killed loses at most `SECONDS` of increments; those that were sent but not acknowledged count
twice. When Redis loses everything, Prometheus sees a counter that starts again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final, cast

import orjson
import structlog
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric

from allocations.publish.exposition import exposition
from storage.redis_client import REDIS_ERRORS, Purpose, Redis

KEY: Final = "gpuplane:counted"
SECONDS: Final = 5.0
PREFIX: Final = "gpuplane_"
SUMS: Final = ("counter", "histogram")

log = structlog.get_logger(__name__)


class Relay:
    """Sends one process's increments."""

    def __init__(self, connection: Redis, registry: CollectorRegistry = REGISTRY) -> None:
        self._client = connection
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
            self._thread.join(3 * Purpose.WORK.seconds)

    def send(self) -> None:
        """Send the increments since the last `send` that succeeded. Raises Redis' errors."""
        now = dict(self._samples())
        increments = {
            field: value - self._sent.get(field, 0.0) for field, value in now.items() if value != self._sent.get(field)
        }
        if not increments:
            return
        with self._client.pipeline(transaction=True) as pipeline:
            for field, increment in increments.items():
                pipeline.hincrbyfloat(KEY, field, increment)
            pipeline.execute()
        self._sent = now

    def _run(self) -> None:
        while not self._stopped.wait(SECONDS):
            self._try()
        self._try()

    def _try(self) -> None:
        try:
            self.send()
        except REDIS_ERRORS as error:
            if not self._away:
                log.warning("relay.redis_down", why=str(error))
            self._away = True
        else:
            self._away = False

    def _samples(self) -> Iterator[tuple[str, float]]:
        for family in self._registry.collect():
            if not family.name.startswith(PREFIX) or family.type not in SUMS:
                continue
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    field = [family.name, family.type, sample.name, sample.labels]
                    yield orjson.dumps(field).decode(), sample.value


def relayed(connection: Redis) -> str:
    """The sums of all workers, text format 0.0.4; empty while Redis is away."""
    try:
        sums = cast("dict[bytes, bytes]", connection.hgetall(KEY))
    except REDIS_ERRORS as error:
        log.info("relay.unread", why=str(error))
        return ""
    families: dict[str, Metric] = {}
    for field, value in sorted(sums.items(), key=_order):
        name, kind, sample, labels = orjson.loads(field)
        family = families.setdefault(name, Metric(name, "Counted by all workers together", kind))
        family.add_sample(sample, labels, float(value))
    return exposition(families.values())


def _order(item: tuple[bytes, bytes]) -> tuple[str, str, float, str]:
    """Orders samples as the format requires, buckets of a histogram by their limit."""
    name, _, sample, labels = orjson.loads(item[0])
    limit = float(labels.get("le", "inf"))
    others = orjson.dumps({key: value for key, value in labels.items() if key != "le"}).decode()
    return name, others, limit, sample
