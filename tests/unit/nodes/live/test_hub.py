"""One viewer's place in the stream: no gap unnoticed, nothing queued."""

import asyncio
import gc
import weakref

import numpy as np
import pytest

from nodes.live.fleet_columns import COLUMNS, Figures
from nodes.live.fleet_frames import ALL, Coding, Condition, FrameSet, column_set
from nodes.live.hub import HubStopped, Tick, Viewer
from tests.fleet_reader import Reader

ROWS = 64
UTILISATION, POWER = column_set(["utilisation"]), column_set(["power"])


def columns_at(sequence):
    """Every tick, one device differs from the tick before."""
    return np.full((len(COLUMNS), ROWS), 0, np.uint8) + (np.arange(ROWS) < sequence).astype(np.uint8)


def moment(sequence, *, layout=1, follows=True):
    picture = FrameSet(
        columns_at(sequence),
        columns_at(sequence - 1) if follows else None,
        sequence=sequence,
        layout=layout,
        time=0.0,
        conditions=Condition(0),
        figures=Figures(ROWS, 0, ROWS, 0, 0.0, None),
    )
    return Tick(sequence, layout, f"layout {layout}", picture)


def told(answer, reader=None):
    """(layout message, sequence, whether it needs the frame before), once the frame could be applied."""
    layout, frame = answer
    header = (reader or Reader()).take(frame).header
    return layout, header["sequence"], bool(header["kind"])


async def taken(viewer, *moments):
    """What the viewer is sent when it looks after each of the moments."""
    sent = []
    reader = Reader()
    for one in moments:
        viewer.put(one)
        sent.append(told(await viewer.next(), reader))
    return sent


@pytest.mark.parametrize(
    ("moments", "want"),
    [
        pytest.param([moment(5)], [("layout 1", 5, False)], id="the first picture is whole, with its layout"),
        pytest.param([moment(5), moment(6)], [("layout 1", 5, False), (None, 6, True)], id="then changes"),
        pytest.param([moment(5), moment(7)], [("layout 1", 5, False), (None, 7, False)], id="after a gap whole"),
        pytest.param(
            [moment(5), moment(6, follows=False)],
            [("layout 1", 5, False), (None, 6, False)],
            id="nothing to compare with",
        ),
        pytest.param(
            [moment(5), moment(6, layout=2)], [("layout 1", 5, False), ("layout 2", 6, False)], id="a new layout"
        ),
    ],
)
async def test_what_a_viewer_is_sent(moments, want):
    """VIEW-1 what changed goes only to a browser that has the picture before it."""
    assert await taken(Viewer(), *moments) == want


async def test_a_viewer_that_looks_elsewhere_is_sent_that_at_once_and_changes_of_it_after():
    """VIEW-1 another measure is there without waiting for a tick."""
    viewer, reader = Viewer(UTILISATION), Reader()
    viewer.put(moment(3))
    assert told(await viewer.next(), reader) == ("layout 1", 3, False)
    viewer.show(POWER)
    assert told(await viewer.next(), reader) == (None, 3, False)
    assert list(reader.codings) == ["power", "flags"]
    viewer.put(moment(4))
    assert told(await viewer.next(), reader) == (None, 4, True)
    assert reader.codings == {"power": Coding.ROWS, "flags": Coding.ROWS}


async def test_looking_at_less_is_worth_no_frame():
    viewer = Viewer(UTILISATION | POWER)
    viewer.put(moment(3))
    await viewer.next()
    viewer.show(POWER)
    assert await nothing_new(viewer)


async def test_looking_before_the_first_tick_waits_for_it():
    viewer = Viewer(UTILISATION)
    viewer.show(POWER)
    assert await nothing_new(viewer)


async def nothing_new(viewer):
    """Whether the viewer would wait."""
    waiting = asyncio.ensure_future(viewer.next())
    for _ in range(3):
        await asyncio.sleep(0)
    quiet = not waiting.done()
    waiting.cancel()
    return quiet


async def test_a_slow_viewer_skips_to_the_newest():
    viewer = Viewer()
    await taken(viewer, moment(1))
    for sequence in range(2, 500):
        viewer.put(moment(sequence))
    assert told(await viewer.next()) == (None, 499, False)
    assert await nothing_new(viewer)


async def test_a_viewer_that_never_reads_keeps_one_state():
    """VIEW-1 a browser that hangs costs the server one tick's memory, shared with all the others, for as long as it
    hangs.
    """
    stuck, lively = Viewer(), Viewer(UTILISATION)
    kept = []
    for sequence in range(1, 300):
        one = moment(sequence)
        kept.append(weakref.ref(one.frames))
        for viewer in (stuck, lively):
            viewer.put(one)
        await lively.next()
    del one
    gc.collect()
    assert [alive() is not None for alive in kept].count(True) == 1
    assert stuck._tick is lively._tick


async def test_a_viewer_that_missed_something_is_sent_all_again():
    viewer = Viewer(ALL)
    await taken(viewer, moment(1), moment(2))
    viewer.reset()
    assert await taken(viewer, moment(3)) == [("layout 1", 3, False)]


async def test_a_stopped_hub_wakes_its_viewers():
    viewer = Viewer()
    viewer.stop()
    with pytest.raises(HubStopped):
        await viewer.next()
