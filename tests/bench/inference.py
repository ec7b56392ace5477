"""Plans of slots, and headers of GGUF files, without a server or a database.

Called by `run`. The floor of a plan is adding up what slots claim of each GPU and sorting the requests, which any plan
has to; that of a header is reading its bytes.
"""

from __future__ import annotations

import gc
import io
import random
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np

from allocations.engine.gguf import KvType, estimate, read_header
from allocations.engine.patch import take
from allocations.engine.slots.plan import plan_slots
from allocations.engine.slots.records import Runner, Runtime, Slot, SlotInput, SlotModel, SlotRequest
from tests.bench.figures import Aim, Figure, Report, timed_figure
from tests.bench.fleets import eights
from tests.bench.in_process import timed
from tests.bench.wire import Rounds
from tests.builders import GI
from tests.gguf_files import header, vocabulary

RUNNERS = 200
SLOTS = 2_000
NEEDS = 100
TOKENS = 150_000


def measure_inference(report: Report, *, rounds: int) -> None:
    """100 needs on 200 runners × 8 with 2,000 slots, of all kinds and of the hardest; a header of 150,000 tokens."""
    cases = (
        ("slots, 100 needs, 200 runners × 8, 2,000 slots", fleet_of_slots()),
        ("slots, the same, each need evicts from several GPUs", fleet_of_slots(only=("several, evicting",))),
        ("slots, the same, no need has a place", fleet_of_slots(only=("nowhere",))),
    )
    for name, asked in cases:
        measured = Rounds()
        for _ in range(rounds):
            measured.floor.append([timed(lambda: _floor(asked)) for _ in range(3)])  # noqa: B023 - called at once
            measured.product.append([timed(lambda: plan_slots(asked))])  # noqa: B023 - called at once
        figure = timed_figure(name, measured)
        report.add(replace(figure, aims=[Aim("median ≤ 50 ms", figure.value, 50)]))
    _measure_header(report, rounds=rounds)


def _measure_header(report: Report, *, rounds: int) -> None:
    raw = large_header()
    measured = Rounds()
    for _ in range(rounds):
        measured.floor.append([timed(lambda: bytes(memoryview(raw))) for _ in range(3)])
        measured.product.append([timed(lambda: _estimated(raw))])
    figure = timed_figure("GGUF header, 150,000 tokens and merges", measured)
    report.add(replace(figure, aims=[Aim("median ≤ 100 ms", figure.value, 100)]))
    gc.collect()
    tracemalloc.start()
    _estimated(raw)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    value = most / 2**20
    report.add(Figure("GGUF header: memory", "", "MiB", value, aims=[Aim("≤ 20 MiB", value, 20)]))


def _estimated(raw: bytes) -> int:
    return estimate(read_header(io.BytesIO(raw)), context=8_192, parallel=4, kv=KvType.F16).total


def large_header() -> bytes:
    """A model of 64 blocks with a large vocabulary, its merges and its scores."""
    tensors = [(f"blk.{block}.part{part}.weight", (4_096, 4_096), 12) for block in range(64) for part in range(11)]
    return header(
        {
            "general.architecture": "qwen3",
            "qwen3.block_count": 64,
            "qwen3.embedding_length": 4_096,
            "qwen3.attention.head_count": 32,
            "tokenizer.ggml.tokens": vocabulary(TOKENS),
            "tokenizer.ggml.merges": [f"to ken{number}" for number in range(TOKENS)],
            "tokenizer.ggml.token_type": [1] * TOKENS,
            "tokenizer.chat_template": "{{ messages }}" * 1_000,
        },
        [*tensors, ("output.weight", (4_096, TOKENS), 14)],
    )


def _floor(asked: SlotInput) -> int:
    """Claims by GPU, and requests in their order."""
    claimed = np.zeros((len(asked.runners), 8), dtype=np.int64)
    place = {runner.node: number for number, runner in enumerate(asked.runners)}
    for slot in asked.slots:
        row = claimed[place[slot.runner]]
        for minor, amount in zip(slot.gpus, slot.memory, strict=True):
            row[minor] += amount
    ordered = sorted(enumerate(asked.requests), key=lambda one: (-one[1].priority, one[0]))
    return int(claimed.max()) + len(ordered)


KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "one, with room": ({"memory": 12 * GI}, 4),
    "one, evicting": ({"memory": 60 * GI, "gpu_counts": (1,)}, 4),
    "one, evicting several": ({"memory": 79 * GI, "gpu_counts": (1,)}, 2),
    "several, with room": ({"memory": 64 * GI, "gpu_counts": (2, 4)}, 3),
    "several, evicting": ({"memory": 280 * GI, "gpu_counts": (4,)}, 3),
    "vllm": ({"memory": 70 * GI, "runtime": Runtime.VLLM}, 2),
    "nowhere": ({"memory": 100 * GI, "gpu_counts": (1,)}, 2),
}
"""What models of a kind are like, and how many there are."""


def fleet_of_slots(*, only: tuple[str, ...] = tuple(KINDS)) -> SlotInput:
    """Slots of 10 to 40 GiB on every GPU, most of them idle, and requests that each need a slot of their own."""
    chance = random.Random(17)
    snapshot = eights(RUNNERS)
    models = [
        SlotModel(name=f"{kind} {number}", parallel=1, **{"runtime": Runtime.OLLAMA, **more})
        for kind, (more, count) in KINDS.items()
        for number in range(count)
    ]
    asked_for = [model for model in models if model.name.rpartition(" ")[0] in only]
    names = [model.name for model in models]
    runners = tuple(
        Runner(
            node=name,
            runtimes=frozenset({"ollama", "vllm"}),
            models=frozenset(chance.sample(names, 8)),
            measured={minor: chance.randrange(0, 50) * GI for minor in range(8)},
        )
        for name in snapshot.node_names
    )
    slots = tuple(
        Slot(
            id=f"s{number}",
            model=names[number % len(names)],
            lora="old",
            runner=snapshot.node_names[number % RUNNERS],
            gpus=(number // RUNNERS % 8,),
            memory=(chance.randrange(10, 40) * GI,),
            active=chance.choice((0, 0, 0, 1)),
            idle_seconds=chance.randrange(0, 3_000),
        )
        for number in range(SLOTS)
    )
    ids = dict(zip(snapshot.device_uuid, snapshot.device_id.tolist(), strict=True))
    start = {name: int(snapshot.node_start[row]) for name, row in snapshot.node_index.items()}
    held = [(ids[snapshot.device_uuid[start[slot.runner] + slot.gpus[0]]], 0, slot.memory[0]) for slot in slots]
    requests = tuple(
        SlotRequest(f"r{number}", asked_for[number % len(asked_for)].name, priority=number % 3)
        for number in range(NEEDS)
    )
    return SlotInput(
        snapshot=take(snapshot, held),
        labels={},
        models=tuple(models),
        runners=runners,
        slots=slots,
        requests=requests,
    )
