"""What each queue held, used, borrowed and lent, by hour, model and namespace: chargeback (QUEUE-6).

`amounts` adds up a minute of allocations (pure), `recording` writes minutes into the hours of
`allocations.models.QueueUsage`, `reading` answers for REST and pages. Called by `allocations.tasks`. Invariants: a
minute is added once, also by two workers; a queue's figures are those of all pods below it; unmeasured time is neither
used nor idle.
"""
