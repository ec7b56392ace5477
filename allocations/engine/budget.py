"""How many steps the searches of one decision may take, so that no wiring and no number of GPUs makes a decision take long.

Made by `engine.plan`, one for ranking nodes and one for the choice on the best, spent by `engine.large_nodes`. A step is a subset of GPUs that is scored, or a GPU that is weighed
as the next of a set. Kept true: the steps that a search takes are a matter of its question alone, whether or not its answer was kept from
an earlier time, so the same picture and request give the same Decision.
"""

from __future__ import annotations

from typing import Final

STEPS_A_QUESTION: Final = 2_000_000
"""Of one search for the best set on one node: some 50 ms. Nodes of up to 125 GPUs never need more."""
STEPS_A_DECISION: Final = 8_000_000
"""Of all the searches that rank the nodes of a decision, and again of those on the node chosen; one past it looks at the most promising GPU alone."""


class Budget:
    """The steps that are left, and those that were taken."""

    __slots__ = ("left", "taken")

    def __init__(self, most: int = STEPS_A_DECISION) -> None:
        self.left = most
        self.taken = 0

    @property
    def of_a_question(self) -> int:
        """How many the next search may take."""
        return min(STEPS_A_QUESTION, self.left)

    def spend(self, steps: int) -> None:
        """Note what a search took; the last one may take a little more than there was."""
        self.taken += steps
        self.left = max(0, self.left - steps)
