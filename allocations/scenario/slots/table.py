"""Slots and requests as rows of text. Called by `allocations.scenario.result`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from allocations.engine.reasons import memory_text

if TYPE_CHECKING:
    from allocations.engine.gguf import Estimate
    from allocations.scenario.slots.result import KeepWarmResult, RequestResult, SlotResult

Rows = list[tuple[str, ...]]


def slot_rows(
    slots: Sequence[SlotResult],
    requests: Sequence[RequestResult],
    keep_warm: Sequence[KeepWarmResult],
    estimates: Mapping[str, Sequence[Estimate]],
) -> Iterator[Rows]:
    """Tables with a line of headings each, those that have rows."""
    tables: tuple[Rows, ...] = (
        [
            ("SLOT", "MODEL", "LORA", "RUNNER", "GPUS", "MEMORY", "EVICTS"),
            *(
                (
                    *(one.id, one.model, one.lora or "-", one.runner),
                    *(" ".join(map(str, one.gpus)), " + ".join(map(memory_text, one.memory))),
                    " ".join(one.evicts) or "-",
                )
                for one in slots
            ),
        ],
        [("REQUEST", "SLOT", "WHY"), *((one.id, one.slot or "-", one.reason) for one in requests)],
        [("KEEP WARM", "MISSING", "WHY"), *((one.model, str(one.missing), one.reason) for one in keep_warm)],
        [
            ("ESTIMATED", "GPUS", "MEMORY", "ON EACH"),
            *(
                (
                    *(name, str(len(one.per_gpu)), memory_text(one.total)),
                    " + ".join(map(memory_text, one.per_gpu)),
                )
                for name, found in estimates.items()
                for one in found
            ),
        ],
    )
    return (rows for rows in tables if len(rows) > 1)
