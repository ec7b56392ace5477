"""Queueing: which waiting workloads are admitted, and which pods are evicted for them, over all queues and devices.

`rounds.decide` takes queues, running and waiting workloads and a snapshot, and returns admissions, evictions and one
reason for each workload that waits. Called by `allocations.scheduling.queueing` and `allocations.scenario`. Invariants:
- Pure: the same input gives the same decision.
- A workload is placed whole or not at all; no queue and none of its ancestors passes its limit.
- Nobody is evicted where that would not suffice.
"""
