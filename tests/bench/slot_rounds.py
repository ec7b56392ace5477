"""Rounds of the slots' loop over the tables: a round in which nothing happens, and the binding of new slots.

Called by `run`. The floor of a steady round is one query that reads the slots it decides about.
"""

from __future__ import annotations

import time
from pathlib import Path

from inference.choices import HOLDING, State
from inference.models import Slot
from inference.rounds.run import Rounds as SlotRounds
from tests.bench.figures import Figure, Report, timed_figure
from tests.bench.in_process import timed
from tests.bench.over_http import bench
from tests.bench.wire import Rounds
from tests.slots import SlotWorld

RUNNERS = 132
SLOTS = 1_050
"""Eight to a runner, on as many GPUs; the last runners have room."""


def measure_slot_rounds(report: Report, folder: Path, vendor: str, *, rounds: int) -> None:
    """Plan and bind all slots, let them get ready, then rounds without work."""
    with bench(vendor, folder / f"slot-rounds-{vendor}", 0):
        world = SlotWorld()
        for number in range(RUNNERS):
            world.runner(f"n{number:03}", gpus=8, memory=80)
        world.model(memory=70, keep_warm=SLOTS)
        loop = SlotRounds()
        began = time.monotonic()
        loop.run()
        took = time.monotonic() - began
        world.obey()
        ready = Slot.objects.filter(state=State.READY).count()
        if ready != SLOTS:
            raise RuntimeError(f"{ready} of {SLOTS} slots are ready after one round")
        measured = Rounds()
        loop.run()
        for _ in range(rounds):
            measured.floor.append([timed(_floor) for _ in range(3)])
            measured.product.append([timed(loop.run)])
    name = f"slots, {SLOTS:,} new ones planned and bound, a slot"
    report.add(Figure(name, vendor, "ms", took / SLOTS * 1e3, samples=SLOTS))
    report.add(timed_figure(f"slots, a steady round with {SLOTS:,}", measured, database=vendor))


def _floor() -> int:
    rows = Slot.objects.filter(state__in=HOLDING).values_list(
        "pk", "model_name", "lora", "node", "gpus", "memory", "state", "active", "last_used_at", "allocation_id"
    )
    return len(list(rows))
