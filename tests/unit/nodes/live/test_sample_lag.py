"""How old samples are by their agents' clocks."""

from __future__ import annotations

import pytest

from nodes.live.sample_lag import note_lag
from tests.measured import growth

COUNT, SUM, OFF = (
    "gpuplane_agent_sample_lag_seconds_count",
    "gpuplane_agent_sample_lag_seconds_sum",
    "gpuplane_agent_samples_clock_off_total",
)
NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("sent", "want"),
    [
        pytest.param(NOW - 0.5, {(COUNT,): 1, (SUM,): 0.5}, id="half a second"),
        pytest.param(NOW + 2, {(COUNT,): 1}, id="a clock a little ahead"),
        pytest.param(NOW + 6, {(OFF,): 1}, id="a clock far ahead"),
        pytest.param(NOW - 61, {(OFF,): 1}, id="a clock far behind"),
        pytest.param(0.0, {(OFF,): 1}, id="a clock never set"),
        pytest.param(float("nan"), {(OFF,): 1}, id="no time at all"),
        pytest.param(float("-inf"), {(OFF,): 1}, id="before all time"),
    ],
)
def test_lag(sent: float, want: dict[tuple[str, ...], float]) -> None:
    """VIEW-5 a clock that is off is counted, and does not spoil the histogram."""
    with growth(COUNT, SUM, OFF) as grown:
        note_lag(sent=sent, received=NOW)
    assert {key: pytest.approx(value, abs=1e-6) for key, value in grown.items()} == want
