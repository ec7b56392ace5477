"""States of an allocation. Who moves each on, and after how long: docs/architecture.md."""

from django.db.models import TextChoices


class State(TextChoices):
    """held → reserved → bound → releasing → released; failed ends an attempt that was never bound."""

    HELD = "held", "held"
    RESERVED = "reserved", "reserved"
    BOUND = "bound", "bound"
    RELEASING = "releasing", "releasing"
    RELEASED = "released", "released"
    FAILED = "failed", "failed"


LIVE = (State.HELD, State.RESERVED, State.BOUND, State.RELEASING)
"""States whose devices count as used."""

EDGES: dict[State, tuple[State, ...]] = {
    State.HELD: (State.RESERVED, State.RELEASED, State.FAILED),
    State.RESERVED: (State.BOUND, State.RELEASING),
    State.BOUND: (State.RELEASING,),
    State.RELEASING: (State.RELEASED, State.FAILED),
    State.RELEASED: (),
    State.FAILED: (),
}
"""Every transition."""
STARTS = (State.HELD, State.BOUND)
"""States in which rows are inserted: of a decision, and of a pod that runs already."""


class GroupState(TextChoices):
    """wanted → starting → ready → releasing → gone; unprotected while the reservation pod of sharers is lost."""

    WANTED = "wanted", "wanted"
    STARTING = "starting", "starting"
    READY = "ready", "ready"
    UNPROTECTED = "unprotected", "unprotected"
    RELEASING = "releasing", "releasing"
    GONE = "gone", "gone"


GROUP_LIVE = tuple(state for state in GroupState if state is not GroupState.GONE)
"""States of groups whose devices count as used."""
GROUP_EDGES: dict[GroupState, tuple[GroupState, ...]] = {
    GroupState.WANTED: (GroupState.STARTING, GroupState.RELEASING),
    GroupState.STARTING: (GroupState.READY, GroupState.RELEASING),
    GroupState.READY: (GroupState.UNPROTECTED, GroupState.RELEASING),
    GroupState.UNPROTECTED: (GroupState.READY, GroupState.RELEASING),
    GroupState.RELEASING: (GroupState.GONE,),
    GroupState.GONE: (),
}
"""Every transition of a group."""
GROUP_STARTS = (GroupState.WANTED, GroupState.READY)
"""States in which rows are inserted: for a bind, and for a reservation pod that runs already."""
