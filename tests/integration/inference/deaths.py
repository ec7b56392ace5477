"""Deaths of the worker of the slots' loop."""

from __future__ import annotations

import pytest

from allocations.scheduling import slot_memory
from inference.rounds import memory, planning, tidying
from tests.deaths import Deaths


class SlotDeaths(Deaths):
    """Steps are also what the loop itself commits."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch)
        for module, name in ((planning, "write_slot"), (memory, "note_bound"), (tidying, "_move")):
            patch.setattr(module, name, self._verb(getattr(module, name)))
        hold = slot_memory._Take._hold
        patch.setattr(slot_memory._Take, "_hold", self._verb(hold))
