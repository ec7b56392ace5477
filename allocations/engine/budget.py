"""Limits the searches of one decision, whatever the wiring and the number of GPUs.

Made by `engine.plan`, one for ranking nodes and one for the choice on the best, spent by `engine.large_nodes`. A step
is a subset of GPUs that is scored, or a GPU that is tried as the next of a set. Invariants: the steps of a search
follow from its arguments alone, also where its answer comes from the cache, so the same snapshot and request give the
same Decision.
"""

from __future__ import annotations

from typing import Final

STEPS_A_SEARCH: Final = 2_000_000
"""For the best set on one node: some 50 ms. Nodes of up to 125 GPUs never need more."""
STEPS_A_DECISION: Final = 8_000_000
"""For all searches that rank nodes, and again for those on the node chosen; then a search tries one pool alone."""


class Budget:
    """The steps left to searches; below 0 where the last one took more, as it may by one pool."""

    __slots__ = ("left",)

    def __init__(self, steps: int = STEPS_A_DECISION) -> None:
        self.left = steps

    @property
    def of_a_search(self) -> int:
        """The steps that the next search may take."""
        return min(STEPS_A_SEARCH, self.left)

    def spend(self, steps: int) -> None:
        """Count the steps of a search."""
        self.left -= steps
