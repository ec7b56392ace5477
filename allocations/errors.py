"""What can go wrong between a decision and the ledger.

    access.errors.Conflict
    ├── LostRace        another request took a device first
    ├── MovedOn         the allocation is no longer in the state that the caller saw
    │   ├── Overtaken      another attempt has taken the reservation up, and finishes it
    │   └── NewerDecision  somebody else has decided about the queues meanwhile
    └── PodHasOne       the pod has another live allocation

All are temporary: reading again and deciding again may succeed.
"""

from access.errors import Conflict


class LostRace(Conflict):
    """A conditional update of a device changed no row. `device_ids` are those refused."""

    def __init__(self, device_ids: tuple[int, ...]) -> None:
        super().__init__("other pods took the devices first")
        self.device_ids = device_ids


class MovedOn(Conflict):
    """The allocation left the expected state meanwhile."""


class Overtaken(MovedOn):
    """Another attempt has taken the reservation up."""

    def __init__(self) -> None:
        super().__init__("another attempt has taken the reservation up")


class NewerDecision(MovedOn):
    """A decision about the queues is no longer the latest."""

    def __init__(self) -> None:
        super().__init__("a newer decision about the queues was made meanwhile")


class PodHasOne(Conflict):
    """The pod already has a live allocation."""
