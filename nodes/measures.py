"""Measurements of GPUs as arrays: one block of bytes a sample, and the columns of many samples at once.

A sample's block is made when its frame is taken (`nodes.live.samples`); `nodes.history.ring` and
`nodes.live.fleet_columns` join blocks into arrays, without an object for each GPU and measure. Pure. Invariants: an
unknown value is NaN, never 0; whole numbers up to 2^53, the largest of `agent.protocol.BOUNDS`, are exact.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agent.protocol import COLUMNS, MOST_DEVICES, Values

UNKNOWN: Final = float("nan")

Measures = NDArray[np.float64]
"""[len(COLUMNS), GPUs], NaN: unknown."""


@lru_cache(MOST_DEVICES + 1)
def _layout(values: int) -> struct.Struct:
    return struct.Struct(f"={values}d")


def block_of(columns: Iterable[Values]) -> bytes:
    """The block of one sample: its columns one after the other, each value as float64."""
    values = tuple(chain.from_iterable(columns))
    layout = _layout(len(values))
    try:
        return layout.pack(*values)
    except struct.error:  # None among them
        return layout.pack(*[UNKNOWN if value is None else value for value in values])


def measures_of(blocks: Sequence[bytes], gpus: Sequence[int]) -> Measures:
    """The columns of many samples, their GPUs one after the other. `gpus`: how many each block has."""
    values = np.frombuffer(b"".join(blocks))
    columns = len(COLUMNS)
    counts = np.array(gpus, np.int64)
    if len(counts) and (counts == counts[0]).all():
        return values.reshape(len(counts), columns, counts[0]).transpose(1, 0, 2).reshape(columns, -1)
    before = np.cumsum(counts) - counts  # GPUs before each block's first
    first = np.repeat((columns - 1) * before, counts) + np.arange(counts.sum())
    return values[first + np.arange(columns)[:, None] * np.repeat(counts, counts)]
