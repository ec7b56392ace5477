"""The only writer of capacity. Verbs: hold, reserve, bind (`bound`), release, adopt; regrant, where a kubelet chose; recount, for what was written past them."""

from allocations.ledger.adopt import adopt
from allocations.ledger.binding import bound, bound_many, current, reserve, reserve_held, take_up
from allocations.ledger.hold import hold
from allocations.ledger.holder import Holder, pod_holder
from allocations.ledger.keeping import Kept, Taker
from allocations.ledger.moves import begin_release, drop_hold, finish_release, renew
from allocations.ledger.own import Live, Own, read_live, read_own
from allocations.ledger.recount import recount
from allocations.ledger.regrant import Regrant, regrant

__all__ = [
    "Holder",
    "Kept",
    "Live",
    "Own",
    "Regrant",
    "Taker",
    "adopt",
    "begin_release",
    "bound",
    "bound_many",
    "current",
    "drop_hold",
    "finish_release",
    "hold",
    "pod_holder",
    "read_live",
    "read_own",
    "recount",
    "regrant",
    "renew",
    "reserve",
    "reserve_held",
    "take_up",
]
