"""How old samples are when they are taken, by the agents' own clocks: a clock that is off is counted, not believed.

Called by `nodes.live.ingest` for every sample. Kept true: it costs a microsecond; no node is named, since which agent is silent stands in
`gpuplane_node_agent_silent_seconds`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Histogram

MOST_SECONDS: Final = 60.0
"""Older than that is no lag: a sample that waited so long in an agent's outbox would have been overtaken by newer ones."""
AHEAD_SECONDS: Final = 5.0
"""So far ahead a clock may be, and counts as no lag."""

LAG = Histogram(
    "gpuplane_agent_sample_lag_seconds",
    "From an agent's look at its GPUs to the sample's arrival, by the agent's clock",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
CLOCKS_OFF = Counter("gpuplane_agent_samples_clock_off", "Samples whose time differs absurdly from ours")


def note_lag(*, sent: float, received: float) -> None:
    """Both in seconds since 1970, `sent` by the agent's clock."""
    lag = received - sent
    if -AHEAD_SECONDS <= lag <= MOST_SECONDS:
        LAG.observe(max(lag, 0.0))
    else:  # NaN as well
        CLOCKS_OFF.inc()
