"""What a scenario answers of slots and requests, as JSON has it. Memory in bytes."""

from __future__ import annotations

import msgspec

from allocations.engine.gguf import Estimate


class SlotResult(msgspec.Struct, frozen=True):
    """A slot to start. `gpus`: minors; `memory`: on each; `evicts`: slots that have to be gone first."""

    id: str
    model: str
    lora: str
    runner: str
    gpus: tuple[int, ...]
    memory: tuple[int, ...]
    evicts: tuple[str, ...]


class RequestResult(msgspec.Struct, frozen=True):
    """A request: its slot, or why it waits."""

    id: str
    slot: str | None
    reason: str


class KeepWarmResult(msgspec.Struct, frozen=True):
    """Slots that `keepWarm` lacks, and why."""

    model: str
    missing: int
    reason: str


class SlotsResult(msgspec.Struct, frozen=True):
    """All of it. `estimates`: by model, one for each number of GPUs."""

    slots: tuple[SlotResult, ...] = ()
    requests: tuple[RequestResult, ...] = ()
    keep_warm: tuple[KeepWarmResult, ...] = ()
    estimates: dict[str, tuple[Estimate, ...]] = {}
