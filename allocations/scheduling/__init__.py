"""Placement, binding and release.

In: a pod or a REST claim, parsed. Out: allocations in the ledger, leases, Bindings. Called by the extender, REST and
garbage collection. Invariants:
- `placement` is the only loop that plans, holds and retries.
- `binder` is the only way through the steps of a bind or a release.
- A Binding without an answer is sent again until the answer is definite, and never undone on a guess.
"""
