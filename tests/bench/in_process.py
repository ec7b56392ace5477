"""What is measured without a server: the engine.

Called by `run`. Its floor is what nobody can do without: reading the columns once.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import numpy as np

from allocations.engine import set_scores, sets
from allocations.engine.patch import patch
from allocations.engine.plan import plan
from allocations.engine.snapshot import Snapshot
from claims.dialects.request import Policy
from tests.bench import fleets
from tests.bench.figures import Report, timed_figure
from tests.bench.wire import Rounds
from tests.builders import whole

FOUR = whole(4, policy=Policy.CONTIGUOUS)


def measure_engine(report: Report, *, rounds: int) -> None:
    """The best 4 of 16 GPUs on each of 1,000 nodes: nothing known, nothing changed, one node changed."""
    pictures = [fleets.sixteens(1000, turn=turn) for turn in range(rounds + 1)]
    cold, warm, changed = Rounds(), Rounds(), Rounds()
    for picture in pictures:
        _forget(picture)
        floor = [timed(lambda: _floor(picture)) for _ in range(5)]  # noqa: B023 - called at once
        cold.floor.append(floor)
        cold.product.append([timed(lambda: plan(picture, FOUR))])  # noqa: B023 - called at once
        warm.floor.append(floor)
        warm.product.append([timed(lambda: plan(picture, FOUR)) for _ in range(5)])  # noqa: B023 - called at once
        times = []
        following = picture
        for _ in range(20):
            decision = plan(following, FOUR)
            taken = [(grant.device_id, 100, grant.memory_bytes or 0, True) for grant in decision.grants]
            began = time.perf_counter_ns()
            following = patch(following, taken)
            plan(following, FOUR)
            times.append(time.perf_counter_ns() - began)
        changed.product.append(times)
        changed.floor.append(floor)
    for one in (cold, warm, changed):
        one.product, one.floor = one.product[1:], one.floor[1:]
    report.add(timed_figure("engine, 4 of 16 GPUs, 1,000 nodes, cold", cold))
    report.add(timed_figure("engine, the same again", warm))
    report.add(timed_figure("engine, after a node changed (patch included)", changed))


def _forget(picture: Snapshot) -> None:
    """Drop every score that was ever worked out."""
    picture.index.sets.known.clear()
    picture.usage.clear()
    for module in (sets, set_scores):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


def _floor(picture: Snapshot) -> int:
    """Count the free GPUs of every node."""
    free = (picture.core_used == 0) & (picture.memory_used == 0) & picture.device_healthy
    return int(np.add.reduceat(free, picture.node_start[:-1], dtype=np.int64).max())


def timed(work: Callable[[], object]) -> int:
    """Nanoseconds that it takes, the collector of garbage kept away."""
    gc.disable()
    began = time.perf_counter_ns()
    work()
    took = time.perf_counter_ns() - began
    gc.enable()
    return took
