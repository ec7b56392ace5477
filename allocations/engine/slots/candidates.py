"""What one model may have: its runners, its GPUs, and what it needs of them.

Made once a model by `slots.plan`, read by the options and by reasons. Invariants: nothing here depends on what is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.slots.memory import NEVER, amounts, claims, usable_counts

if TYPE_CHECKING:
    from allocations.engine.slots.records import Runner, SlotInput, SlotModel
    from allocations.engine.slots.room import Room


class Choice(NamedTuple):
    """Where a slot goes: GPUs as places in the room's row, ascending, what it claims of each, and the slots that go."""

    runner: int
    gpus: tuple[int, ...]
    claimed: tuple[int, ...]
    evicts: tuple[int, ...] = ()


class Candidates:
    """A model in a room."""

    def __init__(self, inputs: SlotInput, model: SlotModel, room: Room) -> None:
        self.model = model
        able = (_starts(runner, model) for runner in room.runners)
        self.has_runtime = np.array(list(able), dtype=np.bool_)
        self.runners = self.has_runtime & _selected(inputs, model, room)
        """[r] that have the runtime and match the selector."""
        self.on_disk = np.array([model.name in runner.models for runner in room.runners], dtype=np.bool_)
        self.gpus = room.usable & self.runners[room.runner_of]
        """[g] healthy ones of these."""
        self.counts = usable_counts(model)
        one = amounts(model, 1) if 1 in self.counts else None
        """What is needed of one GPU."""
        self.needs_one = None if one is None else np.where(self.gpus, claims(model, one[0], room.size), NEVER)
        """[g] what the model claims of a single GPU, NEVER where it may not go; None: not by this model."""
        self.several = {
            count: needed for count in self.counts if count > 1 and (needed := amounts(model, count)) is not None
        }
        """Numbers of GPUs above 1 → bytes on each, the largest first."""

    def claimed(self, room: Room, gpus: tuple[int, ...], free: NDArray[np.int64]) -> tuple[int, ...]:
        """What is claimed of each of several GPUs: the largest amount goes to the GPU with the most free."""
        needed = self.several[len(gpus)]
        order = sorted(range(len(gpus)), key=lambda place: (-int(free[gpus[place]]), gpus[place]))
        found = [0] * len(gpus)
        for place, amount in zip(order, needed, strict=True):
            size = room.size[gpus[place] : gpus[place] + 1]
            found[place] = int(claims(self.model, amount, size)[0])
        return tuple(found)


def _starts(runner: Runner, model: SlotModel) -> bool:
    return model.runtime in runner.runtimes and (runner.only is None or model.name in runner.only)


def _selected(inputs: SlotInput, model: SlotModel, room: Room) -> NDArray[np.bool_]:
    """[r] whose node has the labels of the selector."""
    if not model.selector:
        return np.ones(len(room.runners), dtype=np.bool_)
    labels = (inputs.labels.get(runner.node, {}) for runner in room.runners)
    wanted = model.selector.items()
    return np.array([all(of.get(key) == value for key, value in wanted) for of in labels], dtype=np.bool_)


def narrowed(places: NDArray[np.intp], values: NDArray[np.integer] | NDArray[np.bool_]) -> NDArray[np.intp]:
    """The places whose value is the largest. `values`: of all places."""
    if len(places) < 2:
        return places
    own = values[places]
    largest: NDArray[np.intp] = places[own == own.max()]
    return largest
