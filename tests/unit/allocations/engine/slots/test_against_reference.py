"""The plan beside a plan by brute force, on small fleets."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allocations.engine.patch import take
from allocations.engine.slots.plan import plan_slots
from allocations.engine.slots.records import (
    Runner,
    Runtime,
    Slot,
    SlotInput,
    SlotModel,
    SlotRequest,
    SlotState,
)
from tests.builders import fleet, halves, node, pairs
from tests.exploring import examples
from tests.slots_reference import reference

NODES = ("a", "b", "c")
MODELS = ("m", "n", "o")


@st.composite
def models(draw, name):
    runtime = draw(st.sampled_from([Runtime.OLLAMA, Runtime.OLLAMA, Runtime.VLLM]))
    own = draw(st.sampled_from(["memory", "memory", "by number", "estimates"]))
    amount = st.integers(1, 14)
    return SlotModel(
        name=name,
        runtime=runtime,
        memory=draw(amount) if own == "memory" else 0,
        memory_per_gpu={2: (draw(amount), draw(amount))} if own == "by number" else {},
        estimates={1: (draw(amount),), 2: (draw(amount), draw(amount))} if own == "estimates" else {},
        parallel=draw(st.integers(1, 3)),
        heads=draw(st.sampled_from([0, 0, 6, 7])),
        gpu_counts=draw(st.sampled_from([(1, 2, 4, 8), (2, 3), (1,), (4, 2)])),
        idle_seconds=draw(st.sampled_from([0, 5])),
        keep_warm=draw(st.sampled_from([0, 0, 1, 2])),
        selector=draw(st.sampled_from([{}, {}, {}, {"zone": "x"}])),
    )


@st.composite
def questions(draw):
    named = MODELS[: draw(st.integers(1, 3))]
    made = [draw(models(name)) for name in named]
    rows, labels, runners, slots = [], {}, [], []
    number = 0
    for name in NODES[: draw(st.integers(1, 3))]:
        gpus = draw(st.integers(1, 4))
        size = draw(st.sampled_from([10, 10, 7]))
        used = {minor: (0, draw(st.integers(0, size))) for minor in range(gpus) if draw(st.integers(0, 3)) == 0}
        sick = [minor for minor in range(gpus) if draw(st.integers(0, 9)) == 0]
        links = draw(st.sampled_from([(), pairs(gpus), halves(gpus)]))
        rows.append(node(name, gpus=gpus, memory=size, used=used, sick=sick, links=links))
        labels[name] = draw(st.sampled_from([{}, {"zone": "x"}]))
        on_disk = draw(st.sampled_from([frozenset(), frozenset(named)]))
        runtimes = draw(st.sampled_from([frozenset({"ollama", "vllm"}), frozenset({"ollama"})]))
        measured = {minor: draw(st.integers(0, size)) for minor in range(gpus) if draw(st.integers(0, 4)) == 0}
        runners.append(Runner(node=name, runtimes=runtimes, models=on_disk, measured=measured))
        for _ in range(draw(st.integers(0, 4))):
            number += 1
            several = draw(st.integers(1, min(gpus, 2)))
            minors = sorted(draw(st.permutations(range(gpus)))[:several])
            slots.append(
                Slot(
                    id=f"s{number}",
                    model=draw(st.sampled_from([*named, "gone"])),
                    runner=name,
                    gpus=tuple(minors),
                    memory=tuple(draw(st.integers(1, 5)) for _ in minors),
                    lora=draw(st.sampled_from(["", "", "", "l"])),
                    state=draw(st.sampled_from([*SlotState, *[SlotState.READY] * 8])),
                    active=draw(st.sampled_from([0, 0, 0, 1])),
                    idle_seconds=draw(st.integers(0, 9)),
                )
            )
    requests = tuple(
        SlotRequest(
            f"r{place}",
            draw(st.sampled_from([*named, *named, "none"])),
            draw(st.sampled_from(["", "", "l"])),
            draw(st.integers(0, 2)),
        )
        for place in range(draw(st.integers(0, 6)))
    )
    return asked(fleet(*rows), labels, made, runners, slots, requests)


def asked(snapshot, labels, made, runners, slots, requests):
    """The question, with the slots' claims in the ledger."""
    ids = dict(zip(snapshot.device_uuid, snapshot.device_id.tolist(), strict=True))
    held = [
        (ids[f"GPU-{slot.runner}-{minor}"], 0, amount)
        for slot in slots
        if slot.state != SlotState.STOPPED
        for minor, amount in zip(slot.gpus, slot.memory, strict=True)
    ]
    by_pods = dict(zip(snapshot.device_id.tolist(), snapshot.memory_used.tolist(), strict=True))
    return SlotInput(
        snapshot=take(snapshot, held),
        labels=labels,
        models=tuple(made),
        runners=tuple(runners),
        slots=tuple(slots),
        requests=requests,
        held_by_pods=by_pods,
    )


@st.composite
def crowded(draw):
    """Fleets full of idle slots, for models that have to have some of them gone."""
    named = MODELS[: draw(st.integers(1, 2))]
    made = []
    for name in named:
        runtime = draw(st.sampled_from([Runtime.OLLAMA, Runtime.VLLM]))
        uneven = {2: (draw(st.integers(4, 9)), draw(st.integers(1, 9)))} if draw(st.booleans()) else {}
        made.append(
            SlotModel(
                name=name,
                runtime=runtime,
                memory=draw(st.integers(4, 20)),
                memory_per_gpu=uneven,
                parallel=1,
                gpu_counts=draw(st.sampled_from([(1, 2), (1,), (2,), (2, 3, 4), (3,)])),
                idle_seconds=draw(st.sampled_from([0, 2])),
                keep_warm=draw(st.sampled_from([0, 0, 1, 2])),
            )
        )
    rows, runners = [], []
    slots: list[Any] = []
    for name in NODES[: draw(st.integers(1, 2))]:
        gpus = draw(st.integers(1, 4))
        rows.append(node(name, gpus=gpus, memory=10, links=draw(st.sampled_from([(), pairs(gpus), halves(gpus)]))))
        on_disk = draw(st.sampled_from([frozenset(), frozenset(named[:1])]))
        runners.append(Runner(node=name, runtimes=frozenset({"ollama", "vllm"}), models=on_disk))
        left = dict.fromkeys(range(gpus), 10)
        for _ in range(draw(st.integers(1, 7))):
            minors = sorted(draw(st.permutations(range(gpus)))[: draw(st.sampled_from([1, 1, 1, 2, 3]))])
            minors = [minor for minor in minors if left[minor]]
            amounts = [draw(st.integers(1, min(left[minor], 7))) for minor in minors]
            if not minors:
                continue
            left |= {minor: left[minor] - amount for minor, amount in zip(minors, amounts, strict=True)}
            slots.append(
                Slot(
                    id=f"s{len(slots)}",
                    model=draw(st.sampled_from(named)),
                    runner=name,
                    gpus=tuple(minors),
                    memory=tuple(amounts),
                    lora=draw(st.sampled_from(["other", "other", ""])),
                    idle_seconds=draw(st.integers(0, 6)),
                )
            )
    asks = [SlotRequest(f"r{place}", draw(st.sampled_from(named)), "new") for place in range(draw(st.integers(1, 3)))]
    return asked(fleet(*rows), {}, made, runners, slots, tuple(asks))


@examples(600)
@given(st.one_of(questions(), crowded()))
def test_the_plan_is_the_best_there_is(inputs):
    """SLOT-3, SLOT-4, SLOT-5, SLOT-6, SLOT-7, SLOT-8 slots, GPUs, amounts, evictions and requests, whole rounds."""
    answer = plan_slots(inputs)
    slots, slot_of, waits, lacking = reference(inputs)
    assert [(*(getattr(one, name) for name in one.__struct_fields__),) for one in answer.slots] == slots
    assert {one.id: one.slot for one in answer.requests if one.slot} == slot_of
    assert [one.id for one in answer.requests if one.slot is None] == waits
    assert {one.model: one.missing for one in answer.unkept} == lacking
    assert all(bool(one.reason) != bool(one.slot) for one in answer.requests)
    assert all(one.reason for one in answer.unkept)
