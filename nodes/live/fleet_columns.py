"""One tick of the fleet as columns of bytes, and the figures over all GPUs.

Called by `nodes.live.hub`, in a thread; encoded by `nodes.live.fleet_frames`. Pure: rows and samples in, one uint8 a
device and measure out. Invariants: an unknown value is UNKNOWN, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.protocol import COLUMNS as MEASURED
from nodes.live.fleet_rows import FleetRows, Layout, LayoutNode
from nodes.live.samples import KeptSample, SampleView
from nodes.measures import measures_of

UNKNOWN: Final = 255
POWER_STEP_WATTS: Final = 6
NVLINK_UNIT_BYTES: Final = 60_000_000
"""NVLink traffic is written as the square root of its bytes a second over this: from 60 MB/s to 3.8 TB/s."""
COLUMNS: Final = ("core", "memory", "utilisation", "memory_in_use", "temperature", "power", "nvlink", "flags")
"""One uint8 a device each: allocated core %, allocated memory %; measured utilisation %, memory in use %, °C, power in
steps of 6 W, NVLink traffic by its square root; the bits of `Flag`.
"""

Samples = Mapping[str, KeptSample | SampleView]
"""Node → its latest sample."""

Columns = NDArray[np.uint8]
"""[len(COLUMNS), devices], C order."""

_SHOWN: Final = [
    MEASURED.index(name)
    for name in (
        "utilisation_percent",
        "memory_used_bytes",
        "temperature_celsius",
        "power_watts",
        "nvlink_tx_bytes",
        "nvlink_rx_bytes",
    )
]
"""The measures that are shown, as rows of what `nodes.measures` joins."""


class Flag(IntFlag):
    """State of a device."""

    HEALTHY = 1
    PRESENT = 2
    STRANGER = 4
    HELD = 8
    NODE_READY = 16


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the fleet's GPUs. Means are over all of them, of utilisation over those measured; None: of nothing."""

    total: int
    used: int
    """Allocated, held or reserved for a pod that does not run yet, or taken outside gpuplane."""
    free: int
    """Not used and healthy, on a node that is ready."""
    unhealthy: int
    """Unhealthy, or vanished."""
    allocated_percent: float | None
    utilisation_percent: float | None


def columns_of(rows: FleetRows, samples: Samples, *, now: float) -> Columns:
    """The columns of one tick; `now` in seconds since 1970."""
    layout, devices = rows.layout, rows.columns
    columns = np.full((len(COLUMNS), layout.device_count), UNKNOWN, np.uint8)
    columns[0] = devices.core
    columns[1] = devices.memory
    utilisation, memory, temperature, power, sent, received = _measured(layout, samples, now)
    columns[2] = _bytes(utilisation)
    with np.errstate(invalid="ignore", divide="ignore"):
        columns[3] = _bytes(100 * memory / devices.size)
    columns[4] = _bytes(temperature)
    columns[5] = _bytes(power / POWER_STEP_WATTS)
    with np.errstate(invalid="ignore"):
        columns[6] = _bytes(np.ceil(np.sqrt((sent + received) / NVLINK_UNIT_BYTES)))
    columns[7] = (
        devices.healthy * Flag.HEALTHY
        + devices.present * Flag.PRESENT
        + devices.stranger * Flag.STRANGER
        + rows.held * Flag.HELD
        + rows.node_ready * Flag.NODE_READY
    )
    return columns


def figures_of(rows: FleetRows, columns: Columns) -> Figures:
    """The figures of the fleet's GPUs."""
    devices = rows.columns
    gpu = devices.gpu
    given = np.maximum(columns[0], columns[1])[gpu]
    unhealthy = ~(devices.healthy & devices.present)[gpu]
    used = (given > 0) | devices.stranger[gpu] | rows.held[gpu]
    utilisation = columns[2][gpu]
    measured = utilisation[utilisation != UNKNOWN]
    return Figures(
        total=len(given),
        used=int(np.count_nonzero(used)),
        free=int(np.count_nonzero(~used & ~unhealthy & ~devices.mig[gpu] & rows.node_ready[gpu])),
        unhealthy=int(np.count_nonzero(unhealthy)),
        allocated_percent=float(given.mean()) if len(given) else None,
        utilisation_percent=float(measured.mean()) if len(measured) else None,
    )


def _measured(layout: Layout, samples: Samples, now: float) -> NDArray[np.float64]:
    """The shown measures of every device by the latest samples: [len(_SHOWN), devices], NaN: unknown."""
    measures = np.full((len(_SHOWN), layout.device_count), np.nan)
    blocks, gpus, firsts = [], [], []
    others: list[tuple[int, LayoutNode, SampleView]] = []
    row = 0
    for node in layout.nodes:
        first, row = row, row + len(node.devices)
        sample = samples.get(node.name)
        if sample is None:
            continue
        view = sample.view if isinstance(sample, KeptSample) else sample
        if view.is_old(now=now):
            continue
        if view.devices == node.gpus:
            blocks.append(KeptSample.of(sample).block)
            gpus.append(len(view.devices))
            firsts.append(first)
        else:
            others.append((first, node, view))
    if blocks:
        counts = np.array(gpus, np.int64)
        places = np.repeat(np.array(firsts) - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        measures[:, places] = measures_of(blocks, gpus)[_SHOWN, :]
    for first, node, view in others:
        _put_by_uuid(measures, first, node, view)
    return measures


def _put_by_uuid(measures: NDArray[np.float64], first: int, node: LayoutNode, view: SampleView) -> None:
    """Fill in a node, `first` its first row, whose sample lists other devices than the layout, or in another order."""
    places = [(at, view.row_of[device.uuid]) for at, device in enumerate(node.devices) if device.uuid in view.row_of]
    found = measures_of([KeptSample.of(view).block], [len(view.devices)])[_SHOWN, :]
    for at, place in places:
        measures[:, first + at] = found[:, place]


def _bytes(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    known = np.isfinite(values)
    return np.where(known, np.clip(np.where(known, values, 0), 0, UNKNOWN - 1), UNKNOWN).astype(np.uint8)
