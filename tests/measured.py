"""What a piece of work adds to the process's counters, read from Prometheus' registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import REGISTRY

Series = tuple[str, ...]


def counted() -> dict[Series, float]:
    """(sample name, label values in the order of the label names) → value, gpuplane's own alone."""
    return {
        (one.name, *(one.labels[name] for name in sorted(one.labels))): one.value
        for family in REGISTRY.collect()
        if family.name.startswith("gpuplane_")
        for one in family.samples
        if not one.name.endswith("_created")
    }


@contextmanager
def growth(*names: str) -> Iterator[dict[Series, float]]:
    """What grew in the body of the `with`, of these samples; filled in at its end."""
    before = counted()
    grown: dict[Series, float] = {}
    yield grown
    after = counted()
    grown |= {
        key: value - before.get(key, 0.0)
        for key, value in after.items()
        if key[0] in names and value != before.get(key, 0.0)
    }
