"""Recognises what an agent sends each second, one whole WebSocket frame, without the general parser.

Used by `bounded_sockets`. The parser of `websockets` keeps four objects for the next frame of each connection; those
of thousands of agents, new each second, made every collection of young garbage last 60 ms. The format is that of RFC
6455, section 5.2. Invariants: a frame is recognised only at a boundary of frames; whatever is unusual is left to the
parser.
"""

from __future__ import annotations

from typing import Final

from websockets.frames import apply_mask  # type: ignore[attr-defined]  # of C where there is one

_WHOLE_BINARY: Final = 0x82
"""The first byte of a message of one binary frame."""
_MASKED: Final = 0x80
_MASK_BYTES: Final = 4
_LENGTH_BYTES: Final = {126: 2, 127: 8}


def whole_binary(data: bytes) -> bytes | None:
    """The payload where the data is exactly one masked binary frame of at most 64 KiB; None for all else."""
    if len(data) < 6 or data[0] != _WHOLE_BINARY or data[1] < _MASKED:
        return None
    size, start = data[1] - _MASKED, 2
    if size == 126 and len(data) >= 8:
        size, start = int.from_bytes(data[2:4], "big"), 4
        if size < 126:
            return None
    elif size >= 126:
        return None
    body = start + _MASK_BYTES
    return apply_mask(data[body:], data[start:body]) if len(data) == body + size else None


class FrameBoundary:
    """Whether the data so far ends where a frame ends."""

    __slots__ = ("_head", "_skip")

    def __init__(self) -> None:
        self._head = b""
        self._skip = 0

    @property
    def is_here(self) -> bool:
        """Whether the next byte is the first of a frame."""
        return not self._skip and not self._head

    def feed(self, data: bytes) -> None:
        """Go on by this data."""
        at = min(self._skip, len(data))
        self._skip -= at
        data, at = (self._head + data, at) if not at else (data, at)
        self._head = b""
        while at < len(data):
            length = data[at + 1] & 0x7F if at + 1 < len(data) else 0
            more = _LENGTH_BYTES.get(length, 0)
            head = 2 + more + (_MASK_BYTES if at + 1 < len(data) and data[at + 1] & _MASKED else 0)
            if at + head > len(data):
                self._head = data[at:]
                return
            size = int.from_bytes(data[at + 2 : at + 2 + more], "big") if more else length
            end = at + head + size
            self._skip = max(0, end - len(data))
            at = end
