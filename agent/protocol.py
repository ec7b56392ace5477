"""The frames between an agent and gpuplane: MessagePack, one array a frame, decoded by type (docs/agent-protocol.md).

Used by the agent and the simulated fleet, which encode, and by `nodes.live`, which decodes. Invariants: a decoded frame
is within every bound below, so nobody has to check sizes again; an unknown value is None, never 0; only `FrameError` is
raised.

    FrameError
    ├── FrameTooLarge   more bytes than any frame may have
    └── BadFrame        not MessagePack, an unknown kind, or a field outside its bounds

New fields are added at a frame's end with a default, so either side may be older.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Annotated, Any, Final, TypeVar

import msgspec

FRAME_LIMIT: Final = 256 * 1024
"""Bytes (a large node's inventory has about 10 KiB, a sample 0.4 KiB)."""
OTHER_BOOT_SECONDS: Final = 60.0
"""While a boot was heard so recently, frames older than its newest cannot start another boot."""
MOST_DEVICES: Final = 64
"""Devices in one sample, health or hello frame."""
MOST_CHECKPOINT_ENTRIES: Final = 1024
MOST_LINKS: Final = 64
MOST_PROCESSES: Final = 256
MOST_MIGS: Final = 16

_PLAIN: Final = r"^[^\x00-\x1f\x7f]*\Z"
"""Text without control characters: PostgreSQL takes no NUL."""

Boot = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=_PLAIN)]
"""Random, one for each start of the agent."""
Sequence63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Grows with every frame of a boot."""
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
"""Seconds since 1970 by the sender's clock; not NaN."""
NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=253, pattern=_PLAIN)]
DeviceUuid = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=_PLAIN)]
DeviceOrder = Annotated[list[DeviceUuid], msgspec.Meta(max_length=MOST_DEVICES)]
ShortText = Annotated[str, msgspec.Meta(max_length=200, pattern=_PLAIN)]
Count = int | float
"""A driver's counter; `details_of` makes invalid ones unknown."""
MOST_COUNT: Final = 2**53
Column = Annotated[Sequence[int | float | None], msgspec.Meta(max_length=MOST_DEVICES)]
"""One value a device in the agreed order; an empty column: unknown for every device."""


class FrameError(Exception):
    """A frame that is refused. `reason`: a short stable word for metrics."""

    reason = "frame"


class FrameTooLarge(FrameError):
    """More than FRAME_LIMIT bytes."""

    reason = "too-large"


class BadFrame(FrameError):
    """Not a frame of this protocol, or a field outside its bounds."""

    reason = "bad-frame"


class _Stamped(msgspec.Struct, array_like=True, frozen=True):
    """What every frame of an agent begins with."""

    boot: Boot
    seq: Sequence63
    time: Seconds


class Hello(_Stamped, frozen=True, tag="hello"):
    """First frame of a session: the node, and the order of GPUs in its samples."""

    node: NodeName
    version: Annotated[str, msgspec.Meta(max_length=64, pattern=_PLAIN)] = ""
    """The agent's."""
    devices: DeviceOrder = []
    """UUIDs of the GPUs by minor; empty when an inventory frame follows."""


class Inventory(_Stamped, frozen=True, tag="inventory"):
    """The node's devices and links: one node of a scenario, as in `PUT nodes/<name>/inventory/`."""

    node: dict[str, Any]


class Sample(_Stamped, frozen=True, tag="sample"):
    """Measurements of one moment. Every column has one value a GPU, or is empty."""

    utilisation_percent: Column = []
    memory_used_bytes: Column = []
    temperature_celsius: Column = []
    power_watts: Column = []
    nvlink_tx_bytes: Column = []
    """Bytes a second sent over all NVLinks of the GPU; `rx`: received."""
    nvlink_rx_bytes: Column = []
    pcie_tx_bytes: Column = []
    """Bytes a second."""
    pcie_rx_bytes: Column = []
    devices: DeviceOrder | None = None
    """The order; None: that of the session, by hello or the last inventory taken."""
    sm_clock_mhz: Column = []
    memory_clock_mhz: Column = []
    nvlinks_down: Column = []
    """NVLinks that are not up. Errors, of all NVLinks and of ECC, count since the driver was loaded."""
    nvlink_errors: Column = []
    ecc_corrected: Column = []
    ecc_uncorrected: Column = []


class LinkDetails(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One NVLink of a GPU. Errors count since the driver was loaded."""

    number: Annotated[int, msgspec.Meta(ge=0, lt=MOST_LINKS)]
    is_up: bool
    remote: Annotated[str, msgspec.Meta(max_length=128, pattern=_PLAIN)] = ""
    """The far end: UUID of a GPU of this machine, `switch`, or a PCI address; empty: unknown."""
    replay_errors: Count | None = None
    recovery_errors: Count | None = None
    crc_errors: Count | None = None


class ProcessDetails(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One process that uses a GPU. `pid`: on the node; the name is empty where unknown."""

    pid: Count
    name: ShortText = ""
    memory_bytes: Count | None = None


class MigDetails(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One MIG device of a GPU, with its profile (`1g.10gb`)."""

    uuid: DeviceUuid
    profile: Annotated[str, msgspec.Meta(max_length=64, pattern=_PLAIN)] = ""
    memory_bytes: Count | None = None


class DeviceDetails(msgspec.Struct, array_like=True, frozen=True):
    """Details of one GPU. ECC errors count since the driver was loaded; `processes` None: unknown."""

    links: Annotated[list[LinkDetails], msgspec.Meta(max_length=MOST_LINKS)] = []
    ecc_corrected: Count | None = None
    ecc_uncorrected: Count | None = None
    processes: Annotated[list[ProcessDetails], msgspec.Meta(max_length=MOST_PROCESSES)] | None = None
    migs: Annotated[list[MigDetails], msgspec.Meta(max_length=MOST_MIGS)] = []


class Details(_Stamped, frozen=True, tag="details"):
    """Links, errors, processes and MIG devices of every GPU, in the session's order; sent early in a session, and when
    they change.
    """

    details: Annotated[list[DeviceDetails], msgspec.Meta(max_length=MOST_DEVICES)]
    devices: DeviceOrder | None = None
    """As in Sample."""


class Health(_Stamped, frozen=True, tag="health"):
    """UUID → what is wrong, empty for a healthy device. Devices not named keep their state."""

    health: Annotated[dict[DeviceUuid, ShortText], msgspec.Meta(max_length=MOST_DEVICES)]


class CheckpointEntry(msgspec.Struct, array_like=True, frozen=True):
    """Devices that the kubelet gave to one container (DEV-8)."""

    pod_uid: Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=_PLAIN)]
    container: Annotated[str, msgspec.Meta(max_length=253, pattern=_PLAIN)]
    resource: Annotated[str, msgspec.Meta(min_length=1, max_length=317, pattern=_PLAIN)]
    devices: DeviceOrder


class Checkpoint(_Stamped, frozen=True, tag="checkpoint"):
    """All entries of the kubelet's device checkpoint."""

    entries: Annotated[list[CheckpointEntry], msgspec.Meta(max_length=MOST_CHECKPOINT_ENTRIES)]


class Ack(msgspec.Struct, array_like=True, frozen=True, tag="ack"):
    """The server's answer to every frame but a sample; `boot` and `seq` are those of the frame."""

    boot: str
    seq: int
    time: float
    """By the server's clock."""
    problem: str = ""
    """Why the frame was refused, for the agent's log; empty: taken. The session goes on."""
    want: str = ""
    """`inventory`: send one, since the server does not know the order of this node's devices."""
    again: bool = False
    """The problem is temporary: send the frame again after a pause, with a new `seq`."""


AgentFrame = Hello | Inventory | Sample | Details | Health | Checkpoint
Frame = AgentFrame | Ack

BOUNDS: Final = {
    "utilisation_percent": (0, 100),
    "memory_used_bytes": (0, 2**44),
    "temperature_celsius": (-60, 250),
    "power_watts": (0, 20_000),
    "nvlink_tx_bytes": (0, 2**44),
    "nvlink_rx_bytes": (0, 2**44),
    "pcie_tx_bytes": (0, 2**44),
    "pcie_rx_bytes": (0, 2**44),
    "sm_clock_mhz": (0, 100_000),
    "memory_clock_mhz": (0, 100_000),
    "nvlinks_down": (0, MOST_LINKS),
    "nvlink_errors": (0, 2**53),
    "ecc_corrected": (0, 2**53),
    "ecc_uncorrected": (0, 2**53),
}
"""Column of a sample → smallest and largest value; others are unknown."""
COLUMNS: Final = tuple(BOUNDS)

Values = tuple[int | None, ...]

CleanSample: Final = msgspec.defstruct(
    "CleanSample",
    [
        (
            name,
            Annotated[
                tuple[Annotated[int, msgspec.Meta(ge=low, le=high)] | None, ...], msgspec.Meta(max_length=MOST_DEVICES)
            ],
            (),
        )
        for name, (low, high) in BOUNDS.items()
    ],
    bases=(Sample,),
    module=__name__,
    array_like=True,
    frozen=True,
    tag="sample",
    gc=False,
)
"""A sample of whole numbers within BOUNDS and None, as nearly all are: checked by the decoder alone."""

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_clean_decoder: msgspec.msgpack.Decoder[AgentFrame] = msgspec.msgpack.Decoder(
    Hello | Inventory | CleanSample | Details | Health | Checkpoint
)
_agent_decoder: msgspec.msgpack.Decoder[AgentFrame] = msgspec.msgpack.Decoder(AgentFrame)
_ack_decoder: msgspec.msgpack.Decoder[Ack] = msgspec.msgpack.Decoder(Ack)


def encode(frame: Frame) -> bytes:
    """A frame as a MessagePack array that starts with its kind."""
    return _encoder.encode(frame)


def decode(body: bytes) -> AgentFrame:
    """A frame that an agent sent. Raises FrameTooLarge and BadFrame."""
    return _decoded(_agent_decoder, body)


def decode_received(body: bytes) -> AgentFrame:
    """As `decode`, but a sample that needs no cleaning is a CleanSample, at a quarter of the cost."""
    if len(body) <= FRAME_LIMIT:
        with suppress(msgspec.MsgspecError, RecursionError, ValueError):
            return _clean_decoder.decode(body)
    return decode(body)  # says what is wrong, or that only values need cleaning


def decode_ack(body: bytes) -> Ack:
    """The server's answer. Raises FrameTooLarge and BadFrame."""
    return _decoded(_ack_decoder, body)


def _decoded(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    if len(body) > FRAME_LIMIT:
        raise FrameTooLarge(f"a frame has at most {FRAME_LIMIT} bytes, this one has {len(body)}")
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadFrame(str(error)[:200]) from error


def sample_of(stamp: tuple[str, int, float], columns: Mapping[str, list[int | float | None]]) -> Sample:
    """A sample frame; `stamp`: boot, seq, time. Missing columns are unknown, fractions are rounded."""
    whole = {
        name: [round(value) if isinstance(value, float) and isfinite(value) else value for value in columns[name]]
        for name in COLUMNS
        if name in columns
    }
    return msgspec.structs.replace(Sample(*stamp), **whole)


def values_of(sample: Sample, *, count: int) -> tuple[dict[str, Values], int]:
    """(column → `count` whole numbers or None, how many values were unreadable).

    Fractions are rounded. NaN, infinities and values outside BOUNDS are unreadable and become None, a utilisation up to
    110, due to a driver's rounding, 100. Raises BadFrame where a column has another length than `count`.
    """
    columns: dict[str, Values] = {}
    unreadable = 0
    clean = isinstance(sample, CleanSample)
    for name in COLUMNS:
        column = getattr(sample, name)
        if not column:
            columns[name] = (None,) * count
            continue
        if len(column) != count:
            raise BadFrame(f"{name} has {len(column)} values for {count} devices")
        if clean:
            columns[name] = column
            continue
        columns[name], bad = _cleaned(column, *BOUNDS[name], slack=10 if name == "utilisation_percent" else 0)
        unreadable += bad
    return columns, unreadable


def details_of(frame: Details) -> tuple[tuple[DeviceDetails, ...], int]:
    """(details of each device, how many counters were unreadable: no whole numbers from 0 to MOST_COUNT)."""
    unreadable = 0

    def count(value: Count | None) -> int | None:
        nonlocal unreadable
        if value is None or (isinstance(value, int) and 0 <= value <= MOST_COUNT):
            return value
        unreadable += 1
        return None

    def link(one: LinkDetails) -> LinkDetails:
        errors = count(one.replay_errors), count(one.recovery_errors), count(one.crc_errors)
        return LinkDetails(one.number, one.is_up, one.remote, *errors)

    def device(one: DeviceDetails) -> DeviceDetails:
        processes = None
        if one.processes is not None:
            processes = [
                ProcessDetails(pid, process.name, count(process.memory_bytes))
                for process in one.processes
                if (pid := count(process.pid)) is not None
            ]
        migs = [MigDetails(mig.uuid, mig.profile, count(mig.memory_bytes)) for mig in one.migs]
        return DeviceDetails(
            [link(each) for each in one.links], count(one.ecc_corrected), count(one.ecc_uncorrected), processes, migs
        )

    return tuple(device(one) for one in frame.details), unreadable


def _cleaned(column: Sequence[int | float | None], low: int, high: int, *, slack: int) -> tuple[Values, int]:
    cleaned: list[int | None] = []
    bad = 0
    for value in column:
        if value is None:
            cleaned.append(None)
        elif low <= value <= high:  # False for NaN
            cleaned.append(round(value))
        else:
            bad += 1
            cleaned.append(high if high < value <= high + slack else None)
    return tuple(cleaned), bad
