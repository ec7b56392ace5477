"""Leases: one a device taken, behind one port with two implementations, Kubernetes and database (LEASE-1)."""
