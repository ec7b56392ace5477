"""Figures of a node's GPUs over a span of time: for every column how often it was measured, its mean and maximum.

Made by `rollups` from the ring or from figures of shorter spans, read by `series`. Pure. Invariants: combined figures
of parts are those of the whole; a column that was never measured has none.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from agent.protocol import COLUMNS
from nodes.history.ring_seconds import Moment

TENTHS: Final = frozenset({"utilisation_percent", "temperature_celsius", "power_watts"})
"""Columns whose means are kept to a tenth; those of others as whole numbers."""
LARGEST: Final = 2**20
"""Bytes of one node's figures, unpacked."""


class Column(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One value a GPU: times measured, mean (in tenths for columns in TENTHS), maximum."""

    counts: tuple[int, ...]
    means: tuple[int, ...]
    largest: tuple[int, ...]


class Figures(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """UUIDs of GPUs, and their measured columns."""

    devices: tuple[str, ...]
    columns: dict[str, Column]

    def of(self, uuid: str, column: str) -> tuple[int, float, int] | None:
        """(times measured, mean, maximum) of one GPU in the column's unit; None where it was not measured."""
        found = self.columns.get(column)
        if found is None or uuid not in self.devices:
            return None
        place = self.devices.index(uuid)
        count = found.counts[place]
        return (count, found.means[place] / unit_of(column), found.largest[place]) if count else None


class Unreadable(ValueError):
    """Packed figures that cannot be read."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Figures)


def pack(figures: Figures) -> bytes:
    """Compressed MessagePack."""
    return zlib.compress(_encoder.encode(figures))


def unpack(body: bytes) -> Figures:
    """Raises Unreadable."""
    unpacker = zlib.decompressobj()
    try:
        found = _decoder.decode(unpacker.decompress(body, LARGEST))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise Unreadable(str(error)) from error
    if not unpacker.eof:
        raise Unreadable("cut short")
    return found


def of_moments(devices: Sequence[str], moments: Sequence[Moment]) -> Figures | None:
    """Figures of samples that list these devices in this order; None without any measurement."""
    if not moments or not devices:
        return None
    measured = np.array([moment.columns for moment in moments], np.float64)  # [times, columns, GPUs], NaN: unknown
    known = ~np.isnan(measured)
    counts = known.sum(axis=0)
    sums = np.where(known, measured, 0).sum(axis=0)
    largest = np.where(known, measured, 0).max(axis=0)
    return figures_of_spans([tuple(devices)], Spans(counts, sums, largest))[0]


def combined(parts: Iterable[Figures]) -> Figures | None:
    """Figures of a span from those of its parts, whose devices may differ."""
    parts = list(parts)
    devices = tuple(dict.fromkeys(uuid for part in parts for uuid in part.devices))
    if not devices:
        return None
    place = {uuid: at for at, uuid in enumerate(devices)}
    shape = len(COLUMNS), len(devices)
    counts, sums, largest = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
    for part in parts:
        at = [place[uuid] for uuid in part.devices]
        for row, name in enumerate(COLUMNS):
            if name in part.columns:
                column = part.columns[name]
                counts[row, at] += column.counts
                sums[row, at] += np.array(column.means) / unit_of(name) * column.counts
                largest[row, at] = np.maximum(largest[row, at], column.largest)
    return figures_of_spans([devices], Spans(counts, sums, largest))[0]


@dataclass(frozen=True, slots=True)
class Spans:
    """What was measured of GPUs over a span: [len(COLUMNS), GPUs] how often, the sums, the maxima (0: not measured)."""

    counts: NDArray[np.int64]
    sums: NDArray[np.int64] | NDArray[np.float64]
    largest: NDArray[np.int64] | NDArray[np.float64]


def figures_of_spans(devices: Sequence[tuple[str, ...]], spans: Spans) -> list[Figures | None]:
    """Figures of several nodes, whose GPUs are one after the other in `spans`; None for a node of which nothing was
    measured.
    """
    means = np.rint(spans.sums * _UNITS / np.maximum(spans.counts, 1)).astype(np.int64).tolist()
    counts, largest = spans.counts.tolist(), spans.largest.astype(np.int64).tolist()
    found: list[Figures | None] = []
    first = 0
    for uuids in devices:
        end = first + len(uuids)
        columns = {
            name: Column(tuple(times), tuple(means[row][first:end]), tuple(largest[row][first:end]))
            for row, name in enumerate(COLUMNS)
            if any(times := counts[row][first:end])
        }
        found.append(Figures(uuids, columns) if columns else None)
        first = end
    return found


def unit_of(column: str) -> int:
    """How many of the stored unit make one of the column's."""
    return 10 if column in TENTHS else 1


_UNITS: Final = np.array([unit_of(name) for name in COLUMNS])[:, None]
