"""Slots and requests as the what-if page shows them: bounded, whatever the scenario.

Called by `allocations.scenario.digest`, shown by `templates/simulate/slots.html`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from allocations.scenario.slots.result import KeepWarmResult, RequestResult, SlotResult

if TYPE_CHECKING:
    from allocations.engine.gguf import Estimate

SLOTS_SHOWN: Final = 200
REQUESTS_SHOWN: Final = 500
KEPT_SHOWN: Final = 50
ESTIMATES_SHOWN: Final = 50
NAMES_SHOWN: Final = 32
"""GPUs, and slots to evict, of one slot."""
REASON_LONGEST: Final = 600


class GpuMemory(msgspec.Struct, frozen=True):
    """A GPU of a slot, by minor, and bytes of it."""

    minor: int
    memory: int


class SlotDigest(msgspec.Struct, frozen=True):
    """A slot to start. `more_…`: how many were left out."""

    id: str
    model: str
    lora: str
    runner: str
    gpus: tuple[GpuMemory, ...]
    more_gpus: int
    evicts: tuple[str, ...]
    more_evicts: int


class EstimateDigest(msgspec.Struct, frozen=True):
    """The estimate of a model on so many GPUs. `parts`: name and bytes."""

    model: str
    gpus: int
    total: int
    parts: tuple[tuple[str, int], ...]
    notes: tuple[str, ...]


class SlotsDigest(msgspec.Struct, frozen=True):
    """All of it. `served` and `waiting` count requests."""

    served: int
    waiting: int
    slots: tuple[SlotDigest, ...]
    more_slots: int
    requests: tuple[RequestResult, ...]
    more_requests: int
    keep_warm: tuple[KeepWarmResult, ...]
    more_keep_warm: int
    estimates: tuple[EstimateDigest, ...]
    more_estimates: int


def slots_digest(
    slots: Sequence[SlotResult],
    requests: Sequence[RequestResult],
    keep_warm: Sequence[KeepWarmResult],
    estimates: Mapping[str, Sequence[Estimate]],
) -> SlotsDigest:
    """What the page shows. Requests that wait come first."""
    served = sum(one.slot is not None for one in requests)
    waiting_first = sorted(requests, key=lambda one: one.slot is not None)[:REQUESTS_SHOWN]
    estimated = [(name, one) for name, found in estimates.items() for one in found]
    return SlotsDigest(
        served=served,
        waiting=len(requests) - served,
        slots=tuple(_slot(one) for one in slots[:SLOTS_SHOWN]),
        more_slots=max(0, len(slots) - SLOTS_SHOWN),
        requests=tuple(RequestResult(one.id, one.slot, _truncated(one.reason)) for one in waiting_first),
        more_requests=max(0, len(requests) - REQUESTS_SHOWN),
        keep_warm=tuple(
            KeepWarmResult(one.model, one.missing, _truncated(one.reason)) for one in keep_warm[:KEPT_SHOWN]
        ),
        more_keep_warm=max(0, len(keep_warm) - KEPT_SHOWN),
        estimates=tuple(_estimate(name, one) for name, one in estimated[:ESTIMATES_SHOWN]),
        more_estimates=max(0, len(estimated) - ESTIMATES_SHOWN),
    )


def _slot(one: SlotResult) -> SlotDigest:
    gpus = tuple(GpuMemory(*pair) for pair in zip(one.gpus, one.memory, strict=True))
    return SlotDigest(
        one.id,
        one.model,
        one.lora,
        one.runner,
        gpus[:NAMES_SHOWN],
        max(0, len(gpus) - NAMES_SHOWN),
        one.evicts[:NAMES_SHOWN],
        max(0, len(one.evicts) - NAMES_SHOWN),
    )


def _estimate(name: str, one: Estimate) -> EstimateDigest:
    parts = tuple((part.replace("_", " "), size) for part, size in msgspec.structs.asdict(one.parts).items() if size)
    return EstimateDigest(name, len(one.per_gpu), one.total, parts, one.notes)


def _truncated(text: str) -> str:
    return text if len(text) <= REASON_LONGEST else text[: REASON_LONGEST - 1] + "…"
