"""Reads the fleet stream as a browser does, written from docs/fleet-stream.md alone.

Used by the tests of the bytes and of the consumer, and by the bench.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nodes.live.fleet_columns import COLUMNS

HEADER = struct.Struct("<2sBBBBxxIIdIIIIIff")
BLOCK = struct.Struct("<BBxxI")


@dataclass
class Reader:
    """What a browser holds: column → values, column → sequence as of which it holds them, and the last header."""

    values: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    as_of: dict[str, int] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    codings: dict[str, int] = field(default_factory=dict)

    def take(self, frame: bytes) -> Reader:
        """Apply a frame. A change of a column that is not held as of the tick before is an error here."""
        magic, version, kind, conditions, blocks, sequence, layout, time, rows, *figures = HEADER.unpack_from(frame)
        assert (magic, version) == (b"GF", 2)
        self.header = {"kind": kind, "conditions": conditions, "sequence": sequence, "layout": layout, "time": time,
                       "rows": rows, "figures": figures}  # fmt: skip
        self.codings = {}
        at = HEADER.size
        for _ in range(blocks):
            at = self._block(frame, at, sequence, rows)
        assert at == len(frame)
        assert kind == any(self.codings.values())
        return self

    def _block(self, frame: bytes, at: int, sequence: int, rows: int) -> int:
        column, coding, count = BLOCK.unpack_from(frame, at)
        name = COLUMNS[column]
        start = at + BLOCK.size
        if coding == 0:
            assert count == rows
            self.values[name] = np.frombuffer(frame, np.uint8, count, start).copy()
        else:
            assert self.as_of[name] == sequence - 1
            if coding == 1:
                places = np.frombuffer(frame, "<u4", count, start).astype(np.int64)
                start += 4 * count
            else:
                marks = np.frombuffer(frame, np.uint8, -(-rows // 8), start)
                places = np.flatnonzero(np.unpackbits(marks, bitorder="little", count=rows))
                start += len(marks)
            assert len(places) == count
            self.values[name][places] = np.frombuffer(frame, np.uint8, count, start)
        self.as_of[name] = sequence
        self.codings[name] = coding
        return int(start + count + 3) // 4 * 4
