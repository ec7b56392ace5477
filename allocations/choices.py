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
