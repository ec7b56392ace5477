"""The fleet's totals of a minute, and which GPUs are idle.

Called by `rollups` once a minute. Invariants: the database is read once, as columns; only GPUs that became idle, or
ceased to be, are written, `at_once` rows a statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kube.device_types import GPU
from nodes.choices import Presence
from nodes.history.figures import Column, Figures, unit_of
from nodes.history.totals import EVERYTHING, Gpus, Measured, Totals, totals_of
from nodes.labels import pool_of
from nodes.models import Device, Node

OFTEN_ENOUGH: Final = 20
"""Measurements a minute that it takes to call a GPU idle."""
_EMPTY: Final = Column((), (), ())


class _Columns(NamedTuple):
    """What is read of devices, in the order of the query."""

    pk: tuple[int, ...]
    node_id: tuple[int, ...]
    uuid: tuple[str, ...]
    parent: tuple[str, ...]
    model: tuple[str, ...]
    healthy: tuple[bool, ...]
    memory_bytes: tuple[int, ...]
    core_used: tuple[int, ...]
    memory_used: tuple[int, ...]
    idle_since: tuple[datetime | None, ...]


def count(measured: Mapping[str, Figures], start: datetime, *, at_once: int) -> dict[str, Totals]:
    """The totals of every group. `measured`: node's name → figures. Updates `Device.idle_since`."""
    nodes = {pk: (name, pool_of(labels)) for pk, name, labels in Node.objects.values_list("pk", "name", "labels")}
    found = Device.objects.filter(type=GPU).exclude(presence=Presence.REMOVED).order_by()
    rows = [row for row in found.values_list(*_Columns._fields) if row[1] in nodes]  # else its node was added since
    if not rows:
        return {}
    columns = _Columns(*zip(*rows, strict=True))
    gpus = _gpus(columns, {pk: measured[name] for pk, (name, _) in nodes.items() if name in measured})
    _note_idle(columns, gpus, start, anything_measured=bool(measured), at_once=at_once)
    pools = [f"pool:{nodes[pk][1]}" for pk in columns.node_id]
    groups: dict[str, Totals] = {}
    for names in ([EVERYTHING] * len(rows), [f"model:{model}" for model in columns.model], pools):
        numbers: dict[str, int] = {}
        group = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
        groups |= dict(zip(numbers, totals_of(gpus, group, count=len(numbers)), strict=True))
    return groups


def _gpus(columns: _Columns, of_node: Mapping[int, Figures]) -> Gpus:
    """`of_node`: node's id → figures."""
    keys = ((pk, uuid) for pk, one in of_node.items() for uuid in one.devices)
    place = {key: at for at, key in enumerate(keys)}
    nowhere = len(place)
    at = np.array([place.get(key, nowhere) for key in zip(columns.node_id, columns.uuid, strict=True)], np.int64)

    def measured(name: str) -> Measured:
        found = [(one.columns.get(name, _EMPTY), len(one.devices)) for one in of_node.values()]
        counts, means, largest = (
            np.array([*chain.from_iterable(of(one) or (0,) * size for one, size in found), 0], np.int64)[at]
            for of in (_counts, _means, _largest)
        )
        return Measured(counts, means / unit_of(name), largest)

    return Gpus(
        is_part=_array(columns.parent, np.bool_),
        healthy=_array(columns.healthy, np.bool_),
        core_used=_array(columns.core_used, np.int64),
        memory_used=_array(columns.memory_used, np.int64),
        memory_bytes=_array(columns.memory_bytes, np.int64),
        utilisation=measured("utilisation_percent"),
        memory=measured("memory_used_bytes"),
        power=measured("power_watts"),
    )


def _counts(column: Column) -> tuple[int, ...]:
    return column.counts


def _means(column: Column) -> tuple[int, ...]:
    return column.means


def _largest(column: Column) -> tuple[int, ...]:
    return column.largest


def _array(values: tuple[object, ...], dtype: Any) -> NDArray[Any]:
    return np.fromiter(map(bool, values) if dtype is np.bool_ else values, dtype, len(values))


def _note_idle(columns: _Columns, gpus: Gpus, start: datetime, *, anything_measured: bool, at_once: int) -> None:
    """Without any measurement Redis was down, and nothing is known of the GPUs."""
    since = np.array([known is not None for known in columns.idle_since])
    fell_idle = gpus.idle & ~since & (gpus.utilisation.counts >= OFTEN_ENOUGH)
    woke = since & ~gpus.idle & anything_measured
    pks = np.array(columns.pk, np.int64)
    for chosen, value in ((pks[fell_idle].tolist(), start), (pks[woke].tolist(), None)):
        for first in range(0, len(chosen), at_once):
            Device.objects.filter(pk__in=chosen[first : first + at_once]).update(idle_since=value)
