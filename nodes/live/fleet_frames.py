"""The bytes of `WS /ws/fleet/`: layout messages and binary frames (docs/fleet-stream.md).

Called by `nodes.live.hub`; decoded by static/js/fleet/frames.js. Pure: columns in, bytes out. Invariants: a column of a
tick is compared and encoded once, whatever sets of columns browsers show.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum, IntFlag
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from nodes.live.fleet_columns import COLUMNS, Columns, Figures
from nodes.live.fleet_rows import Layout

VERSION: Final = 2
ALL: Final = (1 << len(COLUMNS)) - 1
"""All columns; in a set of columns bit i stands for COLUMNS[i]."""
ALWAYS: Final = 1 << COLUMNS.index("flags")
"""The columns of every set."""
MOST_KEPT: Final = 32
"""Frames kept of one tick; further ones are joined anew, from blocks that are kept."""

_HEADER: Final = struct.Struct("<2sBBBBxxIIdIIIIIff")
"""Magic, version, kind, conditions, blocks, two empty bytes, sequence, layout, time (s since 1970), rows; then the
figures: total, used, free, unhealthy, allocated %, utilisation %.
"""
_BLOCK: Final = struct.Struct("<BBxxI")
"""Column, coding, two empty bytes, values that follow."""
_NAN: Final = float("nan")


class FrameKind(IntEnum):
    """Whether a frame can be read without the one before."""

    WHOLE = 0
    CHANGES = 1
    """At least one column lists changes since the frame before."""


class Coding(IntEnum):
    """How a column's values are written: the smallest way."""

    WHOLE = 0
    """A value a row."""
    ROWS = 1
    """uint32 rows that changed, then their values."""
    MARKS = 2
    """A bit a row, lowest first, set where it changed; then the values of those."""


class Condition(IntFlag):
    """What the server could not read for the frame."""

    DATABASE_DOWN = 1
    REDIS_DOWN = 2


def column_set(names: Iterable[str]) -> int:
    """The set of these columns and `ALWAYS`; unknown names are ignored."""
    return ALWAYS | sum({1 << COLUMNS.index(name) for name in names if name in COLUMNS and name != "flags"})


class FrameSet:
    """The frames of one tick, each made when it is first needed. Used from one thread."""

    def __init__(
        self,
        columns: Columns,
        previous: Columns | None,
        *,
        sequence: int,
        layout: int,
        time: float,
        conditions: Condition,
        figures: Figures,
    ) -> None:
        self._columns = columns
        self._previous = previous
        self._head = (sequence & 0xFFFFFFFF, layout, time, columns.shape[1])
        self._conditions = int(conditions)
        self._figures = (
            figures.total,
            figures.used,
            figures.free,
            figures.unhealthy,
            _NAN if figures.allocated_percent is None else figures.allocated_percent,
            _NAN if figures.utilisation_percent is None else figures.utilisation_percent,
        )
        self._whole: dict[int, bytes] = {}
        self._smallest: dict[int, tuple[bool, bytes]] = {}
        self._frames: dict[tuple[int, int], bytes] = {}

    def frame(self, wanted: int, held: int) -> bytes:
        """Header and a block for each wanted column: of those held as of the tick before the changes, if smaller."""
        held = held & wanted if self._previous is not None else 0
        known = self._frames.get((wanted, held))
        if known is not None:
            return known
        kind, blocks = FrameKind.WHOLE, []
        for at in range(len(COLUMNS)):
            if not wanted >> at & 1:
                continue
            if held >> at & 1:
                changes, block = self._block_of_changes(at)
                kind = FrameKind.CHANGES if changes else kind
            else:
                block = self._block_whole(at)
            blocks.append(block)
        header = _HEADER.pack(b"GF", VERSION, kind, self._conditions, len(blocks), *self._head, *self._figures)
        made = b"".join((header, *blocks))
        if len(self._frames) < MOST_KEPT:
            self._frames[wanted, held] = made
        return made

    def _block_whole(self, at: int) -> bytes:
        block = self._whole.get(at)
        if block is None:
            block = self._whole[at] = _block(at, Coding.WHOLE, self._columns[at])
        return block

    def _block_of_changes(self, at: int) -> tuple[bool, bytes]:
        """(whether the block lists changes since the tick before, its bytes)."""
        known = self._smallest.get(at)
        if known is None:
            coding, changed = _smallest(self._columns[at], self._previous[at])  # type: ignore[index]  # there is one
            if coding is Coding.WHOLE:
                known = (False, self._block_whole(at))
            elif coding is Coding.ROWS:
                rows = np.flatnonzero(changed)
                known = (True, _block(at, coding, self._columns[at][rows], rows.astype("<u4").tobytes()))
            else:
                marks = np.packbits(changed, bitorder="little").tobytes()
                known = (True, _block(at, coding, self._columns[at][changed], marks))
            self._smallest[at] = known
        return known


def _smallest(now: NDArray[np.uint8], before: NDArray[np.uint8]) -> tuple[Coding, NDArray[np.bool_]]:
    changed = now != before
    count = int(np.count_nonzero(changed))
    sizes = {Coding.ROWS: 5 * count, Coding.MARKS: -(-len(now) // 8) + count, Coding.WHOLE: len(now)}
    return min(sizes, key=lambda coding: sizes[coding]), changed


def _block(at: int, coding: Coding, values: NDArray[np.uint8], places: bytes = b"") -> bytes:
    """Padded to a multiple of four bytes, so that a browser can read uint32 in place."""
    made = b"".join((_BLOCK.pack(at, coding, len(values)), places, values.tobytes()))
    return made + bytes(-len(made) % 4)


def layout_message(layout: Layout, *, version: int) -> str:
    """The layout message: JSON text."""
    types: dict[str, int] = {}
    models: dict[str, int] = {}
    racks: dict[str, int] = {}
    pools: dict[str, int] = {}
    nodes: list[list[Any]] = []
    for node in layout.nodes:
        devices = [
            [
                device.id,
                device.minor,
                types.setdefault(device.type, len(types)),
                models.setdefault(device.model, len(models)),
                device.memory_bytes >> 20,
                device.island,
            ]
            for device in node.devices
        ]
        rack, pool = racks.setdefault(node.rack, len(racks)), pools.setdefault(node.pool, len(pools))
        nodes.append([node.name, rack, pool, node.mode, devices])
    message = {
        "kind": "layout",
        "version": version,
        "types": list(types),
        "models": list(models),
        "racks": list(racks),
        "pools": list(pools),
        "nodes": nodes,
    }
    return orjson.dumps(message).decode()
