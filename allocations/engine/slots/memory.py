"""What a model takes of each GPU. Called by the options and by reasons. Invariants: exact whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from allocations.engine.slots.records import Runtime

if TYPE_CHECKING:
    from allocations.engine.slots.records import SlotModel

NEVER: Final = 1 << 62
"""More than any GPU has free."""
AMOUNT_MOST: Final = 1 << 55
"""Larger amounts are counted as this much, which no GPU has: a hundred times it is a number of 64 bits."""


def amounts(model: SlotModel, gpus: int) -> tuple[int, ...] | None:
    """Bytes on each of so many GPUs, the largest first; None where they are not known."""
    given = model.memory_per_gpu.get(gpus)
    if given is None and model.memory:
        given = (-(-model.memory // gpus),) * gpus
    if given is None and model.runtime != Runtime.VLLM:
        given = model.estimates.get(gpus)
    return None if not given else tuple(sorted(given, reverse=True))


def claims(model: SlotModel, amount: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """What an amount claims of GPUs of these sizes, NEVER where it is more than one has.

    vLLM is started with `--gpu-memory-utilization`, the amount's share of the GPU rounded up to 0.01, and takes that.
    """
    amount = min(amount, AMOUNT_MOST)
    if model.runtime != Runtime.VLLM:
        return np.where(sizes >= amount, np.int64(amount), np.int64(NEVER))
    known = np.maximum(sizes, 1)
    percent = -(-amount * 100 // known)
    return np.where(percent <= 100, -(-known * percent // 100), np.int64(NEVER))


def claim(model: SlotModel, amount: int, size: int) -> int:
    """The same of one GPU."""
    return int(claims(model, amount, np.array([size], dtype=np.int64))[0])


def usable_counts(model: SlotModel) -> list[int]:
    """Numbers of GPUs that divide the heads, ascending."""
    return [count for count in sorted(set(model.gpu_counts)) if not (model.heads and model.heads % count)]
