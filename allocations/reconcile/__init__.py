"""The ledger compared with the cluster: every difference is repaired or reported (LEASE-4, LEASE-5, LEASE-6)."""

from allocations.reconcile.run import Reconciled, reconcile

__all__ = ["Reconciled", "reconcile"]
