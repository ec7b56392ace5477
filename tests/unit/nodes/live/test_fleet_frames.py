"""The bytes of the fleet stream, read back as the browser reads them."""

import math
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.live.fleet_columns import COLUMNS, Figures
from nodes.live.fleet_frames import ALL, ALWAYS, MOST_KEPT, Condition, FrameSet, column_set, layout_message
from nodes.live.fleet_rows import Layout, LayoutDevice, LayoutNode, natural
from tests.fleet_reader import BLOCK, HEADER, Reader

FIGURES = Figures(10, 4, 5, 1, 37.5, None)
ABOUT: dict[str, Any] = {"layout": 3, "time": 1000.5, "conditions": Condition(0), "figures": FIGURES}


def picture(columns, previous=None, *, sequence=7):
    return FrameSet(columns, previous, sequence=sequence, **ABOUT)


def of_bytes(rows, value=0):
    return np.full((len(COLUMNS), rows), value, np.uint8)


@st.composite
def two_ticks(draw):
    """Columns before and after, and what a browser looked at in each."""
    devices = draw(st.integers(0, 60))
    chance = np.random.default_rng(draw(st.integers(0, 1000)))
    before = chance.integers(0, 256, (len(COLUMNS), devices), dtype=np.uint8)
    after = before.copy()
    for column in range(len(COLUMNS)):
        rows = chance.random(devices) < draw(st.sampled_from([0, 0.05, 0.5, 1]))
        after[column, rows] = chance.integers(0, 256, int(rows.sum()), dtype=np.uint8)
    return before, after, draw(st.integers(0, ALL)) | ALWAYS, draw(st.integers(0, ALL)) | ALWAYS


@given(two_ticks())
def test_a_browser_that_applies_frames_holds_what_the_server_holds(ticks):
    """VIEW-1 whatever it looks at, and looked at before, a browser has exactly the server's values of it."""
    before, after, first, second = ticks
    reader = Reader().take(picture(before).frame(first, 0))
    frame = picture(after, before, sequence=8).frame(second, first)
    reader.take(frame)
    wanted = [name for at, name in enumerate(COLUMNS) if second >> at & 1]
    assert list(reader.codings) == wanted
    for name in wanted:
        assert (reader.values[name] == after[COLUMNS.index(name)]).all(), name
    assert len(frame) <= len(picture(after).frame(second, 0))


@pytest.mark.parametrize(
    ("changed", "want_coding", "want_bytes"),
    [
        pytest.param(0, 1, 0, id="nothing changed: no bytes at all"),
        pytest.param(10, 1, 52, id="a few: rows and values"),
        pytest.param(300, 2, 428, id="many: a bit a row and values"),
        pytest.param(1000, 0, 1024, id="nearly all: the column whole"),
    ],
)
def test_each_column_is_written_in_the_smallest_way(changed, want_coding, want_bytes):
    before, after = of_bytes(1024), of_bytes(1024)
    after[2, :changed] = 9
    frame = picture(after, before).frame(column_set(["utilisation"]), ALL)
    reader = Reader(dict(zip(COLUMNS, before.copy(), strict=True)), dict.fromkeys(COLUMNS, 6)).take(frame)
    assert reader.codings == {"utilisation": want_coding, "flags": 1}
    assert len(frame) == HEADER.size + 2 * BLOCK.size + want_bytes
    assert (reader.values["utilisation"] == after[2]).all()


def test_a_viewer_of_one_measure_is_sent_one_measure_with_the_flags():
    """VIEW-1 who looks at utilisation of 40,000 GPUs is sent 80 kB, not 320."""
    frame = picture(of_bytes(40_000)).frame(column_set(["utilisation"]), 0)
    assert set(Reader().take(frame).codings) == {"utilisation", "flags"}
    assert len(frame) == HEADER.size + 2 * (BLOCK.size + 40_000)


def test_the_figures_are_in_every_frame():
    reader = Reader().take(picture(of_bytes(3)).frame(ALWAYS, 0))
    *counts, allocated, utilisation = reader.header["figures"]
    assert (counts, allocated) == ([10, 4, 5, 1], 37.5)
    assert math.isnan(utilisation)
    assert {key: reader.header[key] for key in ("sequence", "layout", "time", "rows")} == {
        "sequence": 7, "layout": 3, "time": 1000.5, "rows": 3,
    }  # fmt: skip


def test_fifty_viewers_of_the_same_share_one_encoding():
    """One object for all of them: nothing is coded, joined or kept twice."""
    made = picture(of_bytes(5000, 1), of_bytes(5000))
    frames = {id(made.frame(ALL, ALL)) for _ in range(50)}
    assert len(frames) == 1
    assert made.frame(ALL, 0) is made.frame(ALL, 0)
    assert made.frame(ALL, 0) is not made.frame(ALL, ALL)


def test_a_tick_keeps_few_frames_however_many_views_there_are():
    made = picture(of_bytes(8))
    for wanted in range(ALL + 1):
        made.frame(wanted | ALWAYS, 0)
    assert len(made._frames) == MOST_KEPT
    assert made.frame(ALL & ~1, 0) == picture(of_bytes(8)).frame(ALL & ~1, 0)


@pytest.mark.parametrize(
    ("names", "want"),
    [
        pytest.param(["core", "power"], 0b10100001, id="two, and the flags that always go along"),
        pytest.param(["core", "core", "flags"], 0b10000001, id="said twice"),
        pytest.param(["", "cores", "__class__"], ALWAYS, id="none that exists"),
        pytest.param(COLUMNS, ALL, id="all"),
    ],
)
def test_sets_of_columns(names, want):
    assert column_set(names) == want


def test_the_layout_names_every_row_once():
    devices = tuple(LayoutDevice(minor + 10, "gpu", minor, f"u{minor}", "H100", 80 << 30, 0) for minor in range(2))
    layout = Layout(
        (
            LayoutNode("n1", "r1", "training", "exclusive", devices, ("u0", "u1")),
            LayoutNode("n2", "", "", "device-plugin", (), ()),
        )
    )
    message = orjson.loads(layout_message(layout, version=4))
    assert message == {
        "kind": "layout",
        "version": 4,
        "types": ["gpu"],
        "models": ["H100"],
        "racks": ["r1", ""],
        "pools": ["training", ""],
        "nodes": [
            ["n1", 0, 0, "exclusive", [[10, 0, 0, 0, 81920, 0], [11, 1, 0, 0, 81920, 0]]],
            ["n2", 1, 1, "device-plugin", []],
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
