"""A plan of slots by brute force, from the sentences of docs/inference.md: for small fleets, and as slow as that is.

Tries every runner, every set of GPUs and every set of slots to evict, and takes the best by the order that the page
states. Shares nothing with the product but the records of a question and its pair scores.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import chain, combinations
from typing import Any


def reference(inputs):
    """(slots as tuples, request id → slot, ids of requests that wait, model → slots that keepWarm lacks)."""
    return _Reference(inputs).answer()


class _Reference:
    def __init__(self, inputs):
        self.inputs = inputs
        self.models = {model.name: model for model in inputs.models}
        self.runners = {runner.node: runner for runner in inputs.runners}
        self.active = {slot.id: slot.active for slot in inputs.slots}
        self.gone = set()
        self.new = []  # (id, model, lora, runner, gpus, memory, evicts)
        self.size, self.base = {}, {}
        snapshot = inputs.snapshot
        for runner in inputs.runners:
            node = snapshot.node_index[runner.node]
            rows = snapshot.rows_of_node(node)
            for row in range(rows.start, rows.stop):
                if snapshot.types[snapshot.device_type[row]] != "gpu" or not snapshot.device_healthy[row]:
                    continue
                gpu = (runner.node, int(snapshot.device_minor[row]))
                known = inputs.held_by_pods.get(int(snapshot.device_id[row]), 0)
                known += sum(self.claim_on(slot, gpu) for slot in inputs.slots if slot.state != "stopped")
                beyond = max(runner.measured.get(gpu[1], 0) - known, 0)
                self.size[gpu] = int(snapshot.memory_total[row])
                self.base[gpu] = self.size[gpu] - int(snapshot.memory_used[row]) - beyond

    def claim_on(self, slot, gpu):
        return sum(amount for minor, amount in zip(slot.gpus, slot.memory, strict=True) if (slot.runner, minor) == gpu)

    def free(self, gpu, evicted=()):
        """Free memory of a GPU, once these slots too have gone."""
        gone = self.gone | set(evicted)
        back = sum(self.claim_on(slot, gpu) for slot in self.inputs.slots if slot.id in gone)
        taken = sum(
            amount
            for _, _, _, runner, gpus, memory, _ in self.new
            for minor, amount in zip(gpus, memory, strict=True)
            if (runner, minor) == gpu
        )
        return max(0, self.base[gpu] + back - taken)

    def in_slots(self, runner):
        old = (slot for slot in self.inputs.slots if slot.state != "stopped" and slot.id not in self.gone)
        return sum(sum(slot.memory) for slot in old if slot.runner == runner) + sum(
            sum(one[5]) for one in self.new if one[3] == runner
        )

    def warm(self, name):
        old = sum(
            slot.model == name
            and not slot.lora
            and slot.state in ("planned", "starting", "ready")
            and slot.id not in self.gone
            for slot in self.inputs.slots
        )
        return old + sum(one[1] == name and not one[2] for one in self.new)

    # which slot serves

    def answer(self):
        requests = list(enumerate(self.inputs.requests))
        requests.sort(key=lambda one: (-one[1].priority, one[0]))
        slot_of: dict[Any, Any] = {}
        waiting: list[Any] = []
        for states in (("ready",), ("planned", "starting")):
            waiting = []
            for place, request in requests:
                if request.id in slot_of:
                    continue
                slot = self.serving(request, states)
                if slot is None:
                    waiting.append((place, request))
                else:
                    slot_of[request.id] = slot
                    self.active[slot] += 1
        needs: dict[Any, Any] = {}
        for place, request in waiting:
            if request.model in self.models:
                needs.setdefault((request.model, request.lora), []).append((place, request))
        planned = []
        for key, some in needs.items():
            each = self.models[key[0]].parallel
            for number in range(math.ceil(len(some) / each)):
                place, first = some[number * each]
                planned.append((-first.priority, place, key))
        made: dict[Any, Any] = {}
        for _, _, key in sorted(planned):
            if (slot := self.plan(*key)) is not None:
                made.setdefault(key, []).append(slot)
        for key, some in needs.items():
            each = self.models[key[0]].parallel
            for number, (_, request) in enumerate(some):
                slots = made.get(key, [])
                if number // each < len(slots):
                    slot_of[request.id] = slots[number // each]
        lacking = {}
        for model in self.inputs.models:
            while self.warm(model.name) < model.keep_warm:
                if self.plan(model.name, "") is None:
                    lacking[model.name] = model.keep_warm - self.warm(model.name)
                    break
        waits = [one.id for one in self.inputs.requests if one.id not in slot_of]
        return self.new, slot_of, waits, lacking

    def serving(self, request, states):
        model = self.models.get(request.model)
        able = [
            slot
            for slot in self.inputs.slots
            if model is not None
            and slot.state in states
            and (slot.model, slot.lora) == (request.model, request.lora)
            and self.active[slot.id] < model.parallel
        ]
        best = min(able, key=lambda slot: (-self.active[slot.id], slot.idle_seconds, slot.id), default=None)
        return best and best.id

    # where a slot goes

    def amounts(self, model, count):
        if count in model.memory_per_gpu:
            return sorted(model.memory_per_gpu[count], reverse=True)
        if model.memory:
            return [math.ceil(Fraction(model.memory, count))] * count
        if model.runtime != "vllm" and count in model.estimates:
            return sorted(model.estimates[count], reverse=True)
        return None

    def claim(self, model, amount, size):
        if model.runtime != "vllm":
            return amount
        share = Fraction(math.ceil(Fraction(amount, size) * 100), 100)
        return math.ceil(size * share) if share <= 1 else None

    def given(self, model, runner, gpus, amounts, evicted):
        """Minor → claim, the largest amount on the GPU with the most free; None where it does not fit."""
        order = sorted(gpus, key=lambda minor: (-self.free((runner, minor), evicted), minor))
        found = {}
        for minor, amount in zip(order, amounts, strict=True):
            claim = self.claim(model, amount, self.size[runner, minor])
            if claim is None or claim > self.free((runner, minor), evicted):
                return None
            found[minor] = claim
        return found

    def evictable(self, runner):
        return [
            slot
            for slot in self.inputs.slots
            if slot.runner == runner
            and slot.state == "ready"
            and self.active[slot.id] == 0
            and slot.id not in self.gone
            and slot.model in self.models
            and slot.idle_seconds >= self.models[slot.model].idle_seconds
        ]

    def may_go(self, some):
        """Whether these leave every model what it keeps."""
        for name in {slot.model for slot in some if not slot.lora}:
            going = sum(slot.model == name and not slot.lora for slot in some)
            if self.models[name].keep_warm > self.warm(name) - going:
                return False
        return True

    def plan(self, name, lora):
        model = self.models[name]
        labels = self.inputs.labels
        runners = [
            node
            for node, runner in self.runners.items()
            if model.runtime in runner.runtimes
            and all(labels.get(node, {}).get(key) == value for key, value in model.selector.items())
        ]
        counts = [count for count in sorted(model.gpu_counts) if not model.heads or model.heads % count == 0]
        ones, more = [count for count in counts if count == 1], [count for count in counts if count > 1]
        for sizes, evicting in ((ones, False), (ones, True), (more, False), (more, True)):
            options = [
                option
                for runner in runners
                for count in sizes
                for option in self.options(model, runner, count, evicting=evicting)
            ]
            if options:
                _, runner, given, evicted = min(options, key=lambda option: option[0])
                made = f"new-{len(self.new) + 1}"
                gpus = tuple(sorted(given))
                oldest = sorted(evicted, key=lambda slot: (-slot.idle_seconds, slot.id))
                evicts = tuple(slot.id for slot in oldest)
                self.gone.update(evicts)
                self.new.append((made, name, lora, runner, gpus, tuple(given[gpu] for gpu in gpus), evicts))
                return made
        return None

    def options(self, model, runner, count, *, evicting):
        """(rank, runner, claims, slots to evict) of every way."""
        amounts = self.amounts(model, count)
        if amounts is None:
            return
        own = [minor for node, minor in self.size if node == runner]
        slots = self.evictable(runner) if evicting else []
        sets = chain.from_iterable(combinations(slots, number) for number in range(1, len(slots) + 1))
        disk = model.name not in self.runners[runner].models
        for some in sets if evicting else [()]:
            if not self.may_go(some):
                continue
            evicted = [slot.id for slot in some]
            for gpus in combinations(sorted(own), count):
                given = self.given(model, runner, gpus, amounts, evicted)
                if given is None:
                    continue
                free = sum(self.free((runner, gpu)) for gpu in gpus)
                score = self.score(runner, gpus)
                place = (disk, -score, -free, self.in_slots(runner), runner, gpus)
                idle = sorted(-slot.idle_seconds for slot in some)
                rank = (len(some), idle, count, place) if evicting else (count, place)
                yield rank, runner, given, some

    def score(self, runner, gpus):
        snapshot = self.inputs.snapshot
        node = snapshot.node_index[runner]
        rows = snapshot.rows_of_node(node)
        minors = [int(minor) for minor in snapshot.device_minor[rows]]
        scores = snapshot.node_topology[node].pair_score
        return sum(int(scores[minors.index(one), minors.index(other)]) for one, other in combinations(gpus, 2))
