"""The memory of the GPUs that runners have, while a plan is made.

Made by `slots.plan`, read by the options. Units: bytes; GPUs of all runners are in one row, by the runner's name and
then by minor. Invariants: what the ledger has given and what was measured beyond the claims of its known holders are
off the size of a GPU; a claim of the round comes off, an evicted one comes back; `raw` may be below 0 (a GPU that is
overcommitted), what is free never is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from allocations.engine.slots.memory import NEVER
from allocations.engine.slots.records import KEPT_WARM, Slot, SlotState

if TYPE_CHECKING:
    from allocations.engine.slots.records import SlotInput, SlotModel
    from allocations.engine.topology import Topology


class Wiring(NamedTuple):
    """Runners whose GPUs are wired alike: `gpus` are [r, k] places in the row."""

    topology: Topology
    runners: NDArray[np.intp]
    gpus: NDArray[np.intp]


class Entries(NamedTuple):
    """[e] one for each GPU of each slot that may ever go: the slot, the GPU's place in the row, bytes."""

    slot: NDArray[np.int64]
    gpu: NDArray[np.int64]
    amount: NDArray[np.int64]

    def of(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Entries:
        """Some of them."""
        return Entries(self.slot[chosen], self.gpu[chosen], self.amount[chosen])

    def places(self) -> NDArray[np.intp]:
        """[e] how many entries of the same GPU come before each, where those of a GPU are side by side."""
        begins = np.flatnonzero(np.diff(self.gpu, prepend=-1))
        lengths = np.diff(np.append(begins, len(self.gpu)))
        return np.arange(len(self.gpu)) - np.repeat(begins, lengths)


class Room:
    """Free memory, and who could be evicted."""

    def __init__(self, inputs: SlotInput, models: Mapping[str, SlotModel], busy: frozenset[str]) -> None:
        snapshot = inputs.snapshot
        self.runners = sorted(
            (runner for runner in inputs.runners if runner.node in snapshot.node_index), key=lambda one: one.node
        )
        nodes = [snapshot.node_index[runner.node] for runner in self.runners]
        self.topologies = [snapshot.node_topology[node] for node in nodes]
        counts = [topology.size for topology in self.topologies]
        self.first = np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.intp)
        self._wirings = _wirings(self.topologies, self.first)
        starts = [int(snapshot.node_start[node]) for node in nodes]  # GPUs come first on a node
        rows = [row for start, count in zip(starts, counts, strict=True) for row in range(start, start + count)]
        self.runner_of = np.repeat(np.arange(len(counts)), counts)
        self.minor = snapshot.device_minor[rows].astype(np.int64)
        self.size = snapshot.memory_total[rows].astype(np.int64)
        open_nodes = [not snapshot.node_problem[node] for node in nodes]
        self.usable = snapshot.device_healthy[rows] & np.repeat(np.array(open_nodes, dtype=np.bool_), counts)
        self.slots = [slot for slot in inputs.slots if slot.holds]
        minors, first = self.minor.tolist(), self.first.tolist()
        self._place_of = [{minors[place]: place for place in range(*own)} for own in pairwise(first)]
        """By runner: minor → place in the row."""
        index = {runner.node: number for number, runner in enumerate(self.runners)}
        self.runner_of_slot = [index.get(slot.runner, -1) for slot in self.slots]
        self.held = [self._claims(slot, runner) for slot, runner in zip(self.slots, self.runner_of_slot, strict=True)]
        """By slot: (place in the row, bytes) of what it claims."""
        self.raw = self.size - snapshot.memory_used[rows] - self._beyond(inputs, snapshot.device_id[rows].tolist())
        self.memory_in_slots = np.zeros(len(self.runners), dtype=np.int64)
        self._slots_left = np.array([runner.slots_most or NEVER for runner in self.runners], dtype=np.int64)
        self.version = 0
        self.changed: list[int] = []
        """Runners, each time that memory or evictability of theirs changes."""
        self._take_stock(models, busy)

    def _claims(self, slot: Slot, runner: int) -> list[tuple[int, int]]:
        if runner < 0:
            return []
        places = self._place_of[runner]
        claimed = zip(slot.gpus, slot.memory, strict=True)
        return [(places[minor], amount) for minor, amount in claimed if minor in places]

    def _beyond(self, inputs: SlotInput, device_ids: Sequence[int]) -> NDArray[np.int64]:
        """What is measured on each GPU beyond the claims of its known holders."""
        claimed = [inputs.held_by_pods.get(one, 0) for one in device_ids]
        for held in self.held:
            for place, amount in held:
                claimed[place] += amount
        beyond = [0] * len(device_ids)
        for number, runner in enumerate(self.runners):
            for minor, measured in runner.measured.items():
                if minor in self._place_of[number]:
                    place = self._place_of[number][minor]
                    beyond[place] = max(min(measured, NEVER) - claimed[place], 0)
        return np.array(beyond, dtype=np.int64)

    def _take_stock(self, models: Mapping[str, SlotModel], busy: frozenset[str]) -> None:
        """Which slots may go, once `keep_warm` lets them."""
        self.seconds = [slot.idle_seconds for slot in self.slots]
        self.idle = np.array(self.seconds, dtype=np.int64)
        self.kept: dict[str, int] = {name: model.keep_warm for name, model in models.items() if model.keep_warm}
        self.warm: defaultdict[str, int] = defaultdict(int)
        for slot in self.slots:
            if not slot.lora and slot.state in KEPT_WARM:
                self.warm[slot.model] += 1
        self.idlers = [
            slot.state == SlotState.READY
            and slot.id not in busy
            and (model := models.get(slot.model)) is not None
            and slot.idle_seconds >= model.idle_seconds
            for slot in self.slots
        ]
        self.on_runner: list[list[int]] = [[] for _ in self.runners]
        for number, runner in enumerate(self.runner_of_slot):
            if runner >= 0:
                self._slots_left[runner] -= 1
                self.memory_in_slots[runner] += sum(amount for _, amount in self.held[number])
                if self.idlers[number]:
                    self.on_runner[runner].append(number)
        self.kept_on: defaultdict[str, set[int]] = defaultdict(set)
        """Runners that have idle slots of a model that is kept warm."""
        for runner, numbers in enumerate(self.on_runner):
            numbers.sort(key=lambda number: (-self.seconds[number], self.slots[number].id))
            for number in numbers:
                if self.slots[number].model in self.kept:
                    self.kept_on[self.slots[number].model].add(runner)
        self.widest = np.array(
            [max((len(self.held[number]) for number in own), default=1) for own in self.on_runner], dtype=np.int64
        )
        """[r] GPUs of the idle slot that is on most of them."""
        listed = [(number, *held) for own in self.on_runner for number in own for held in self.held[number]]
        entries = Entries(*np.array(listed, dtype=np.int64).reshape(-1, 3).T)
        self.by_age = entries.of(np.argsort(entries.gpu, kind="stable"))
        """By GPU, then idle longest first, then by id."""
        self.by_amount = entries.of(np.lexsort((-entries.amount, entries.gpu)))
        """By GPU, then the largest first."""
        self.evictable = np.array([bool(one) for one in self.idlers], dtype=np.bool_)
        for number, slot in enumerate(self.slots):
            if self.evictable[number] and not self.surplus_of(slot):
                self.evictable[number] = False

    @property
    def free(self) -> NDArray[np.int64]:
        """[g] bytes free."""
        free: NDArray[np.int64] = np.maximum(self.raw, 0)
        return free

    @property
    def open(self) -> NDArray[np.bool_]:
        """[r] whether the runner may have another slot before one of its own has gone."""
        is_open: NDArray[np.bool_] = self._slots_left > 0
        return is_open

    def surplus_of(self, slot: Slot) -> int:
        """How many such slots may go before `keep_warm` is touched."""
        kept = 0 if slot.lora else self.kept.get(slot.model, 0)
        return NEVER if not kept else max(self.warm[slot.model] - kept, 0)

    def limited(self, numbers: Sequence[int]) -> dict[str, int]:
        """Model → how many of its slots among these may go together, where that is fewer than there are."""
        counted: defaultdict[str, int] = defaultdict(int)
        for number in numbers:
            if not self.slots[number].lora and self.slots[number].model in self.kept:
                counted[self.slots[number].model] += 1
        surplus = {name: max(self.warm[name] - self.kept[name], 0) for name in counted}
        return {name: surplus[name] for name, count in counted.items() if surplus[name] < count}

    def evictable_on(self, runner: int) -> list[int]:
        """Slots that may go, idle longest first, then by id."""
        return [number for number in self.on_runner[runner] if self.evictable[number]]

    def take(self, runner: int, gpus: Sequence[int], claimed: Sequence[int], *, model: str, lora: str) -> None:
        """A slot is planned."""
        for gpu, amount in zip(gpus, claimed, strict=True):
            self.raw[gpu] -= amount
        self.memory_in_slots[runner] += sum(claimed)
        self._slots_left[runner] -= 1
        if not lora:
            self._count(model, 1)
        self._note(runner)

    def evict(self, number: int) -> None:
        """A slot goes: its claims come back."""
        slot, runner = self.slots[number], self.runner_of_slot[number]
        for gpu, amount in self.held[number]:
            self.raw[gpu] += amount
            self.memory_in_slots[runner] -= amount
        self._slots_left[runner] += 1
        self.evictable[number] = self.idlers[number] = False
        if not slot.lora:
            self._count(slot.model, -1)
        self._note(runner)

    def _count(self, model: str, more: int) -> None:
        """Slots of a model come and go: what is left of it may be let go, or has to be kept."""
        self.warm[model] += more
        if model not in self.kept:
            return
        may_go = self.warm[model] > self.kept[model]
        for runner in self.kept_on[model]:
            for number in self.on_runner[runner]:
                slot = self.slots[number]
                if slot.model == model and not slot.lora and self.idlers[number]:
                    self.evictable[number] = may_go
            self._note(runner)

    def _note(self, runner: int) -> None:
        self.version += 1
        self.changed.append(runner)

    def wirings(self, among: NDArray[np.bool_]) -> list[Wiring]:
        """The runners of [r] bool, by wiring."""
        found = []
        for topology, runners, gpus in self._wirings:
            chosen = among[runners]
            if chosen.any():
                found.append(Wiring(topology, runners[chosen], gpus[chosen]))
        return found


def _wirings(topologies: Sequence[Topology], first: NDArray[np.intp]) -> list[Wiring]:
    """All runners, by wiring."""
    alike: dict[Topology, list[int]] = {}
    for runner, topology in enumerate(topologies):
        alike.setdefault(topology, []).append(runner)
    return [
        Wiring(topology, np.array(some, dtype=np.intp), first[some][:, None] + np.arange(topology.size)[None, :])
        for topology, some in alike.items()
    ]
