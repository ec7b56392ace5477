"""The plan: requests to slots, then a slot for each need, then what is to be kept warm.

Called by `allocations.scenario.slots`. Invariants: those of the package; a need is planned on what earlier needs of the
round left, evicted memory included.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from allocations.engine.budget import Budget
from allocations.engine.slots import reasons, single
from allocations.engine.slots.candidates import Candidates
from allocations.engine.slots.records import NewSlot, Served, SlotDecision, Unkept
from allocations.engine.slots.room import Room
from allocations.engine.slots.serving import serve
from allocations.engine.slots.several import Several
from allocations.engine.slots.several_evicting import SeveralEvicting

if TYPE_CHECKING:
    from allocations.engine.slots.candidates import Choice
    from allocations.engine.slots.records import SlotInput, SlotModel
    from allocations.engine.slots.serving import Key, Serving

MODELS_REMEMBERED: Final = 64
"""Models whose candidates are kept at once, which bounds memory on large fleets."""


def plan_slots(inputs: SlotInput) -> SlotDecision:
    """The decision. Names of models, slots and requests are unique."""
    models = {model.name: model for model in inputs.models}
    serving = serve(inputs.requests, inputs.slots, models)
    planner = _Planner(inputs, models, serving)
    made: dict[Key, list[str]] = {}
    why: dict[Key, str] = {}
    for need in serving.needs:
        key = (need.model, need.lora)
        slot = planner.plan(models[need.model], need.lora)
        if isinstance(slot, str):
            why[key] = slot
        else:
            made.setdefault(key, []).append(slot.id)
    for key, places in serving.waiting.items():
        _give(serving, models.get(key[0]), places, made.get(key, []))
        if key[0] not in models:
            why[key] = reasons.unknown_model(key[0])
    unkept = [found for model in inputs.models if (found := _kept_warm(planner, model)) is not None]
    served = tuple(
        Served(request.id, slot, "" if slot else why[request.model, request.lora])
        for place, request in enumerate(inputs.requests)
        for slot in (serving.slot_of.get(place),)
    )
    return SlotDecision(tuple(planner.made), served, tuple(unkept))


def _give(serving: Serving, model: SlotModel | None, places: list[int], slots: list[str]) -> None:
    """New slots to the requests that wait, first come first, `parallel` each."""
    for number, slot in enumerate(slots):
        each = model.parallel if model is not None else 1
        for place in places[number * each : (number + 1) * each]:
            serving.slot_of[place] = slot


def _kept_warm(planner: _Planner, model: SlotModel) -> Unkept | None:
    """Plan what `keep_warm` lacks. Where one slot has no room, no further one has."""
    while (missing := model.keep_warm - planner.room.warm[model.name]) > 0:
        slot = planner.plan(model, "")
        if isinstance(slot, str):
            return Unkept(model.name, missing, slot)
    return None


class _Options(NamedTuple):
    """What is known of a model while the round lasts."""

    candidates: Candidates
    several: Several
    evicting: SeveralEvicting


class _Planner:
    """Plans slots one after the other in one room."""

    def __init__(self, inputs: SlotInput, models: Mapping[str, SlotModel], serving: Serving) -> None:
        self.room = Room(inputs, models, serving.busy)
        self.made: list[NewSlot] = []
        self._inputs = inputs
        self._budget = Budget()
        self._taken = {slot.id for slot in inputs.slots}
        self._number = 0
        self._options: OrderedDict[str, _Options] = OrderedDict()
        self._refused: dict[str, tuple[int, str]] = {}
        """Model → the room's version at which it had no place, and why."""

    def plan(self, model: SlotModel, lora: str) -> NewSlot | str:
        """A slot, or why there is none."""
        refused = self._refused.get(model.name)
        if refused is not None and refused[0] == self.room.version:
            return refused[1]
        options = self._options_of(model)
        choice = (
            single.with_room(self.room, options.candidates)
            or single.with_evictions(self.room, options.candidates)
            or options.several.with_room()
            or options.evicting.choice()
        )
        if choice is None:
            why = reasons.unmet(self.room, options.candidates)
            self._refused[model.name] = (self.room.version, why)
            return why
        return self._made(model, lora, choice)

    def _options_of(self, model: SlotModel) -> _Options:
        known = self._options.get(model.name)
        if known is None:
            candidates = Candidates(self._inputs, model, self.room)
            known = _Options(
                candidates,
                Several(self.room, candidates, self._budget),
                SeveralEvicting(self.room, candidates, self._budget),
            )
            self._options[model.name] = known
            if len(self._options) > MODELS_REMEMBERED:
                self._options.popitem(last=False)
        self._options.move_to_end(model.name)
        return known

    def _made(self, model: SlotModel, lora: str, choice: Choice) -> NewSlot:
        room = self.room
        for number in choice.evicts:
            room.evict(number)
        room.take(choice.runner, choice.gpus, choice.claimed, model=model.name, lora=lora)
        slot = NewSlot(
            id=self._new_id(),
            model=model.name,
            lora=lora,
            runner=room.runners[choice.runner].node,
            gpus=tuple(int(room.minor[gpu]) for gpu in choice.gpus),
            memory=choice.claimed,
            evicts=tuple(room.slots[number].id for number in choice.evicts),
        )
        self.made.append(slot)
        return slot

    def _new_id(self) -> str:
        """`new-1` and so on, without those that slots have."""
        while True:
            self._number += 1
            name = f"new-{self._number}"
            if name not in self._taken:
                return name
