"""Prometheus' text format of metrics that are made for one answer, such as those of `fleet/metrics/`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


def exposition(families: Iterable[Metric]) -> str:
    """The families in their order, text format 0.0.4."""
    return generate_latest(_Families(families)).decode()


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Called by Prometheus' library, once."""
        return iter(self._families)
