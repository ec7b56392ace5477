"""Who holds what: engine (pure), fleet snapshot, ledger, leases, extender, garbage collection."""
