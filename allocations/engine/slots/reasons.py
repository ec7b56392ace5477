"""Why a slot cannot be planned, in one sentence.

Called by `slots.plan` once no option is left. Amounts are Kubernetes quantities: what is needed is rounded up to whole
MiB and what is free down, so that a sentence never says that 15Gi do not fit in 15Gi.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from allocations.engine.slots.memory import NEVER, amounts, claim
from allocations.engine.slots.records import Runtime
from kube.quantities import LARGEST, format_bytes

if TYPE_CHECKING:
    from allocations.engine.slots.candidates import Candidates
    from allocations.engine.slots.records import SlotModel
    from allocations.engine.slots.room import Room

_MIB: Final = 1 << 20


def unknown_model(name: str) -> str:
    """No model has the name."""
    return f"model {name} is not known"


def unmet(room: Room, candidates: Candidates) -> str:
    """Why the model goes nowhere."""
    model = candidates.model
    if not room.runners:
        return "there are no runners"
    if not candidates.has_runtime.any():
        return f"no runner has the runtime {model.runtime}"
    if not candidates.runners.any():
        return f"no runner with the runtime {model.runtime} has the labels {_labels(model.selector)}"
    if not candidates.gpus.any():
        return "no GPU of these runners is healthy"
    if candidates.counts and not any(amounts(model, count) for count in candidates.counts):
        return _unknown_memory(model)
    if not (candidates.gpus & room.open[room.runner_of]).any():
        return "each of these runners has as many slots as it may have, and none of them may be evicted now"
    told = [*_one(room, candidates), *_several(room, candidates), *_heads(room, candidates)]
    if not room.open[candidates.runners].all():
        told.append("other runners have as many slots as they may have")
    return "; ".join(told)


def _unknown_memory(model: SlotModel) -> str:
    if model.unknown:
        return f"the memory of model {model.name} is not known: {model.unknown}"
    if model.runtime == Runtime.VLLM:
        return f"the memory of model {model.name} is not known: vllm needs it stated"
    return f"the memory of model {model.name} is not known: it has neither memory nor gguf"


def _one(room: Room, candidates: Candidates) -> list[str]:
    """Of one GPU: `no GPU has 45Gi free; best n1/0 with 30Gi`."""
    if candidates.needs_one is None:
        return []
    places = np.flatnonzero(candidates.gpus & room.open[room.runner_of])
    best = int(places[room.free[places].argmax()])
    needed = (amounts(candidates.model, 1) or (0,))[0]
    free = int(room.free[best])
    if needed <= free:  # vLLM takes a part of a GPU, which is more
        needed = claim(candidates.model, needed, int(room.size[best]))
    return [f"no GPU has {_up(needed)} free; best {_named(room, best)} with {_down(free)}"]


def _several(room: Room, candidates: Candidates) -> list[str]:
    """Of several GPUs, where one alone never does: `no 2 GPUs of a runner have 45Gi free; best n1 with 30Gi`."""
    if candidates.needs_one is not None and (candidates.needs_one < NEVER).any():
        return []
    told = []
    sizes = np.array([topology.size for topology in room.topologies])
    most = int(sizes[candidates.runners & room.open].max())
    for count, needed in candidates.several.items():
        if count > most:
            continue
        free = np.where(candidates.gpus, room.free, -1)
        able = np.flatnonzero(candidates.runners & room.open & (sizes >= count))
        least = [int(np.sort(free[room.first[one] : room.first[one + 1]])[-count]) for one in able]
        best = int(np.argmax(least))
        what = f"no {count} GPUs of one runner have {_up(needed[0])} free"
        told.append(f"{what}; best {room.runners[able[best]].node} with {_down(max(least[best], 0))}")
    if not told and candidates.needs_one is None and candidates.several:
        told.append(f"no runner has {min(candidates.several)} GPUs")
    return told


def _heads(room: Room, candidates: Candidates) -> list[str]:
    """`28 heads do not divide by 8`, of numbers of GPUs that some runner has."""
    model = candidates.model
    most = max(topology.size for topology in room.topologies)
    barred = sorted({count for count in model.gpu_counts if count not in candidates.counts})
    told = [count for count in barred if count <= most] or ([] if candidates.counts else barred)
    return [f"{model.heads} heads do not divide by {' or '.join(map(str, told))}"] if told else []


def _labels(selector: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(selector.items()))


def _named(room: Room, gpu: int) -> str:
    return f"{room.runners[int(room.runner_of[gpu])].node}/{int(room.minor[gpu])}"


def _up(size: int) -> str:
    return format_bytes(size if size < _MIB else min(-(-size // _MIB) * _MIB, LARGEST))


def _down(size: int) -> str:
    return format_bytes(size if size < _MIB else size // _MIB * _MIB)
