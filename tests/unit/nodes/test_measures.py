"""Blocks of samples and the arrays that are joined of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.protocol import COLUMNS, Sample, Values, decode_received, encode
from nodes.live.samples import FrameResult, KeptSample, SampleTable
from nodes.measures import block_of, measures_of

column = st.one_of(st.none(), st.integers(-60, 2**53))


@st.composite
def tables(draw: st.DrawFn) -> list[list[Values]]:
    """Samples of nodes with several numbers of GPUs, none among them."""
    counts = draw(st.lists(st.integers(0, 4), max_size=6))
    return [[draw(st.tuples(*[column] * count)) for _ in COLUMNS] for count in counts]


@given(tables())
def test_blocks_are_joined_as_columns(samples: list[list[Values]]) -> None:
    """VIEW-1 every value is where its GPU is, exactly; what is unknown is NaN."""
    gpus = [len(sample[0]) for sample in samples]
    made = measures_of([block_of(sample) for sample in samples], gpus)
    assert made.shape == (len(COLUMNS), sum(gpus))
    for row in range(len(COLUMNS)):
        want = [value for sample in samples for value in sample[row]]
        assert [None if np.isnan(value) else int(value) for value in made[row]] == want


@pytest.mark.parametrize(
    ("sample", "want"),
    [
        pytest.param({"power_watts": [70, 71]}, [70, 71], id="clean, other columns empty"),
        pytest.param({"power_watts": [70, None]}, [70, None], id="one unknown"),
        pytest.param({"power_watts": [70.4, float("nan")]}, [70, None], id="a fraction, and no number"),
        pytest.param({"power_watts": [-1, 20_001]}, [None, None], id="out of bounds"),
        pytest.param({}, [None, None], id="nothing"),
    ],
)
def test_a_kept_block_is_of_its_sample(sample: dict[str, list[float | None]], want: list[int | None]) -> None:
    """VIEW-1, NODE-2 the block of a frame that was taken is that of its view, however it had to be cleaned."""
    table = SampleTable()
    frame = decode_received(encode(Sample("b", 1, 1.0, **sample, devices=["GPU-0", "GPU-1"])))
    assert isinstance(frame, Sample)
    assert table.put("n1", frame, now=1.0, received_at=1.0)[0] is FrameResult.NEW
    kept = table.latest_kept()["n1"]
    assert isinstance(kept, KeptSample)
    assert kept.view.power_watts == tuple(want)
    assert kept.block == KeptSample.of(kept.view).block
    assert KeptSample.of(kept) is kept
    power = measures_of([kept.block], [2])[COLUMNS.index("power_watts")].tolist()
    assert [None if np.isnan(one) else one for one in power] == want


def test_replayed_and_reordered_frames_change_no_block() -> None:
    """NODE-2 the columns are of the newest frame, as the view is; another order of devices comes with its values."""
    table = SampleTable()

    def put(seq: int, watts: list[int | float | None], devices: list[str]) -> FrameResult:
        frame = Sample("b", seq, 1.0, power_watts=watts, devices=devices)
        return table.put("n1", frame, now=1.0, received_at=1.0 + seq)[0]

    assert put(5, [50], ["GPU-0"]) is FrameResult.NEW
    for seq in (5, 4):
        assert put(seq, [99], ["GPU-0"]) is FrameResult.OLD
    assert measures_of([KeptSample.of(table.latest_kept()["n1"]).block], [1])[COLUMNS.index("power_watts")] == [50]
    assert put(6, [61, 60], ["GPU-1", "GPU-0"]) is FrameResult.NEW
    kept = KeptSample.of(table.latest_kept()["n1"])
    assert kept.view.devices == ("GPU-1", "GPU-0")
    assert measures_of([kept.block], [2])[COLUMNS.index("power_watts")].tolist() == [61, 60]
    assert [one.view.seq for one in table.take_changed().values()] == [6]
