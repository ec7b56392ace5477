"""Prometheus counters of slots, incremented in whichever process (workers' are added up in `gpuplane.metrics_relay`).

Invariants: counted after the commit, once a move; labels are names of models and states.
"""

from __future__ import annotations

from prometheus_client import Counter, Histogram

MOVES = Counter("gpuplane_slot_moves", "Moves of slots into a state", ["model", "state"])
EVICTED = Counter("gpuplane_slots_evicted", "Slots that left for a slot of another model or LoRA", ["model"])
START_SECONDS = Histogram(
    "gpuplane_slot_start_seconds",
    "From the plan of a slot until it was ready",
    ["model"],
    buckets=(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200),
)
