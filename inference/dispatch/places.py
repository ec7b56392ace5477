"""Ready slots as the rules of serving see them, and which request gets which.

Pure; called by `inference.dispatch.rounds`, which writes the result down. Invariants: a request never gets a slot that
it avoids; the rules are those of `allocations.engine.slots.serving`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from allocations.engine.slots import records
from allocations.engine.slots.serving import serve
from inference.choices import ModelRuntime
from inference.dispatch.order import Waiting
from inference.dispatch.records import Place


class OpenSlot(msgspec.Struct, kw_only=True):
    """A ready slot. `active` is counted up as places are given."""

    id: str
    model: str
    lora: str
    runtime: str
    source: str
    parallel: int
    active: int
    used_at: datetime
    address: str

    @property
    def free(self) -> int:
        """Requests that it has room for."""
        return max(self.parallel - self.active, 0)

    @property
    def place(self) -> Place:
        """Where its requests are sent."""
        return Place(
            slot=self.id,
            address=self.address,
            model_name=runtimes_name(self.runtime, self.source, self.model, self.lora),
        )


def runtimes_name(runtime: str, source: str, model: str, lora: str) -> str:
    """What a runtime calls the model: the LoRA, the name by which Ollama pulled it, or the name that it was given."""
    return lora or (source if runtime == ModelRuntime.OLLAMA and source else model)


def give(
    ordered: Sequence[Waiting], slots: Iterable[OpenSlot], model: records.SlotModel, *, now: datetime
) -> dict[UUID, OpenSlot]:
    """Request → its slot, of one model and LoRA. `ordered`: as they are served; those refused somewhere come first."""
    by_id = {slot.id: slot for slot in slots}
    given: dict[UUID, OpenSlot] = {}

    def serve_some(requests: list[Waiting], some: list[OpenSlot]) -> None:
        asked = [records.SlotRequest(str(one.id), one.model, one.lora, one.priority) for one in requests]
        serving = serve(asked, [_record(slot, now) for slot in some], {model.name: model})
        for place, slot_id in serving.slot_of.items():
            by_id[slot_id].active += 1
            given[requests[place].id] = by_id[slot_id]

    for one in ordered:
        if one.avoids:
            serve_some([one], [slot for slot in by_id.values() if slot.id not in one.avoids])
    serve_some([one for one in ordered if not one.avoids], list(by_id.values()))
    return given


def _record(slot: OpenSlot, now: datetime) -> records.Slot:
    """Idle time in microseconds, so that of two slots of one second the one used last serves."""
    return records.Slot(
        id=slot.id,
        model=slot.model,
        lora=slot.lora,
        runner="",
        gpus=(),
        memory=(),
        active=slot.active,
        idle_seconds=int((now - slot.used_at).total_seconds() * 1e6),
        runtime=slot.runtime,
        parallel=slot.parallel,
    )
