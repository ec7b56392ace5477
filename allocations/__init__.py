"""Who holds what: the ledger, and everything that decides about it, binds, compares and publishes.

In come pods from kube-scheduler and claims over REST; out go allocations, Leases, Bindings and what is published of
them. Layers, which import-linter holds: `publish` → `extender` | `reconcile` → `scheduling` → `ledger` | `leases` →
`engine`; `scenario` and `whatif` beside them. Invariants:
- `ledger` is the only writer of capacity; a mistake above it can refuse, and not give a device twice.
- Deciding is apart from doing: `engine` sees a frozen snapshot and changes nothing.
- No request to the API server is sent inside a database transaction.
- A process killed at any moment leaves rows that garbage collection finishes or undoes.
"""
