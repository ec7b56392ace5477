"""The loop that admits the workloads of queues and gangs (CLAIM-8, QUEUE-1 to QUEUE-6).

In come waiting pods (`allocations.models.PodRefusal.member`), queues, gangs and the ledger; out go holds, removed
gates, evictions, and one reason for each pod that waits. Called by `allocations.tasks`. Invariants:
- One worker decides at a time, under a fencing number that each transaction of holds compares.
- The loop is level-triggered: between two rounds it keeps nothing but caches, so the next round completes one that was
  cut off anywhere.
- All pods that a workload needs are held in one transaction, or none.
"""
