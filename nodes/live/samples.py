"""The latest sample of every node: those that this process received, and those that other processes flushed.

`ingest` writes the table, `flush` exchanges it with other processes through Redis; `nodes.live.flush.read_latest` reads
it without waiting. Used from one event loop. Invariants: at most MOST_NODES nodes of at most 64 GPUs each are kept, the
longest silent leave first; of frames that arrive twice, late or from an earlier boot only the newest counts. Structs
made once a node and second are not tracked by the garbage collector (`gc=False`): they cannot be part of a cycle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from types import MappingProxyType
from typing import Final
from zlib import crc32

import msgspec

from agent.protocol import (
    COLUMNS,
    OTHER_BOOT_SECONDS,
    BadFrame,
    Details,
    DeviceDetails,
    Sample,
    Values,
    details_of,
    values_of,
)
from nodes.live.rate_limit import RateLimits
from nodes.measures import block_of

MOST_NODES: Final = 20_000
FORGET_SECONDS: Final = 600.0
"""A node not heard for so long is dropped, and any boot may start again."""
OLD_SECONDS: Final = 10.0
"""A sample older than this says nothing about now."""
SAMPLES_KEY: Final = "gpuplane:samples"
"""Redis hash of the newest samples, written by `flush`: node → MessagePack of SampleView."""
DETAILS_KEY: Final = "gpuplane:details"
"""The same of DetailsView."""
AHEAD_SECONDS: Final = 4.0
"""By how much clocks may differ (docs/operations.md). A sample from later is of a clock that was set back since."""


class SampleView(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One node's latest sample, as in Redis. Columns have one value a GPU in the order of `devices`, None: unknown;
    units as in `agent.protocol.Sample`.
    """

    node: str
    boot: str
    seq: int
    time: float
    """Seconds since 1970 by the agent's clock."""
    received_at: float
    """Seconds since 1970 by the clock of the process that received it."""
    devices: tuple[str, ...]
    """UUIDs."""
    utilisation_percent: Values
    memory_used_bytes: Values
    temperature_celsius: Values
    power_watts: Values
    nvlink_tx_bytes: Values
    nvlink_rx_bytes: Values
    pcie_tx_bytes: Values
    pcie_rx_bytes: Values
    sm_clock_mhz: Values
    memory_clock_mhz: Values
    nvlinks_down: Values
    nvlink_errors: Values
    ecc_corrected: Values
    ecc_uncorrected: Values

    @property
    def order(self) -> int:
        """Checksum of the devices' UUIDs in their order."""
        return _order_of(self.devices)

    @property
    def row_of(self) -> Mapping[str, int]:
        """UUID → position in the columns."""
        return _rows_of(self.devices)

    def of(self, uuid: str) -> dict[str, int | None] | None:
        """Column → value of one GPU; None where the sample does not list it."""
        row = self.row_of.get(uuid)
        return None if row is None else {name: getattr(self, name)[row] for name in COLUMNS}

    def age_seconds(self, *, now: float) -> float:
        """Age at `now`, in seconds since 1970; infinite where it came more than AHEAD_SECONDS after `now`."""
        age = now - self.received_at
        return math.inf if age < -AHEAD_SECONDS else max(0.0, age)

    def is_old(self, *, now: float) -> bool:
        """Whether it is older than OLD_SECONDS."""
        return self.age_seconds(now=now) > OLD_SECONDS


@lru_cache(MOST_NODES)
def _order_of(devices: tuple[str, ...]) -> int:
    return crc32("\n".join(devices).encode())


@lru_cache(MOST_NODES)
def _rows_of(devices: tuple[str, ...]) -> Mapping[str, int]:
    return MappingProxyType({uuid: row for row, uuid in enumerate(devices)})


class KeptSample(msgspec.Struct, frozen=True, gc=False):
    """A sample, and its columns as `nodes.measures` joins them."""

    view: SampleView
    block: bytes

    @staticmethod
    def of(sample: KeptSample | SampleView) -> KeptSample:
        """The same sample; the block is made where there is none yet, as of another process's sample."""
        if isinstance(sample, KeptSample):
            return sample
        return KeptSample(sample, block_of([getattr(sample, name) for name in COLUMNS]))


class DetailsView(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One node's latest details, as in Redis: links, errors, processes and MIG devices, in the order of `devices`."""

    node: str
    received_at: float
    devices: tuple[str, ...]
    """UUIDs."""
    details: tuple[DeviceDetails, ...]

    def of(self, uuid: str) -> DeviceDetails | None:
        """Details of one GPU; None where it is not listed."""
        return next((one for known, one in zip(self.devices, self.details, strict=True) if known == uuid), None)


class FrameResult(StrEnum):
    """What was done with a frame."""

    NEW = "new"
    OLD = "old"
    """Dropped: a replay, out of order, or from an earlier boot."""
    NO_ORDER = "no-order"
    """Dropped: the order of the node's devices is not known here."""


class LastHeard(msgspec.Struct, frozen=True, gc=False):
    """When a node's agent was last heard, for `presence`."""

    boot: str
    age_seconds: float


_encoder = msgspec.msgpack.Encoder()
_samples: msgspec.msgpack.Decoder[SampleView] = msgspec.msgpack.Decoder(SampleView)
_details: msgspec.msgpack.Decoder[DetailsView] = msgspec.msgpack.Decoder(DetailsView)


def read_sample(raw: bytes | None) -> SampleView | None:
    """The sample of a field in Redis; None for nothing, and for another version's format."""
    try:
        return None if raw is None else _samples.decode(raw)
    except msgspec.MsgspecError:
        return None


def read_details(raw: bytes | None) -> DetailsView | None:
    """As `read_sample`."""
    try:
        return None if raw is None else _details.decode(raw)
    except msgspec.MsgspecError:
        return None


class _Entry:
    """State of one node's agent. `devices` None: order not known. `details` are packed: links alone are hundreds of
    objects.
    """

    __slots__ = ("boot", "details", "devices", "heard", "mark", "sample", "seq", "time")

    def __init__(self, node: str) -> None:
        self.mark = crc32(node.encode())
        self.boot = ""
        self.seq = -1
        self.time = 0.0
        self.heard = 0.0
        self.devices: tuple[str, ...] | None = None
        self.sample: KeptSample | None = None
        self.details: bytes | None = None


class SampleTable:
    """Latest sample by node. `now` is seconds of a monotonic clock, `received_at` seconds since 1970."""

    def __init__(self, *, most_nodes: int = MOST_NODES) -> None:
        self._most_nodes = most_nodes
        self._entries: dict[str, _Entry] = {}  # the longest silent first
        self._dirty: set[str] = set()
        self._dropped: set[str] = set()
        self._dirty_details: set[str] = set()
        self._foreign: dict[str, SampleView] = {}
        self.rate_limits = RateLimits(most_nodes)
        """Limits of every node's frames."""

    def advance(self, node: str, *, boot: str, seq: int, time: float, now: float) -> FrameResult:
        """Record the number of a frame. Only a NEW frame may be used."""
        entry = self._entries.get(node)
        if entry is None:
            entry = self._admit(node)
        elif entry.boot == boot:
            if seq <= entry.seq:
                return FrameResult.OLD
        elif now - entry.heard < OTHER_BOOT_SECONDS and time <= entry.time:
            return FrameResult.OLD
        else:
            entry.devices = None
        entry.boot, entry.seq, entry.time, entry.heard = boot, seq, time, now
        self._entries[node] = self._entries.pop(node)
        return FrameResult.NEW

    def order(self, node: str, devices: Iterable[str]) -> None:
        """Set the order of GPUs in the samples of the node's current boot."""
        self._entries[node].devices = tuple(devices)

    def knows_order(self, node: str) -> bool:
        """Whether the order of GPUs is known for the node's current boot."""
        entry = self._entries.get(node)
        return entry is not None and entry.devices is not None

    def put(self, node: str, sample: Sample, *, now: float, received_at: float) -> tuple[FrameResult, int]:
        """Store a sample; (result, how many of its values were unreadable). Raises BadFrame."""
        devices = self._order_of(node, sample)
        if devices is None:
            return FrameResult.NO_ORDER, 0
        columns, unreadable = values_of(sample, count=len(devices))
        if self.advance(node, boot=sample.boot, seq=sample.seq, time=sample.time, now=now) is FrameResult.OLD:
            return FrameResult.OLD, 0
        entry = self._entries[node]
        entry.devices = devices
        view = SampleView(node, sample.boot, sample.seq, sample.time, received_at, devices, **columns)
        entry.sample = KeptSample(view, block_of(columns.values()))
        self._dirty.add(node)
        return FrameResult.NEW, unreadable

    def put_details(self, node: str, frame: Details, *, now: float, received_at: float) -> tuple[FrameResult, int]:
        """Store details; (result, how many of their counts were unreadable). Raises BadFrame."""
        devices = self._order_of(node, frame)
        if devices is None:
            return FrameResult.NO_ORDER, 0
        if len(frame.details) != len(devices):
            raise BadFrame(f"details of {len(frame.details)} devices, where {len(devices)} are known")
        if self.advance(node, boot=frame.boot, seq=frame.seq, time=frame.time, now=now) is FrameResult.OLD:
            return FrameResult.OLD, 0
        entry = self._entries[node]
        entry.devices = devices
        details, unreadable = details_of(frame)
        entry.details = _encoder.encode(DetailsView(node, received_at, devices, details))
        self._dirty_details.add(node)
        return FrameResult.NEW, unreadable

    def _order_of(self, node: str, frame: Sample | Details) -> tuple[str, ...] | None:
        """The devices of a frame, in its order; None where that is not known."""
        if frame.devices is not None:
            return tuple(frame.devices)
        entry = self._entries.get(node)
        return entry.devices if entry is not None and entry.boot == frame.boot else None

    def boot_of(self, node: str) -> str:
        """The current boot of the node's agent; empty where none was heard."""
        entry = self._entries.get(node)
        return "" if entry is None else entry.boot

    def view(self, node: str) -> SampleView | None:
        """The newest sample that this process received of a node."""
        entry = self._entries.get(node)
        return None if entry is None or entry.sample is None else entry.sample.view

    def details(self, node: str) -> DetailsView | None:
        """The newest details that this process received of a node."""
        entry = self._entries.get(node)
        return None if entry is None else read_details(entry.details)

    def take_changed_details(self, *, most: int) -> dict[str, bytes]:
        """Packed details that came since the last call, of `most` nodes at most. `put_back_details` undoes it."""
        names = set(islice(self._dirty_details, most))
        self._dirty_details -= names
        entries = ((name, self._entries.get(name)) for name in names)
        return {name: entry.details for name, entry in entries if entry is not None and entry.details is not None}

    def mark_details(self, *, part: int, parts: int) -> None:
        """Mark the details of a `parts`th of the nodes as changed, so that Redis gets back what it lost."""
        self._dirty_details.update(
            name for name, entry in self._entries.items() if entry.mark % parts == part and entry.details is not None
        )

    def put_back_details(self, names: Iterable[str]) -> None:
        """Mark details as changed again, since they could not be flushed."""
        self._dirty_details.update(names)

    def take_changed(self) -> dict[str, KeptSample]:
        """Samples that came since the last call. `put_back` undoes it."""
        names, self._dirty = self._dirty, set()
        entries = ((name, self._entries.get(name)) for name in names)
        return {name: entry.sample for name, entry in entries if entry is not None and entry.sample is not None}

    def put_back(self, names: Iterable[str]) -> None:
        """Mark samples as changed again, since they could not be flushed."""
        self._dirty.update(names)

    def heard_since(self, mark: float, *, now: float) -> dict[str, LastHeard]:
        """Nodes heard at or after `mark`."""
        found = {}
        for name in reversed(self._entries):
            entry = self._entries[name]
            if entry.heard < mark:
                break
            found[name] = LastHeard(entry.boot, max(0.0, now - entry.heard))
        return found

    def forget_silent(self, *, now: float) -> None:
        """Drop nodes not heard for FORGET_SECONDS."""
        names = []
        for name, entry in self._entries.items():
            if now - entry.heard < FORGET_SECONDS:
                break
            names.append(name)
        for name in names:
            self._drop(name)

    def take_dropped(self) -> set[str]:
        """Nodes that were dropped since the last call, and have not come again."""
        dropped, self._dropped = self._dropped, set()
        return dropped - self._entries.keys()

    def replace_foreign(self, views: Mapping[str, SampleView]) -> None:
        """Replace all samples of other processes."""
        self._foreign = dict(views)

    def own_nodes(self, *, epoch: float, seconds: float) -> int:
        """How many nodes this process has a sample of its own for that is younger than `seconds`."""
        samples = (entry.sample for entry in self._entries.values())
        return sum(one is not None and one.view.age_seconds(now=epoch) < seconds for one in samples)

    def latest(self) -> dict[str, SampleView]:
        """The newest sample of every node, whichever process received it."""
        views = dict(self._foreign)
        views.update((name, sample.view) for name, sample in self._own_newest())
        return views

    def latest_kept(self) -> dict[str, KeptSample | SampleView]:
        """As `latest`; samples of this process with their blocks."""
        samples: dict[str, KeptSample | SampleView] = dict(self._foreign)
        samples.update(self._own_newest())
        return samples

    def _own_newest(self) -> Iterator[tuple[str, KeptSample]]:
        """Samples of this process that no other process has a newer one of, by node."""
        foreign = self._foreign
        for name, entry in self._entries.items():
            sample = entry.sample
            if sample is not None and (name not in foreign or sample.view.received_at >= foreign[name].received_at):
                yield name, sample

    def _admit(self, node: str) -> _Entry:
        if len(self._entries) >= self._most_nodes:
            self._drop(next(iter(self._entries)))
        entry = self._entries[node] = _Entry(node)
        return entry

    def _drop(self, node: str) -> None:
        del self._entries[node]
        self._dropped.add(node)
        self._dirty.discard(node)
        self._dirty_details.discard(node)


TABLE = SampleTable()
"""This process's table."""
