"""Resizes shares in place: decide → ledger, with the audit event → the pod's annotations.

Called by REST and pages (`allocations.services`), by the task that follows edited claims (`claims`), and by
reconciling (`results`). A Lease names its sharers without amounts, so a resize does not touch it. Invariants: each step
may be repeated; a process that dies after the ledger's step leaves a row whose request says `resized`, by which a
comparison writes the annotations.
"""

from allocations.scheduling.resizing.claims import resize_claims
from allocations.scheduling.resizing.results import write_result
from allocations.scheduling.resizing.share import resize_share

__all__ = ["resize_claims", "resize_share", "write_result"]
