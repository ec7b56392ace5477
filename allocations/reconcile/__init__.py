"""The ledger compared with the cluster: every difference is repaired or reported (LEASE-4, LEASE-5, LEASE-6)."""

from allocations.reconcile.newcomers import newcomers, read_newcomers
from allocations.reconcile.run import Reconciled, reconcile

__all__ = ["Reconciled", "newcomers", "read_newcomers", "reconcile"]
