"""Prometheus counters of growth, incremented in whichever process (workers' are added up in `gpuplane.metrics_relay`).

Invariants: labels are of small sets, and every series exists from the start.
"""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from autoscaling.choices import Step

CREATED = Counter("gpuplane_trigger_pods_created", "Trigger pods created")
LANDED = Counter("gpuplane_trigger_pods_landed", "Trigger pods that landed on an old node and were deleted at once")
CLEANUP_FAILURES = Counter("gpuplane_trigger_cleanup_failures", "Trigger pods that could not be deleted, each try anew")
OUTCOMES = Counter("gpuplane_scaling_outcomes", "Nodes that were wanted, by what became of them", ["outcome"])
PROVISION = Histogram(
    "gpuplane_nodeclaim_provision_seconds",
    "Time from the creation of a NodeClaim to each of its steps",
    ["step"],
    buckets=(1, 2, 5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1200),
)

SERVED, FAILED = "served", "failed"
for _outcome in (SERVED, FAILED):
    OUTCOMES.labels(_outcome)
for _step in Step:
    if _step is not Step.CREATED:
        PROVISION.labels(_step.value)
