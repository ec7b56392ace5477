"""Which waiting workloads may go, and who has to go for them: one decision over all queues, gangs and devices.

`rounds.decide` takes queues, running and waiting workloads and a snapshot, and answers admissions, evictions and one
reason for each workload that waits. Called by `allocations.scenario`. Invariants:
- Pure: the same picture gives the same answer.
- A workload is placed whole or not at all; no queue and none of its ancestors passes its limit.
- Nobody is evicted where that would not suffice.
"""
