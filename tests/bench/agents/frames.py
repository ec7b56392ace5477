"""What a crowd of agents says, as bytes made beforehand: a sample costs the sender one join and one write.

Used by `crowd` and `measuring`. Invariants: a decoder takes these bytes for those of the real agent, but that numbers
are written at their full width, so that sequence and time lie where they can be overwritten; the figures are those of
the simulated machine, and change every second; GPU 0's utilisation is the sample's number modulo TURN, by which a
browser's picture tells which sample it shows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Final

import msgspec

from agent.protocol import COLUMNS, Details, DeviceDetails, Hello, encode
from agent.sources import Machine, Reading, error_columns
from agent.sources.simulated import SimulatedSource

MACHINE: Final = "h100-8"
TURN: Final = 101
VARIANTS: Final = 1024
BOOT: Final = "5f0c9a17"
_HEAD: Final = struct.Struct(">BBHI")
_STAMP: Final = struct.Struct(">BQBdBB")
_FIELDS: Final = len(COLUMNS) + 5
"""And the kind, boot, sequence, time and devices."""
_KIND: Final = struct.pack(">BH", 0xDC, _FIELDS) + msgspec.msgpack.encode("sample") + msgspec.msgpack.encode(BOOT)
_BINARY: Final = 0x82
_PONG: Final = 0x8A
_MASKED: Final = 0x80


@cache
def _machine() -> Machine:
    return SimulatedSource(MACHINE, node="bench").machine()


@cache
def tails() -> Sequence[bytes]:
    """Everything of a sample behind GPU 0's utilisation, in VARIANTS moments a few seconds apart."""
    moments = iter(range(VARIANTS))
    source = SimulatedSource(MACHINE, node="bench", clock=lambda: 7.3 * next(moments))
    return [_tail(source.read(_machine())) for _ in range(VARIANTS)]


def _tail(reading: Reading) -> bytes:
    columns = {**reading.columns, **error_columns(reading.details)}
    parts = [msgspec.msgpack.encode(columns.get(name, [])) for name in COLUMNS]
    parts.insert(8, b"\xc0")  # devices: the session's order
    return b"".join(parts)[2:]


def sample(seq: int, time: float, variant: int) -> bytes:
    """One sample, as a WebSocket frame."""
    tail = tails()[variant % VARIANTS]
    stamp = _STAMP.pack(0xCF, seq, 0xCB, time, 0x98, seq % TURN)
    return b"".join((_HEAD.pack(_BINARY, _MASKED | 126, len(_KIND) + len(stamp) + len(tail), 0), _KIND, stamp, tail))


def hello(node: str, uuids: Sequence[str], *, time: float) -> bytes:
    """The first frame of a session."""
    return binary(encode(Hello(BOOT, 0, time, node, "bench", list(uuids))))


def details(seq: int, *, time: float) -> bytes:
    """Links and processes of the machine; with every frame other ones than before."""
    known = _details()
    return binary(encode(Details(BOOT, seq, time, known[seq % len(known)])))


@cache
def _details() -> Sequence[list[DeviceDetails]]:
    moments = iter(range(16))
    source = SimulatedSource(MACHINE, node="bench", clock=lambda: 17.1 * next(moments))
    return [list(source.read(_machine()).details) for _ in range(16)]


def binary(body: bytes) -> bytes:
    """A client's frame: masked, by a mask that changes nothing, which a server has to undo all the same."""
    return _framed(_BINARY, body)


def pong(body: bytes) -> bytes:
    """The answer to a ping."""
    return _framed(_PONG, body)


def _framed(kind: int, body: bytes) -> bytes:
    if len(body) < 126:
        return struct.pack(">BBI", kind, _MASKED | len(body), 0) + body
    return _HEAD.pack(kind, _MASKED | 126, len(body), 0) + body


def payload(frame: bytes) -> bytes:
    """What a long frame carries."""
    return frame[_HEAD.size :]


def received(data: bytearray) -> list[tuple[int, bytes]]:
    """(first byte, payload) of each whole frame from a server at the head of `data`, which is cut off there."""
    found = []
    while len(data) >= 2:
        size, start = data[1], 2
        if size == 126:
            if len(data) < 4:
                break
            size, start = int.from_bytes(data[2:4], "big"), 4
        if len(data) < start + size:
            break
        found.append((data[0], bytes(data[start : start + size])))
        del data[: start + size]
    return found
