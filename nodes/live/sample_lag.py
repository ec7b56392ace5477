"""Age of samples on arrival, by the agents' clocks; samples of clocks that are off are counted apart.

Called by `nodes.live.ingest` for every sample. The metrics name no node: silence of an agent is in
`gpuplane_node_agent_silent_seconds`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Histogram

MOST_SECONDS: Final = 60.0
"""An older sample is due to a wrong clock: newer ones would have overtaken it in the agent's outbox."""
AHEAD_SECONDS: Final = 5.0
"""A clock ahead by no more counts as no lag."""

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
