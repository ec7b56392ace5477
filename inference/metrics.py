"""Gauges of slots, runners and waiting requests for `fleet/metrics/`, from the rows. Counters: `inference.counters`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime

from django.db.models import Count, Min
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from allocations.publish.exposition import exposition
from inference.choices import HOLDING, RequestState, RunnerState
from inference.models import Model, Request, Runner, Slot


def slot_metrics(*, now: datetime) -> str:
    """Prometheus' text format, in four queries; a model without slots has lines with 0. `now`: of the database."""
    names = list(Model.objects.order_by("name").values_list("name", flat=True))
    return exposition([*_slots(names), _runners(), *_waiting(names, now)])


def _slots(names: list[str]) -> Iterator[Metric]:
    counts: Counter[tuple[str, str]] = Counter({(name, state.value): 0 for name in names for state in HOLDING})
    claimed: defaultdict[str, int] = defaultdict(int, dict.fromkeys(names, 0))
    rows = Slot.objects.filter(state__in=HOLDING).order_by().values_list("model_name", "state", "memory")
    for name, state, memory in rows:
        counts[name, state] += 1
        claimed[name] += sum(memory)
    slots = GaugeMetricFamily("gpuplane_slots", "Slots that hold memory, or wait for it", labels=["model", "state"])
    for (name, state), count in sorted(counts.items()):
        slots.add_metric([name, state], count)
    yield slots
    held = GaugeMetricFamily("gpuplane_slot_memory_bytes", "GPU memory that slots claim", labels=["model"])
    for name, claim in sorted(claimed.items()):
        held.add_metric([name], claim)
    yield held


def _runners() -> Metric:
    found = dict(Runner.objects.order_by().values_list("state").annotate(count=Count("pk")))
    family = GaugeMetricFamily("gpuplane_runners", "Runners", labels=["state"])
    for state in RunnerState:
        family.add_metric([state.value], found.get(state.value, 0))
    return family


def _waiting(names: list[str], now: datetime) -> Iterator[Metric]:
    waiting = Request.objects.filter(state=RequestState.WAITING).order_by().values("model_name")
    rows = {row["model_name"]: row for row in waiting.annotate(count=Count("pk"), since=Min("arrived_at"))}
    queued = GaugeMetricFamily(
        "gpuplane_inference_queued", "Inference requests that wait for a slot, of all processes", labels=["model"]
    )
    longest = GaugeMetricFamily(
        "gpuplane_inference_queued_longest_seconds", "How long the oldest of them has waited", labels=["model"]
    )
    for name in sorted({*names, *rows}):
        row = rows.get(name)
        queued.add_metric([name], row["count"] if row else 0)
        longest.add_metric([name], max((now - row["since"]).total_seconds(), 0.0) if row else 0.0)
    yield queued
    yield longest
