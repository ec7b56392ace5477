"""The fence of the slots' loop: of two workers only the one that began last plans."""

from __future__ import annotations

from allocations.errors import MovedOn
from inference.models import SlotFence
from storage import fencing


def begin() -> int:
    """Begin, which ends every other worker's rounds; the number to plan under."""
    return fencing.begin(SlotFence)


def pass_fence(number: int) -> None:
    """Check, and keep others out for this transaction. Raises MovedOn."""
    if not fencing.is_newest(SlotFence, number):
        raise MovedOn("another worker plans slots now")
