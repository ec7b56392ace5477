"""What holds of every plan, on fleets too large for brute force."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allocations.engine.slots.plan import plan_slots
from allocations.engine.slots.records import Runner, Runtime, Slot, SlotModel, SlotRequest, SlotState
from tests.builders import fleet, full_mesh, node, pairs
from tests.exploring import examples
from tests.unit.allocations.engine.slots.test_against_reference import asked

SIZE = 100


@st.composite
def large(draw):
    """Up to six runners of up to 20 GPUs, and as many slots as they have."""
    chance = draw(st.randoms(use_true_random=False))
    names = [f"m{number}" for number in range(draw(st.integers(1, 5)))]
    made = [
        SlotModel(
            name=name,
            runtime=chance.choice([Runtime.OLLAMA, Runtime.VLLM]),
            memory=chance.randint(1, 3 * SIZE),
            memory_per_gpu={4: tuple(chance.randint(1, SIZE) for _ in range(4))} if chance.random() < 0.3 else {},
            parallel=chance.randint(1, 4),
            idle_seconds=chance.choice([0, 50]),
            keep_warm=chance.choice([0, 0, 1, 3]),
        )
        for name in names
    ]
    rows, runners, slots = [], [], []
    for number in range(draw(st.integers(1, 6))):
        name, gpus = f"n{number}", chance.choice([1, 4, 8, 8, 16, 20])
        links = chance.choice([(), pairs(gpus), full_mesh(gpus)])
        left = {minor: chance.randint(SIZE // 2, SIZE) for minor in range(gpus)}
        used = {minor: (0, SIZE - free) for minor, free in left.items()}
        rows.append(node(name, gpus=gpus, memory=SIZE, links=links, used=used))
        measured = {minor: chance.randint(0, SIZE) for minor in range(gpus) if chance.random() < 0.1}
        runners.append(
            Runner(node=name, runtimes=frozenset({"ollama", "vllm"}), models=frozenset(names[:1]), measured=measured)
        )
        for place in range(chance.randint(0, 2 * gpus)):
            minors = sorted(chance.sample(range(gpus), chance.choice([1, 1, 1, min(2, gpus)])))
            amounts = tuple(chance.randint(1, 40) for _ in minors)
            if any(left[minor] < amount for minor, amount in zip(minors, amounts, strict=True)):
                continue
            for minor, amount in zip(minors, amounts, strict=True):
                left[minor] -= amount
            slots.append(
                Slot(
                    id=f"{name}-{place}",
                    model=chance.choice(names),
                    runner=name,
                    gpus=tuple(minors),
                    memory=amounts,
                    lora=chance.choice(["", "x"]),
                    state=chance.choice([*SlotState, *[SlotState.READY] * 9]),
                    active=chance.choice([0, 0, 0, 1]),
                    idle_seconds=chance.randint(0, 100),
                )
            )
    requests = tuple(
        SlotRequest(f"r{place}", chance.choice(names), chance.choice(["", "x", "y"]), chance.randint(0, 2))
        for place in range(draw(st.integers(0, 30)))
    )
    return asked(fleet(*rows), {}, made, runners, slots, requests)


@examples(150)
@given(large())
def test_every_plan(inputs):
    """SLOT-1, SLOT-3, SLOT-5, SLOT-7, SLOT-8 never over memory, nothing evicted in vain, one slot a need, reasons."""
    answer = plan_slots(inputs)
    models = {model.name: model for model in inputs.models}
    slots = {slot.id: slot for slot in inputs.slots}

    # never over memory, whatever is measured
    snapshot, free, size = inputs.snapshot, {}, {}
    claimed: Counter[tuple[str, int]] = Counter()
    for slot in inputs.slots:
        claimed.update({(slot.runner, minor): amount for minor, amount in zip(slot.gpus, slot.memory, strict=True)})
    for runner in inputs.runners:
        rows = snapshot.rows_of_node(snapshot.node_index[runner.node])
        for row in range(rows.start, rows.stop):
            gpu = (runner.node, int(snapshot.device_minor[row]))
            claimed[gpu] += inputs.held_by_pods.get(int(snapshot.device_id[row]), 0)
            beyond = max(runner.measured.get(gpu[1], 0) - claimed[gpu], 0)
            free[gpu], size[gpu] = int(snapshot.memory_total[row] - snapshot.memory_used[row]) - beyond, SIZE
    gone = set()
    for one in answer.slots:
        before = dict(free)
        for name in one.evicts:
            slot = slots[name]
            model = models[slot.model]
            assert name not in gone
            assert slot.state == SlotState.READY
            assert slot.active == 0
            assert slot.idle_seconds >= model.idle_seconds
            gone.add(name)
            for minor, amount in zip(slot.gpus, slot.memory, strict=True):
                free[slot.runner, minor] += amount
        for minor, amount in zip(one.gpus, one.memory, strict=True):
            free[one.runner, minor] -= amount
            assert free[one.runner, minor] >= 0
        # nothing in vain: each of those that go is on a GPU of the slot's, and had to
        assert all(slots[name].runner == one.runner for name in one.evicts)
        assert all(set(slots[name].gpus) & set(one.gpus) for name in one.evicts)
        if one.evicts:
            claims = zip(one.gpus, one.memory, strict=True)
            assert any(before[one.runner, minor] < amount for minor, amount in claims)

    # what is kept warm is never evicted
    for model in inputs.models:
        warm = [
            slot
            for slot in inputs.slots
            if slot.model == model.name and not slot.lora and slot.state in ("planned", "starting", "ready")
        ]
        went = sum(slot.id in gone for slot in warm)
        came = sum(one.model == model.name and not one.lora for one in answer.slots)
        assert went == 0 or len(warm) - went + came >= model.keep_warm

    # as many slots as requests need, and no more; each request has a slot or a reason
    at_once: dict[Any, Any] = {}
    waiting: dict[Any, Any] = {}
    for request, served in zip(inputs.requests, answer.requests, strict=True):
        assert bool(served.slot) != bool(served.reason)
        key = (request.model, request.lora)
        if served.slot:
            at_once[served.slot] = at_once.get(served.slot, 0) + 1
            assert served.slot not in gone
        else:
            waiting[key] = waiting.get(key, 0) + 1
    for name, count in at_once.items():
        old = slots.get(name)
        model = models[old.model if old else next(one.model for one in answer.slots if one.id == name)]
        assert count + (old.active if old else 0) <= model.parallel
    for key, model in ((key, models[key[0]]) for key in {(one.model, one.lora) for one in answer.slots}):
        new = [one for one in answer.slots if (one.model, one.lora) == key]
        idle = sum(one.id not in at_once for one in new)
        partly = sum(0 < at_once.get(one.id, 0) < model.parallel for one in new)
        assert idle <= (model.keep_warm if not key[1] else 0)
        assert partly <= 1
        assert not (waiting.get(key) and (idle or partly))

    assert plan_slots(inputs) == answer
