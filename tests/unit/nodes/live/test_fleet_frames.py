"""The bytes of the fleet stream, read back as the browser reads them."""

import struct
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.live.fleet_frames import COLUMNS, Condition, delta_frame, full_frame, layout_message
from nodes.live.fleet_rows import Layout, LayoutDevice, LayoutNode, natural

HEADER = struct.Struct("<2sBBBxxxIIdII")
ABOUT: dict[str, Any] = {"layout": 3, "time": 1000.5, "conditions": Condition(0)}


def decoded(frame, before=None):
    """The columns that a browser holds after the frame, and its sequence."""
    magic, version, kind, _, sequence, _, _, rows, total = HEADER.unpack_from(frame)
    assert (magic, version) == (b"GF", 1)
    body = frame[HEADER.size :]
    if kind == 0:
        assert rows == total
        return np.frombuffer(body, np.uint8).reshape(len(COLUMNS), total), sequence
    assert before is not None
    assert before.shape[1] == total
    after = before.copy()
    places = np.frombuffer(body[: 4 * rows], "<u4")
    after[:, places] = np.frombuffer(body[4 * rows :], np.uint8).reshape(len(COLUMNS), rows)
    return after, sequence


@st.composite
def two_pictures(draw):
    devices = draw(st.integers(0, 40))
    shape = (len(COLUMNS), devices)
    before = np.array(draw(st.lists(st.integers(0, 255), min_size=shape[0] * devices, max_size=shape[0] * devices)))
    before = before.reshape(shape).astype(np.uint8)
    after = before.copy()
    for row in draw(st.lists(st.integers(0, devices - 1), max_size=6)) if devices else []:
        after[draw(st.integers(0, shape[0] - 1)), row] = draw(st.integers(0, 255))
    return before, after


@given(two_pictures())
def test_a_browser_that_applies_frames_holds_what_the_server_holds(pictures):
    """VIEW-1 full and delta frames give the browser exactly the server's columns."""
    before, after = pictures
    held, _ = decoded(full_frame(before, sequence=7, **ABOUT))
    assert (held == before).all()
    delta = delta_frame(after, before, sequence=8, **ABOUT)
    frame = full_frame(after, sequence=8, **ABOUT) if delta is None else delta
    held, sequence = decoded(frame, held)
    assert (held == after).all()
    assert sequence == 8
    if delta is not None:
        assert len(delta) <= len(full_frame(after, sequence=8, **ABOUT)) or not after.size


def test_nothing_changed_is_a_header_alone():
    columns = np.zeros((len(COLUMNS), 5000), np.uint8)
    delta = delta_frame(columns, columns, sequence=1, **ABOUT)
    assert delta is not None
    assert len(delta) == HEADER.size


def test_the_layout_names_every_row_once():
    devices = tuple(LayoutDevice(minor + 10, "gpu", minor, f"u{minor}", "H100", 80 << 30, 0) for minor in range(2))
    layout = Layout(
        (LayoutNode("n1", "r1", "exclusive", devices, ("u0", "u1")), LayoutNode("n2", "", "device-plugin", (), ()))
    )
    message = orjson.loads(layout_message(layout, version=4))
    assert message == {
        "kind": "layout",
        "version": 4,
        "types": ["gpu"],
        "models": ["H100"],
        "racks": ["r1", ""],
        "nodes": [
            ["n1", 0, "exclusive", [[10, 0, 0, 0, 81920, 0], [11, 1, 0, 0, 81920, 0]]],
            ["n2", 1, "device-plugin", []],
        ],
    }


@pytest.mark.parametrize(
    ("names", "want"),
    [
        pytest.param(["n10", "n2", "n1"], ["n1", "n2", "n10"], id="numbers by value"),
        pytest.param(["b1", "a", "a-2", "10"], ["10", "a", "a-2", "b1"], id="words and numbers side by side"),
    ],
)
def test_names_are_in_natural_order(names, want):
    assert sorted(names, key=natural) == want
