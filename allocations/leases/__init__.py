"""Leases: one a device taken, behind one port with two implementations, Kubernetes and database (LEASE-1).

Called by the steps of binds and releases, and by reconciling; `allocations.backends` chooses the implementation.
Invariants:
- Taking a lease that is already ours succeeds; a lease of somebody else is never touched.
- Names follow from node, type and minor, so that every step may be repeated.
- No request to the API server is made inside a database transaction.
"""
