"""The only writer of capacity. Verbs: hold, reserve, bind (`bound`), release, adopt."""

from allocations.ledger.adopt import adopt
from allocations.ledger.hold import hold
from allocations.ledger.holder import Holder, pod_holder
from allocations.ledger.moves import begin_release, bound, drop_hold, finish_release, renew, reserve, retake
from allocations.ledger.own import Live, Own, read_live, read_own

__all__ = [
    "Holder",
    "Live",
    "Own",
    "adopt",
    "begin_release",
    "bound",
    "drop_hold",
    "finish_release",
    "hold",
    "pod_holder",
    "read_live",
    "read_own",
    "renew",
    "reserve",
    "retake",
]
