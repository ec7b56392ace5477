"""Options 1 and 2: a slot on one GPU, with room or with evictions.

Called by `slots.plan`. Invariants: of the GPUs that fit, the best one in the order of docs/inference.md; evicted slots
are as few as any GPU needs, and none of them could stay.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.slots.candidates import Candidates, Choice, narrowed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocations.engine.slots.room import Entries, Room

SETS_MOST: Final = 2_000
"""Sets of slots of one GPU up to which all are compared. Beyond, the oldest that still suffice are taken one by one."""


def with_room(room: Room, candidates: Candidates) -> Choice | None:
    """Option 1: one GPU that has room."""
    needed = candidates.needs_one
    if needed is None:
        return None
    fits = np.flatnonzero((room.free >= needed) & room.open[room.runner_of])
    if not len(fits):
        return None
    gpu = _best(room, candidates, fits)
    return Choice(int(room.runner_of[gpu]), (gpu,), (int(needed[gpu]),))


def _best(room: Room, candidates: Candidates, gpus: NDArray[np.intp]) -> int:
    """Model on disk, most free, the runner with less memory in slots, its name, the minor."""
    runners = room.runner_of
    gpus = narrowed(gpus, candidates.on_disk[runners])
    gpus = narrowed(gpus, room.free)
    return int(narrowed(gpus, -room.memory_in_slots[runners])[0])


class _Plan(NamedTuple):
    """Slots to evict on a GPU, idle longest first."""

    idle: tuple[int, ...]
    evicts: tuple[int, ...]


def with_evictions(room: Room, candidates: Candidates) -> Choice | None:
    """Option 2: one GPU on which as few slots as possible go, those idle longest first."""
    needed = candidates.needs_one
    if needed is None:
        return None
    entries = room.by_age.of(room.evictable[room.by_age.slot] & candidates.gpus[room.by_age.gpu])
    found = _one_each(room, needed, entries) or _several_each(room, candidates, needed, entries)
    if not found:
        return None
    gpu = _best(room, candidates, np.array(sorted(found), dtype=np.intp))
    return Choice(int(room.runner_of[gpu]), (gpu,), (int(needed[gpu]),), found[gpu])


def _one_each(room: Room, needed: NDArray[np.int64], entries: Entries) -> dict[int, tuple[int, ...]]:
    """GPU → the one slot that goes, of the GPUs on which that one is idle longest."""
    enough = entries.of(room.raw[entries.gpu] + entries.amount >= needed[entries.gpu])
    if not len(enough.slot):
        return {}
    idle = room.idle[enough.slot]
    oldest = enough.of(idle == idle.max())
    found: dict[int, tuple[int, ...]] = {}
    for slot, gpu in zip(oldest.slot.tolist(), oldest.gpu.tolist(), strict=True):
        found.setdefault(gpu, (slot,))  # the first of equals has the lower id
    return found


def _several_each(
    room: Room, candidates: Candidates, needed: NDArray[np.int64], entries: Entries
) -> dict[int, tuple[int, ...]]:
    """GPU → the slots that go, as few as on any, of the GPUs on which they are idle longest."""
    largest = room.by_amount.of(room.evictable[room.by_amount.slot] & candidates.gpus[room.by_amount.gpu])
    fewest = fewest_evictions(room, needed, largest)
    entries = entries.of(fewest[entries.gpu] > 0)
    if not len(entries.slot):
        return {}
    most = int(entries.places().max()) + 1
    for count in range(max(int(fewest[entries.gpu].min()), 2), most + 1):
        found = _oldest(room, needed, entries.of(fewest[entries.gpu] <= count), count)
        if found:
            return found
    return {}


def fewest_evictions(room: Room, needed: NDArray[np.int64], largest: Entries) -> NDArray[np.int64]:
    """[g] slots that have to go at least, the largest first, where that suffices; 0 elsewhere."""
    fewest = np.zeros(len(needed), dtype=np.int64)
    if not len(largest.gpu):
        return fewest
    place = largest.places()
    sums = np.cumsum(largest.amount)
    before = (sums - largest.amount)[np.arange(len(place)) - place]
    enough = np.flatnonzero(room.raw[largest.gpu] + sums - before >= needed[largest.gpu])[::-1]
    fewest[largest.gpu[enough]] = place[enough] + 1  # the first of a GPU is written last
    return fewest


def _oldest(room: Room, needed: NDArray[np.int64], entries: Entries, count: int) -> dict[int, tuple[int, ...]]:
    """GPU → `count` slots, of the GPUs on which they are idle longest. GPUs are looked at in the order of what their
    oldest slots are, which nothing on them exceeds.
    """
    place = entries.places()
    firsts = np.flatnonzero(place == count - 1) - (count - 1)
    bounds = room.idle[entries.slot[firsts[:, None] + np.arange(count)]]
    begins = np.flatnonzero(place == 0)
    end_of = dict(zip(begins.tolist(), [*begins[1:].tolist(), len(place)], strict=True))
    found: dict[int, tuple[int, ...]] = {}
    best: tuple[int, ...] = ()
    for row in np.lexsort(-bounds.T[::-1]).tolist():
        if best and tuple(bounds[row].tolist()) < best:
            break
        first = int(firsts[row])
        gpu = int(entries.gpu[first])
        slots = entries.slot[first : end_of[first]].tolist()
        plan = oldest_on(room, gpu, slots, count, int(needed[gpu]) - int(room.raw[gpu]))
        if plan is None or plan.idle < best:
            continue
        if plan.idle > best:
            found, best = {}, plan.idle
        found[gpu] = plan.evicts
    return found


def oldest_on(room: Room, gpu: int, slots: Sequence[int], count: int, missing: int) -> _Plan | None:
    """The `count` slots of a GPU that give back what is missing and are idle longest."""
    amount = {slot: sum(size for place, size in room.held[slot] if place == gpu) for slot in slots}
    limits = room.limited(slots)
    if comb(len(slots), count) > SETS_MOST:
        chosen = _greedy(room, slots, count, missing, amount, limits)
        return _Plan(tuple(room.seconds[one] for one in chosen), chosen) if chosen else None
    best: _Plan | None = None
    ordered = sorted(slots, key=lambda one: (-room.seconds[one], room.slots[one].id))
    for some in combinations(ordered, count):
        if sum(amount[one] for one in some) < missing or not within(room, some, limits):
            continue
        idle = tuple(room.seconds[one] for one in some)
        if best is None or idle > best.idle:
            best = _Plan(idle, some)
    return best


def within(room: Room, slots: Sequence[int], limits: dict[str, int]) -> bool:
    """Whether so many slots of models that are kept warm may go together."""
    if not limits:
        return True
    counted = Counter(room.slots[one].model for one in slots if not room.slots[one].lora)
    return all(counted[name] <= most for name, most in limits.items())


def _greedy(
    room: Room, slots: Sequence[int], count: int, missing: int, amount: dict[int, int], limits: dict[str, int]
) -> tuple[int, ...]:
    """One by one the slot idle longest with which the largest others still suffice; empty where none do."""
    chosen: list[int] = []
    for slot in sorted(slots, key=lambda one: (-room.seconds[one], -amount[one], room.slots[one].id)):
        if len(chosen) == count:
            break
        rest = sorted((one for one in slots if one not in chosen and one != slot), key=lambda one: -amount[one])
        trial = [*chosen, slot]
        if not within(room, trial, limits):
            continue
        for one in rest:
            if len(trial) < count and within(room, [*trial, one], limits):
                trial.append(one)
        if len(trial) == count and sum(amount[one] for one in trial) >= missing:
            chosen.append(slot)
    return tuple(chosen) if len(chosen) == count else ()
