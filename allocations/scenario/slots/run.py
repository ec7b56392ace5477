"""Plans the slots of a scenario, once its pods are served.

Called by `allocations.scenario.run`. Pure: GGUF files come by the caller's `Headers`, which only commands have.
Invariants: pods see what slots hold and no more; slots are planned on the fleet that pods leave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from allocations.engine.gguf import Estimate, GgufInvalid, Header, estimate
from allocations.engine.patch import take, with_freed
from allocations.engine.slots.memory import usable_counts
from allocations.engine.slots.plan import plan_slots
from allocations.engine.slots.records import Runtime, Slot, SlotInput, SlotModel
from allocations.scenario.rules import traits_of
from allocations.scenario.slots.result import KeepWarmResult, RequestResult, SlotResult, SlotsResult

if TYPE_CHECKING:
    from allocations.engine.amounts import Held
    from allocations.engine.slots.records import NewSlot, SlotDecision
    from allocations.engine.snapshot import Snapshot
    from allocations.scenario.slots.parse import GgufUse, Inference
    from nodes.inventory import NodeShape

Headers = Callable[[str], Header]
"""The header of a GGUF file by the name that a model gives. Raises GgufInvalid."""


def no_files(name: str) -> Header:
    """For REST and the page: whoever sends a scenario reads no files here."""
    raise GgufInvalid(f"{name} is a file, which only manage.py simulate reads", rule="file")


def with_slots(inference: Inference, snapshot: Snapshot) -> tuple[Snapshot, list[str]]:
    """The fleet with what slots hold, and problems: slots that hold more than is left."""
    problems = []
    taken: list[Held] = []
    left = (snapshot.memory_total - snapshot.memory_used).tolist()
    for slot in inference.slots:
        if not slot.holds:
            continue
        held = _held(snapshot, slot.runner, slot.gpus, slot.memory)
        rows = snapshot.index.rows_of([device for device, _, _ in held]).tolist()
        for row, (_, _, amount), minor in zip(rows, held, slot.gpus, strict=True):
            left[row] -= amount
            if left[row] < 0:
                problems.append(f"slot {slot.id}: holds more of {slot.runner}/{minor} than others leave of it")
        taken += held
    return take(snapshot, taken), problems


def planned(
    inference: Inference,
    nodes: Sequence[NodeShape],
    snapshot: Snapshot,
    holders: Mapping[str, tuple[Held, ...]],
    headers: Headers,
) -> tuple[SlotsResult, Snapshot]:
    """What becomes of the requests, and the fleet as it will be. `holders`: what running pods hold, by pod."""
    held_by_pods: defaultdict[int, int] = defaultdict(int)
    for held in holders.values():
        for device, _, memory in held:
            held_by_pods[device] += memory
    models, estimates = _estimated(inference, headers)
    runners = {runner.node for runner in inference.runners}
    answer = plan_slots(
        SlotInput(
            snapshot=snapshot,
            labels={node.name: traits_of(node).labels for node in nodes if node.name in runners},
            models=models,
            runners=inference.runners,
            slots=inference.slots,
            requests=inference.requests,
            held_by_pods=held_by_pods,
        )
    )
    return _told(answer, estimates), _afterwards(snapshot, inference.slots, answer.slots)


def _estimated(inference: Inference, headers: Headers) -> tuple[tuple[SlotModel, ...], dict[str, tuple[Estimate, ...]]]:
    """The models, with estimates where they need any, and these with their parts."""
    models, estimates = [], {}
    for model in inference.models:
        use = inference.ggufs.get(model.name)
        counts = [count for count in usable_counts(model) if count not in model.memory_per_gpu]
        if use is None or model.memory or model.runtime == Runtime.VLLM or not counts:
            models.append(model)
            continue
        try:
            found = _estimates(headers(use.path), use, model, counts)
        except GgufInvalid as error:
            models.append(msgspec.structs.replace(model, unknown=str(error)))
            continue
        estimates[model.name] = found
        by_count = {len(one.per_gpu): one.per_gpu for one in found}
        models.append(msgspec.structs.replace(model, estimates=by_count))
    return tuple(models), estimates


def _estimates(header: Header, use: GgufUse, model: SlotModel, counts: list[int]) -> tuple[Estimate, ...]:
    return tuple(
        estimate(header, context=use.context, parallel=model.parallel, kv=use.kv, gpus=count) for count in counts
    )


def _told(answer: SlotDecision, estimates: dict[str, tuple[Estimate, ...]]) -> SlotsResult:
    return SlotsResult(
        slots=tuple(
            SlotResult(one.id, one.model, one.lora, one.runner, one.gpus, one.memory, one.evicts)
            for one in answer.slots
        ),
        requests=tuple(RequestResult(one.id, one.slot, one.reason) for one in answer.requests),
        keep_warm=tuple(KeepWarmResult(one.model, one.missing, one.reason) for one in answer.unkept),
        estimates=estimates,
    )


def _afterwards(snapshot: Snapshot, slots: Sequence[Slot], new: Sequence[NewSlot]) -> Snapshot:
    """Evicted slots gone, new ones there."""
    gone = {name for one in new for name in one.evicts}
    freed = [held for slot in slots if slot.id in gone for held in _held(snapshot, slot.runner, slot.gpus, slot.memory)]
    taken = [held for one in new for held in _held(snapshot, one.runner, one.gpus, one.memory)]
    return take(with_freed(snapshot, freed, ()), taken)


def _held(snapshot: Snapshot, node: str, gpus: Sequence[int], memory: Sequence[int]) -> list[Held]:
    """The same as the ledger counts it: core 0."""
    row = snapshot.node_index[node]
    first = int(snapshot.node_start[row])  # GPUs come first on a node, by minor
    minors = snapshot.device_minor[first : first + snapshot.node_topology[row].size].tolist()
    ids = snapshot.device_id[first : first + len(minors)].tolist()
    of_minor = dict(zip(minors, ids, strict=True))
    return [(of_minor[minor], 0, amount) for minor, amount in zip(gpus, memory, strict=True)]
