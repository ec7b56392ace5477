"""The frames between a runner and gpuplane: MessagePack, one array a frame, decoded by type (docs/runner-protocol.md).

Used by `runner.session` and `inference.runner_socket`. Invariants: a decoded frame is within every bound below, so
nobody has to check sizes again, and a slot's id is fit to be the name of a folder; only `FrameError` is raised.

    FrameError
    ├── FrameTooLarge   more bytes than any frame may have
    └── BadFrame        not MessagePack, an unknown kind, or a field outside its bounds

New fields are added at a frame's end with a default, so either side may be older.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeVar

import msgspec

FRAME_LIMIT: Final = 256 * 1024
"""Bytes of a frame of a runner. What it is sent may have four times as many."""
DESIRED_LIMIT: Final = 4 * FRAME_LIMIT
MOST_SLOTS: Final = 128
"""Slots of one runner, those that have ended and are not forgotten yet included."""
MOST_GPUS: Final = 64
MOST_SOURCES: Final = 512
MOST_RUNTIMES: Final = 16
MOST_ARGS: Final = 64
MOST_LOGS: Final = 4
"""Logs that are read at one time."""
LOG_CHARACTERS: Final = 16 * 1024
LINES_CHARACTERS: Final = 2048
REASON_CHARACTERS: Final = 400
SOURCE_CHARACTERS: Final = 256

_PLAIN: Final = r"^[^\x00-\x1f\x7f]*\Z"
"""Text without control characters: PostgreSQL takes no NUL, and neither does an argument of a process."""
_SLOT: Final = r"^[a-z0-9][a-z0-9-]*\Z"

Random = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+\Z")]
Sequence63 = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=253, pattern=_PLAIN)]
SlotId = Annotated[str, msgspec.Meta(min_length=1, max_length=32, pattern=_SLOT)]
Name = Annotated[str, msgspec.Meta(max_length=253, pattern=_PLAIN)]
Short = Annotated[str, msgspec.Meta(max_length=64, pattern=_PLAIN)]
Source = Annotated[str, msgspec.Meta(max_length=4096, pattern=_PLAIN)]
OnDisk = Annotated[str, msgspec.Meta(min_length=1, max_length=SOURCE_CHARACTERS, pattern=_PLAIN)]
Reason = Annotated[str, msgspec.Meta(max_length=REASON_CHARACTERS, pattern=_PLAIN)]
Lines = Annotated[str, msgspec.Meta(max_length=LINES_CHARACTERS, pattern=r"^[^\x00]*\Z")]
Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**53)]

SlotIs = Literal["starting", "ready", "stopping", "stopped", "failed"]
"""`starting`, `ready` and `stopping` have a process; `stopped` and `failed` have none."""


class FrameError(Exception):
    """A frame that is refused. `reason`: a short stable word for metrics."""

    reason = "frame"


class FrameTooLarge(FrameError):
    """More bytes than the limit."""

    reason = "too-large"


class BadFrame(FrameError):
    """Not a frame of this protocol, or a field outside its bounds."""

    reason = "bad-frame"


class _Stamped(msgspec.Struct, array_like=True, frozen=True):
    """What every frame of a runner begins with. `boot`: random, of each start of the program."""

    boot: Random
    seq: Sequence63
    time: Seconds


class Hello(_Stamped, frozen=True, tag="hello"):
    """First frame of a session. `instance`: random, kept on the runner's disk; `host`: where its slots are reached."""

    node: NodeName
    instance: Random
    version: Short = ""
    host: Name = ""


class Offer(_Stamped, frozen=True, tag="offer"):
    """What slots can be: names of runtimes, and the sources of models that are on the runner's disk."""

    runtimes: Annotated[list[Short], msgspec.Meta(max_length=MOST_RUNTIMES)] = []
    sources: Annotated[list[OnDisk], msgspec.Meta(max_length=MOST_SOURCES)] = []


class SlotReport(msgspec.Struct, array_like=True, frozen=True):
    """What a slot is now. `address`: host:port once it is ready; `reason`: why it failed or stops; `lines`: the last
    that its process wrote, once it has ended.
    """

    id: SlotId
    state: SlotIs
    address: Name = ""
    reason: Reason = ""
    lines: Lines = ""
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0


class Report(_Stamped, frozen=True, tag="report"):
    """Every slot that the runner has; sent when one changes, and every few seconds."""

    slots: Annotated[list[SlotReport], msgspec.Meta(max_length=MOST_SLOTS)] = []


class LogTail(_Stamped, frozen=True, tag="log"):
    """The end of a slot's log, which the server asked for."""

    slot: SlotId
    text: Annotated[str, msgspec.Meta(max_length=LOG_CHARACTERS, pattern=r"^[^\x00]*\Z")] = ""


class Gpu(msgspec.Struct, array_like=True, frozen=True):
    """A GPU of a slot. `memory`: what the slot may take of its `size`, in bytes."""

    minor: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    uuid: Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f,]*\Z")]
    memory: Bytes = 0
    size: Bytes = 0


class DesiredSlot(msgspec.Struct, array_like=True, frozen=True):
    """A slot as it is to be. `run` false: its processes are to end. `context_length` 0: what the model says.

    An id is started once: one that has ended is not started again.
    """

    id: SlotId
    run: bool
    model: Name = ""
    runtime: Short = ""
    source: Source = ""
    lora: Name = ""
    gpus: Annotated[list[Gpu], msgspec.Meta(max_length=MOST_GPUS)] = []
    parallel: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1
    context_length: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    kv_type: Short = "f16"
    args: Annotated[list[Source], msgspec.Meta(max_length=MOST_ARGS)] = []
    start_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 600.0
    """How long it may take until it is ready."""
    grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 10.0
    """Between SIGTERM and SIGKILL."""


class Desired(msgspec.Struct, array_like=True, frozen=True, tag="desired"):
    """All that the runner is to run: what is not listed ends, and is forgotten. `logs`: slots whose log is read now."""

    slots: Annotated[list[DesiredSlot], msgspec.Meta(max_length=MOST_SLOTS)] = []
    logs: Annotated[list[SlotId], msgspec.Meta(max_length=MOST_LOGS)] = []


class Welcome(msgspec.Struct, array_like=True, frozen=True, tag="welcome"):
    """The server's answer to hello. `time`: by its clock."""

    boot: str
    time: float


RunnerFrame = Hello | Offer | Report | LogTail
ServerFrame = Welcome | Desired

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_runner_decoder: msgspec.msgpack.Decoder[RunnerFrame] = msgspec.msgpack.Decoder(RunnerFrame)
_server_decoder: msgspec.msgpack.Decoder[ServerFrame] = msgspec.msgpack.Decoder(ServerFrame)
_slots_decoder: msgspec.msgpack.Decoder[DesiredSlot] = msgspec.msgpack.Decoder(DesiredSlot)


def encode(frame: RunnerFrame | ServerFrame) -> bytes:
    """A frame as a MessagePack array that starts with its kind. A report that is too long goes without lines, an offer
    with fewer sources.
    """
    body = _encoder.encode(frame)
    if isinstance(frame, Report) and len(body) > FRAME_LIMIT:
        bare = [msgspec.structs.replace(slot, lines="") for slot in frame.slots]
        body = _encoder.encode(msgspec.structs.replace(frame, slots=bare))
    if isinstance(frame, Offer):
        sources = frame.sources
        while sources and len(body) > FRAME_LIMIT:
            sources = sources[: len(sources) * FRAME_LIMIT // len(body)]
            body = _encoder.encode(msgspec.structs.replace(frame, sources=sources))
    return body


def decode(body: bytes) -> RunnerFrame:
    """A frame that a runner sent. Raises FrameTooLarge and BadFrame."""
    return _decoded(_runner_decoder, body, FRAME_LIMIT)


def decode_server(body: bytes) -> ServerFrame:
    """A frame that the server sent. Raises FrameTooLarge and BadFrame."""
    return _decoded(_server_decoder, body, DESIRED_LIMIT)


def encode_slot(slot: DesiredSlot) -> bytes:
    """A slot as it is kept beside its process."""
    return _encoder.encode(slot)


def decode_slot(body: bytes) -> DesiredSlot:
    """What `encode_slot` wrote. Raises BadFrame."""
    return _decoded(_slots_decoder, body, DESIRED_LIMIT)


def plain(text: str, most: int) -> str:
    """The text without control characters, at most so long: fit for a reason."""
    return "".join(one if one.isprintable() else " " for one in text)[:most].strip()


def _decoded(decoder: msgspec.msgpack.Decoder[T], body: bytes, limit: int) -> T:
    if len(body) > limit:
        raise FrameTooLarge(f"a frame has at most {limit} bytes, this one has {len(body)}")
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadFrame(str(error)[:200]) from error
