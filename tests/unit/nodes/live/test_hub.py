"""One viewer's place in the stream: no gap unnoticed, nothing queued."""

import asyncio

import pytest

from nodes.live.hub import HubStopped, Moment, Viewer


def moment(sequence, *, layout=1, delta=True):
    return Moment(
        sequence, layout, f"layout {layout}", b"full %d" % sequence, b"delta %d" % sequence if delta else None
    )


async def taken(viewer, *moments):
    """What the viewer is sent when it looks after each of the moments."""
    sent = []
    for one in moments:
        viewer.tell(one)
        sent.append(await viewer.next())
    return sent


@pytest.mark.parametrize(
    ("moments", "want"),
    [
        pytest.param([moment(5)], [("layout 1", b"full 5")], id="the first picture is whole, with its layout"),
        pytest.param([moment(5), moment(6)], [("layout 1", b"full 5"), (None, b"delta 6")], id="then deltas"),
        pytest.param([moment(5), moment(7)], [("layout 1", b"full 5"), (None, b"full 7")], id="after a gap whole"),
        pytest.param(
            [moment(5), moment(6, delta=False)], [("layout 1", b"full 5"), (None, b"full 6")], id="a delta no smaller"
        ),
        pytest.param(
            [moment(5), moment(6, layout=2)], [("layout 1", b"full 5"), ("layout 2", b"full 6")], id="a new layout"
        ),
    ],
)
async def test_what_a_viewer_is_sent(moments, want):
    """VIEW-1 a delta goes only to a browser that has the picture before it."""
    assert await taken(Viewer(), *moments) == want


async def test_a_slow_viewer_skips_and_keeps_only_the_newest():
    viewer = Viewer()
    await taken(viewer, moment(1))
    for sequence in range(2, 500):
        viewer.tell(moment(sequence))
    assert await viewer.next() == (None, b"full 499")
    late = asyncio.ensure_future(viewer.next())
    await asyncio.sleep(0)
    assert not late.done()
    late.cancel()


async def test_a_viewer_that_missed_something_is_told_all_again():
    viewer = Viewer()
    await taken(viewer, moment(1), moment(2))
    viewer.forget()
    assert await taken(viewer, moment(3)) == [("layout 1", b"full 3")]


async def test_a_stopped_hub_wakes_its_viewers():
    viewer = Viewer()
    viewer.stop()
    with pytest.raises(HubStopped):
        await viewer.next()
