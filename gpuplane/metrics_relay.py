"""Metrics of workers for Prometheus, added up in Redis, where any web process can read them.

Started in the processes `worker` and `watch` by `gpuplane.celery`; read by `fleet/metrics/`. To be scraped, a worker
would need a port, a rule in the NetworkPolicy and a monitor of its own, for a few numbers that seldom change. Instead
each adds its increments to one Redis hash (HINCRBYFLOAT) every `SECONDS`; the sums of all workers, dead ones included,
are one set of series under the names that a web process uses.

Invariants: counters and histograms only, since a gauge is of one process; increments that could not be sent are sent
later; a worker that is killed loses at most `SECONDS` of increments; those that were sent but not acknowledged count
twice. When Redis loses everything, Prometheus sees counters that start again, each with all its series. A family's sums
are of one form, its labels and buckets: that of the process that started last, so a release with others starts anew.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable, Mapping
from typing import Final, cast
from uuid import uuid4

import orjson
import structlog
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from allocations.publish.exposition import exposition
from storage.redis_client import REDIS_ERRORS, Purpose, Redis

KEY: Final = "gpuplane:counted"
"""Redis hash: field of a sample (JSON, `_Field`) → its sum; GENERATION; FORM and a family's name → its form."""
GENERATION: Final = b"generation"
"""Field with a text that is new whenever the hash is."""
FORM: Final = b"form:"
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
        self._generation: bytes | None = None
        self._forms: Mapping[str, str] = {}
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
        now, forms = self._read()
        self._client.hsetnx(KEY, GENERATION, uuid4().hex)
        generation = cast("bytes", self._client.hget(KEY, GENERATION))
        is_new = generation != self._generation
        if is_new or forms != self._forms:  # a family without a series has no form yet
            self._set_forms(forms)
        increments = {
            field: value - self._sent.get(field, 0.0)
            for field, value in now.items()
            if is_new or value != self._sent.get(field)  # series that stand still come again by 0
        }
        with self._client.pipeline(transaction=True) as pipeline:
            for field, increment in increments.items():
                pipeline.hincrbyfloat(KEY, field, increment)
            pipeline.execute()
        self._sent, self._generation, self._forms = now, generation, forms

    def _set_forms(self, forms: Mapping[str, str]) -> None:
        """Make this process's forms those of its families, and delete sums of others, and of older releases."""
        kept = cast("list[bytes]", self._client.hkeys(KEY))
        others = [field for field in kept if field.startswith(b"[") and not _is_of(forms, field)]
        with self._client.pipeline(transaction=True) as pipeline:
            for name, form in forms.items():
                pipeline.hset(KEY, FORM + name.encode(), form)
            if others:
                pipeline.hdel(KEY, *others)
            pipeline.execute()

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
        except Exception:  # a defect must not end the thread
            log.exception("relay.failed")
        else:
            self._away = False

    def _read(self) -> tuple[dict[str, float], dict[str, str]]:
        """(field → value, family → form) as they are now; a family without a series has neither."""
        values: dict[str, float] = {}
        forms: dict[str, str] = {}
        for family in self._registry.collect():
            if not family.name.startswith(PREFIX) or family.type not in SUMS:
                continue
            samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            if not samples:
                continue
            form = forms[family.name] = _form(samples)
            for sample in samples:
                field: _Field = (family.name, family.type, sample.name, sample.labels, form)
                values[orjson.dumps(field).decode()] = sample.value
        return values, forms


_Field = tuple[str, str, str, dict[str, str], str]
"""Name of the family, its type, name of the sample, its labels, the family's form."""
FIELD_PARTS: Final = 5


def _form(samples: Iterable[Sample]) -> str:
    """A checksum of the labels' names and the buckets."""
    labels = [sample.labels for sample in samples]
    limits = sorted({one["le"] for one in labels if "le" in one})
    return f"{zlib.crc32(orjson.dumps([sorted({name for one in labels for name in one}), limits])):08x}"


def _is_of(forms: Mapping[str, str], raw: bytes) -> bool:
    """Whether the field has the form of its family, or is of a family that this process does not have."""
    field = _field(raw)
    return field is not None and forms.get(field[0], field[4]) == field[4]


def _field(raw: bytes) -> _Field | None:
    """None: no field of a sample, or that of an older release."""
    if not raw.startswith(b"["):
        return None
    parts = orjson.loads(raw)
    return None if len(parts) != FIELD_PARTS else (parts[0], parts[1], parts[2], parts[3], parts[4])


def relayed(connection: Redis) -> str:
    """The sums of all workers, text format 0.0.4; empty while Redis is away."""
    try:
        sums = cast("dict[bytes, bytes]", connection.hgetall(KEY))
    except REDIS_ERRORS as error:
        log.info("relay.unread", why=str(error))
        return ""
    families: dict[str, Metric] = {}
    fields = [(one, float(value)) for raw, value in sums.items() if (one := _field(raw)) is not None]
    for (name, kind, sample, labels, form), value in sorted(fields, key=_order):
        if sums.get(FORM + name.encode()) != form.encode():
            continue
        family = families.setdefault(name, Metric(name, "Counted by all workers together", kind))
        family.add_sample(sample, labels, value)
    return exposition(families.values())


def _order(item: tuple[_Field, float]) -> tuple[str, str, float, str]:
    """Orders samples as the format requires, buckets of a histogram by their limit."""
    name, _, sample, labels, _ = item[0]
    limit = float(labels.get("le", "inf"))
    others = orjson.dumps({key: value for key, value in labels.items() if key != "le"}).decode()
    return name, others, limit, sample
