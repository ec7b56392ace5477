"""One second of a bucket of the ring: the samples of its nodes as columns of bytes.

Written and read by `ring`; `rollups` decodes a whole minute of them at once. A value v of a column whose bounds are low
and high (`agent.protocol.BOUNDS`) is stored as v - low + 1, 0 is unknown; it has as many bytes as high needs. Byte k
of a column of all GPUs is one plane: planes compress well, and turn into arrays without an object for each value.
Pure. Invariants: a decoded second is consistent: its lists have one entry a node, its planes one byte a GPU; what
cannot be read is Unreadable.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from agent.protocol import BOUNDS, COLUMNS, Values
from nodes.live.samples import SampleView
from nodes.measures import Measures, block_of, measures_of

LARGEST: Final = 64 * 2**20
"""Bytes of one second of a bucket, unpacked."""
BYTES: Final = tuple(-(-(high - low + 1).bit_length() // 8) for low, high in BOUNDS.values())
"""Planes of each column."""
PLANES: Final = sum(BYTES)
LOWEST: Final = np.array([low for low, _ in BOUNDS.values()], np.int64)[:, None]
_FIRST: Final = tuple(accumulate(BYTES, initial=0))[:-1]

Planes = NDArray[np.uint8]
"""[PLANES, GPUs], the lowest byte of a column first."""
Stored = NDArray[np.int64]
"""[len(COLUMNS), GPUs]: values less LOWEST plus 1, 0: unknown."""


class Unreadable(ValueError):
    """Bytes of another version, or damaged ones."""


class Moment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One node's sample. `order`: checksum of the devices' UUIDs; `columns` as in `agent.protocol.COLUMNS`."""

    node: str
    order: int
    received_at: float
    columns: tuple[Values, ...]


class Second(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Samples of a bucket's nodes. One entry a node; `orders` as in Moment, `gpus`: how many each has."""

    nodes: list[str]
    orders: list[int]
    received_at: list[float]
    """Seconds since 1970."""
    gpus: list[int]
    planes: bytes
    """Of the GPUs of all nodes, one after the other."""

    @staticmethod
    def of(views: Sequence[SampleView], planes: Planes) -> Second:
        """The second of these samples, whose GPUs have these planes."""
        return Second(
            [view.node for view in views],
            [view.order for view in views],
            [view.received_at for view in views],
            [len(view.devices) for view in views],
            planes.tobytes(),
        )

    def packed(self) -> bytes:
        """Compressed MessagePack."""
        return zlib.compress(_encoder.encode(self), 1)

    @property
    def table(self) -> Planes:
        """The planes as an array, without a copy."""
        return np.frombuffer(self.planes, np.uint8).reshape(PLANES, -1)

    @property
    def is_consistent(self) -> bool:
        """Whether the parts agree, as they do unless another version wrote them."""
        lengths = {len(self.nodes), len(self.orders), len(self.received_at), len(self.gpus)}
        return len(lengths) == 1 and min(self.gpus, default=0) >= 0 and len(self.planes) == PLANES * sum(self.gpus)


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Second] = msgspec.msgpack.Decoder(Second)
_before: msgspec.msgpack.Decoder[list[Moment]] = msgspec.msgpack.Decoder(list[Moment])


def second_of(packed: bytes) -> Second:
    """Read an entry of the ring, also of the version before, which wrote a list of Moments. Raises Unreadable."""
    try:
        body = zlib.decompressobj().decompress(packed, LARGEST)
    except zlib.error as error:
        raise Unreadable(str(error)) from error
    try:
        found = _decoder.decode(body)
    except msgspec.MsgspecError:
        return _of_version_before(body)
    if not found.is_consistent:
        raise Unreadable("columns of another version")
    return found


def _of_version_before(body: bytes) -> Second:
    try:
        found = [moment for moment in _before.decode(body) if len(moment.columns) == len(COLUMNS)]
    except msgspec.MsgspecError as error:
        raise Unreadable(str(error)) from error
    gpus = [len(moment.columns[0]) for moment in found]
    if any(len(column) != count for moment, count in zip(found, gpus, strict=True) for column in moment.columns):
        raise Unreadable("columns of different lengths")
    planes = planes_of(measures_of([block_of(moment.columns) for moment in found], gpus))
    return Second(
        [moment.node for moment in found],
        [moment.order for moment in found],
        [moment.received_at for moment in found],
        gpus,
        planes.tobytes(),
    )


def planes_of(measures: Measures) -> Planes:
    """The planes of GPUs' measures."""
    count = measures.shape[1]
    below = LOWEST - 1
    stored = np.ascontiguousarray(np.where(np.isnan(measures), below, measures).astype("<i8") - below)
    split = stored.view(np.uint8).reshape(len(COLUMNS), count, 8)
    planes = np.empty((PLANES, count), np.uint8)
    for column, (first, size) in enumerate(zip(_FIRST, BYTES, strict=True)):
        planes[first : first + size] = split[column, :, :size].T
    return planes


def stored_of(planes: Planes) -> Stored:
    """What the planes store."""
    count = planes.shape[1]
    stored = np.zeros((len(COLUMNS), count), "<i8")
    split = stored.view(np.uint8).reshape(len(COLUMNS), count, 8)
    for column, (first, size) in enumerate(zip(_FIRST, BYTES, strict=True)):
        split[column, :, :size] = planes[first : first + size].T
    return stored.astype(np.int64, copy=False)


def moments_of(second: Second, node: str) -> Iterator[Moment]:
    """The samples of one node in a second."""
    ends = list(accumulate(second.gpus))
    for at, name in enumerate(second.nodes):
        if name == node:
            stored = stored_of(second.table[:, ends[at] - second.gpus[at] : ends[at]])
            values = (stored + (LOWEST - 1)).tolist()
            columns = tuple(
                tuple([value if is_known else None for value, is_known in zip(column, known, strict=True)])
                for column, known in zip(values, (stored != 0).tolist(), strict=True)
            )
            yield Moment(node, second.orders[at], second.received_at[at], columns)
