"""Whole WebSocket frames, beside the parser of `websockets`."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from gpuplane.listeners.frame_fast_path import FrameBoundary, whole_binary

sizes = st.one_of(st.integers(0, 300), st.sampled_from([125, 126, 127, 65_535, 65_536]))
frames = st.builds(
    lambda opcode, size, masked: Frame(opcode, bytes(size)).serialize(mask=masked),
    st.sampled_from([Opcode.BINARY, Opcode.TEXT, Opcode.CONT]),
    sizes,
    st.booleans(),
)


@given(st.lists(frames, max_size=5), st.lists(st.integers(0, 2000), max_size=12))
def test_the_boundary_is_where_a_frame_ends(sent: list[bytes], pieces: list[int]) -> None:
    """NODE-2 wherever the network cuts what was sent."""
    data = b"".join(sent)
    ends = {0, *itertools.accumulate(map(len, sent))}
    boundary, at = FrameBoundary(), 0
    for size in [*pieces, len(data)]:
        boundary.feed(data[at : at + size])
        at = min(at + size, len(data))
        assert boundary.is_here == (at in ends)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 447, 65_535])
def test_one_frame_of_a_client(size: int) -> None:
    """NODE-2 the payload is unmasked as the parser does it."""
    payload = (bytes(range(256)) * 256)[:size]
    sent = Frame(Opcode.BINARY, payload).serialize(mask=True)
    assert whole_binary(sent) == payload


GOOD = Frame(Opcode.BINARY, b"payload").serialize(mask=True)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(GOOD[:-1], id="cut off"),
        pytest.param(GOOD[:5], id="within the mask"),
        pytest.param(GOOD + b"\x82", id="the next one has begun"),
        pytest.param(GOOD * 2, id="two"),
        pytest.param(Frame(Opcode.BINARY, b"x").serialize(mask=False), id="not masked"),
        pytest.param(Frame(Opcode.TEXT, b"x").serialize(mask=True), id="text"),
        pytest.param(Frame(Opcode.PING, b"x").serialize(mask=True), id="a ping"),
        pytest.param(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True), id="a close"),
        pytest.param(Frame(Opcode.BINARY, b"x", fin=False).serialize(mask=True), id="a first part"),
        pytest.param(b"\xc2" + GOOD[1:], id="a reserved bit"),
        pytest.param(b"\x82\xfe\x00\x05" + bytes(4) + b"12345", id="a length of two bytes that one could hold"),
        pytest.param(Frame(Opcode.BINARY, bytes(65_536)).serialize(mask=True), id="more than 64 KiB"),
    ],
)
def test_all_else_is_left_to_the_parser(data: bytes) -> None:
    """NODE-2 what is unusual, or breaks a rule, is answered as before."""
    assert whole_binary(data) is None
