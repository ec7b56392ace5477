"""The ledger as a whole for Prometheus: what lives in it, who waits and why, how old each node's last sample is.

Called by REST (`fleet/metrics/`), beside the GPUs. Kept true: two queries; a state that nobody is in and a fleet where nobody waits have a
line with 0, so that an alert can be written on them; no pod is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from django.db.models import Count, Min
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from access.actors import SYSTEM
from allocations.choices import LIVE
from allocations.models import Allocation
from allocations.overviews import waiting_pods
from nodes.live.samples import SampleView

NO_ROOM: Final = "no-room"
"""Stands for the rule where none was broken: the pod only did not fit."""


def ledger_metrics(*, samples: Mapping[str, SampleView], now: float) -> str:
    """The exposition, text format 0.0.4. `now`: seconds since 1970."""
    registry = CollectorRegistry()
    registry.register(_Families([_allocations(), *_waiting(now), _ages(samples, now)]))
    return generate_latest(registry).decode()


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """As Prometheus' library asks for them."""
        return iter(self._families)


def _allocations() -> Metric:
    family = GaugeMetricFamily("gpuplane_allocations", "Allocations whose devices count as used", labels=["state"])
    counted = dict(Allocation.objects.filter(state__in=LIVE).values_list("state").annotate(Count("pk")).order_by())
    for state in LIVE:
        family.add_metric([state.value], counted.get(state.value, 0))
    return family


def _waiting(now: float) -> Iterator[Metric]:
    rows = waiting_pods(actor=SYSTEM).order_by().values("rule").annotate(pods=Count("pk"), since=Min("first_at"))
    by_rule = {row["rule"] or NO_ROOM: (row["pods"], row["since"]) for row in rows}
    count = GaugeMetricFamily("gpuplane_pods_waiting", "Pods that were refused and hold nothing", labels=["rule"])
    for rule in sorted({NO_ROOM, *by_rule}):
        count.add_metric([rule], by_rule.get(rule, (0, None))[0])
    yield count
    oldest = min((since for _, since in by_rule.values()), default=None)
    waited = 0.0 if oldest is None else (datetime.fromtimestamp(now, UTC) - oldest).total_seconds()
    yield GaugeMetricFamily(
        "gpuplane_pod_waiting_longest_seconds", "Since the first refusal of whoever waits longest", max(waited, 0.0)
    )


def _ages(samples: Mapping[str, SampleView], now: float) -> Metric:
    family = GaugeMetricFamily(
        "gpuplane_node_sample_age_seconds", "Since the last sample of the node's agent", labels=["node"]
    )
    for node in sorted(samples):
        family.add_metric([node], samples[node].age_seconds(now=now))
    return family
