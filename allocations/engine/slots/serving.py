"""Which slot serves which request, and how many slots are missing.

Called by `slots.plan`, and by `inference.dispatch` for requests that arrive. Invariants: a slot never has more than
`parallel` requests of ours; the needs of one model and LoRA are as few as serve all of its requests that no slot has
room for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from allocations.engine.slots.records import ON_THE_WAY, Slot, SlotState

if TYPE_CHECKING:
    from allocations.engine.slots.records import SlotModel, SlotRequest

Key = tuple[str, str]
"""Model and LoRA."""


class Need(NamedTuple):
    """A slot that is missing, and the place of the first request that it would serve."""

    model: str
    lora: str
    priority: int
    place: int


class Serving(NamedTuple):
    """`slot_of`: place of a request → slot; `waiting`: by model and LoRA the places of requests that no slot has room
    for, first come first; `busy`: slots with requests.
    """

    slot_of: dict[int, str]
    waiting: dict[Key, list[int]]
    needs: list[Need]
    busy: frozenset[str]


def serve(requests: Sequence[SlotRequest], all_slots: Sequence[Slot], models: Mapping[str, SlotModel]) -> Serving:
    """Requests to slots, by priority and then in the order given, that of their arrival."""
    order = sorted(range(len(requests)), key=lambda place: (-requests[place].priority, place))
    by_key: defaultdict[Key, list[int]] = defaultdict(list)
    for place in order:
        by_key[requests[place].model, requests[place].lora].append(place)
    slots: defaultdict[Key, list[Slot]] = defaultdict(list)
    for slot in all_slots:
        slots[slot.model, slot.lora].append(slot)
    slot_of: dict[int, str] = {}
    waiting: dict[Key, list[int]] = {}
    busy = {slot.id for slot in all_slots if slot.active}
    needs: list[Need] = []
    for key, places in by_key.items():
        model = models.get(key[0])
        left = places
        if model is not None:
            ready = [slot for slot in slots[key] if slot.state == SlotState.READY]
            coming = [slot for slot in slots[key] if slot.state in ON_THE_WAY]
            for some in (ready, coming):
                left = _fill(some, model, left, slot_of)
            needs += _needs(key, model, requests, left)
        if left:
            waiting[key] = left
    busy.update(slot_of.values())
    needs.sort(key=lambda need: (-need.priority, need.place))
    return Serving(slot_of, waiting, needs, frozenset(busy))


def _fill(slots: list[Slot], model: SlotModel, places: list[int], slot_of: dict[int, str]) -> list[int]:
    """The places that are left over. The busiest slot that has room comes first, until it has none: so others can fall
    idle. Then the one used last, then by id.
    """
    at = 0
    for slot in sorted(slots, key=lambda slot: (-slot.active, slot.idle_seconds, slot.id)):
        if slot.runtime and slot.runtime != model.runtime:
            continue
        taken = places[at : at + max((slot.parallel or model.parallel) - slot.active, 0)]
        slot_of.update(dict.fromkeys(taken, slot.id))
        at += len(taken)
    return places[at:]


def _needs(key: Key, model: SlotModel, requests: Sequence[SlotRequest], left: list[int]) -> list[Need]:
    """One need for `parallel` requests."""
    firsts = left[:: model.parallel]
    return [Need(*key, requests[place].priority, place) for place in firsts]
