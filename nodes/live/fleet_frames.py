"""The bytes of `WS /ws/fleet/`: layout messages and binary frames (docs/fleet-stream.md).

Called by `nodes.live.hub`. Pure: columns in, bytes out. The browser's half is static/js/fleet/frames.js.
"""

from __future__ import annotations

import struct
from enum import IntFlag
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from nodes.live.fleet_rows import Layout

VERSION: Final = 1
FULL: Final = 0
DELTA: Final = 1
UNKNOWN: Final = 255
POWER_STEP_WATTS: Final = 4
COLUMNS: Final = ("core", "memory", "utilisation", "memory_in_use", "temperature", "power", "flags")
"""One uint8 a device each: allocated core %, allocated memory %, then as measured: utilisation %, memory in use %,
°C, power in steps of 4 W (255 where unknown), and the bits of `Flag`."""

_HEADER: Final = struct.Struct("<2sBBBxxxIIdII")
"""Magic, version, kind, conditions, three empty bytes, sequence, layout, time (s since 1970), rows here, rows in all."""


class Flag(IntFlag):
    """State of a device."""

    HEALTHY = 1
    PRESENT = 2
    STRANGER = 4
    HELD = 8
    NODE_READY = 16


class Condition(IntFlag):
    """What the server could not read when it made the frame."""

    DATABASE_DOWN = 1
    REDIS_DOWN = 2


Columns = NDArray[np.uint8]
"""[len(COLUMNS), devices], C order."""


def full_frame(columns: Columns, *, sequence: int, layout: int, time: float, conditions: Condition) -> bytes:
    """Header and every column whole, one after another."""
    count = columns.shape[1]
    return _header(FULL, sequence, layout, time, conditions, count, count) + columns.tobytes()


def delta_frame(
    columns: Columns, previous: Columns, *, sequence: int, layout: int, time: float, conditions: Condition
) -> bytes | None:
    """Header, uint32 rows that differ from `previous`, their columns. None where that is no smaller than a full one."""
    changed = np.flatnonzero((columns != previous).any(axis=0)).astype("<u4")
    if len(changed) * (4 + len(COLUMNS)) >= columns.size and columns.size:
        return None
    header = _header(DELTA, sequence, layout, time, conditions, len(changed), columns.shape[1])
    return header + changed.tobytes() + np.ascontiguousarray(columns[:, changed]).tobytes()


def layout_message(layout: Layout, *, version: int) -> str:
    """What the rows of the columns are: JSON text."""
    types: dict[str, int] = {}
    models: dict[str, int] = {}
    racks: dict[str, int] = {}
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
        nodes.append([node.name, racks.setdefault(node.rack, len(racks)), node.mode, devices])
    message = {
        "kind": "layout",
        "version": version,
        "types": list(types),
        "models": list(models),
        "racks": list(racks),
        "nodes": nodes,
    }
    return orjson.dumps(message).decode()


def _header(kind: int, sequence: int, layout: int, time: float, conditions: Condition, rows: int, total: int) -> bytes:
    return _HEADER.pack(b"GF", VERSION, kind, int(conditions), sequence & 0xFFFFFFFF, layout, time, rows, total)
