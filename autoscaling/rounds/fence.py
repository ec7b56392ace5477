"""The fence of growth: of two workers only the one that began last writes a plan."""

from __future__ import annotations

from allocations.errors import MovedOn
from autoscaling.models import GrowthFence
from storage import fencing


def begin() -> int:
    """Begin, which ends every other worker's rounds; the number to write under."""
    return fencing.begin(GrowthFence)


def pass_fence(number: int) -> None:
    """Check, and keep others out for this transaction. Raises MovedOn."""
    if not fencing.is_newest(GrowthFence, number):
        raise MovedOn("another worker plans growth now")
