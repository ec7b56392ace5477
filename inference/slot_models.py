"""A model's row as the plan reads it. Called by the loop's input and by pages."""

from __future__ import annotations

import msgspec

from allocations.engine.slots.records import GPU_COUNTS, Runtime, SlotModel
from inference.gguf_headers import estimates_of
from inference.models import Model


def slot_model(model: Model) -> SlotModel:
    """The same model; with estimates where its memory is not given."""
    runtime = Runtime(model.runtime)
    found = SlotModel(
        name=model.name,
        runtime=runtime,
        memory=model.memory or 0,
        memory_per_gpu={int(count): tuple(amounts) for count, amounts in model.memory_per_gpu.items()},
        parallel=model.parallel,
        heads=model.heads,
        gpu_counts=tuple(model.gpu_counts) or GPU_COUNTS,
        idle_seconds=model.idle_seconds,
        keep_warm=model.keep_warm,
        selector=model.selector,
    )
    if model.memory or runtime == Runtime.VLLM:
        return found
    estimates, unknown = estimates_of(model)
    return msgspec.structs.replace(found, estimates=estimates, unknown=unknown)
