"""The only writer of capacity.

Verbs: hold, reserve, bind (`bound`), resize, release, adopt; reassign, where a kubelet chose; recount, for what was
written past them. In come decisions and states, out go rows. Called by `scheduling`, `reconcile` and the extender.
Invariants:
- Each verb is one transaction of conditional updates, with its audit event; two movers never both win.
- Use stays within the device, a whole device has one holder, and a pod one live allocation: constraints hold all three.
- The database's clock decides every expiry.
"""

from allocations.ledger.adopt import adopt
from allocations.ledger.binding import all_bound, bound, current, note_ended, noted_ends, reserve, reserve_held, take_up
from allocations.ledger.hold import hold
from allocations.ledger.holder import Holder, Terms, pod_holder
from allocations.ledger.reads import (
    Live,
    PodAllocation,
    pod_allocation_of,
    pod_query,
    read_live,
    read_pod_allocation,
    read_pod_live,
)
from allocations.ledger.reassign import Reassignment, reassign_devices
from allocations.ledger.recount import recount
from allocations.ledger.release import (
    begin_release,
    drop_hold,
    finish_release,
    note_evicted,
    note_leaving,
    renew,
)
from allocations.ledger.resize import resize

__all__ = [
    "Holder",
    "Live",
    "PodAllocation",
    "Reassignment",
    "Terms",
    "adopt",
    "all_bound",
    "begin_release",
    "bound",
    "current",
    "drop_hold",
    "finish_release",
    "hold",
    "note_ended",
    "note_evicted",
    "note_leaving",
    "noted_ends",
    "pod_allocation_of",
    "pod_holder",
    "pod_query",
    "read_live",
    "read_pod_allocation",
    "read_pod_live",
    "reassign_devices",
    "recount",
    "renew",
    "reserve",
    "reserve_held",
    "resize",
    "take_up",
]
