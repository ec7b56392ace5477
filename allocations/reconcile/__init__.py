"""The ledger compared with the cluster, and garbage collection (LEASE-4, LEASE-5, LEASE-6).

In come the ledger's rows, then what the API server and the kubelets say; out go repairs, and a report of what cannot be
repaired. Called by Celery tasks, by the watches and by `manage.py reconcile`. Invariants:
- The ledger is read before the cluster, and only rows that are unchanged since are acted on.
- A pod that runs keeps its devices: it is adopted, or they are closed to newcomers.
- Nothing is collected on stale knowledge; where the API server does not answer, the row waits.
- Any number of comparisons and collectors may run at once: every move is conditional.
"""

from allocations.reconcile.report import Reconciled
from allocations.reconcile.run import reconcile
from allocations.reconcile.unverified_devices import unverified, verify_devices

__all__ = ["Reconciled", "reconcile", "unverified", "verify_devices"]
