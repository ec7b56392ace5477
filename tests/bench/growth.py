"""The plan of growth, without a server or a database.

Called by `run`. The floor is sorting the pods once by what they ask for, which any packing has to.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from allocations.engine.growth import Demand, GrowthInput, Need, Pool, grow
from allocations.engine.queueing.workloads import Age, Member
from claims.dialects.request import DeviceRequest, Policy
from tests.bench.figures import Aim, Report, timed_figure
from tests.bench.in_process import timed
from tests.bench.wire import Rounds
from tests.builders import GI, fleet, node, share, whole

PODS = 2_000
NODES = 1_000
MOST_MS = 500
_KINDS = (
    whole(1),
    whole(2),
    whole(3),
    whole(4),
    whole(5),
    whole(8),
    whole(2, policy=Policy.CONTIGUOUS),
    share(core=50, ratio=50),
    share(core=25, memory=20 * GI),
    share(core=30, ratio=30),
    share(core=10, ratio=10),
    share(core=70, ratio=60),
)
_POOLS = (("a", 8, 10), ("b", 8, 5), ("c", 4, 5), ("d", 2, 1), ("e", 1, 1))
"""Name, GPUs of a node, weight."""


def measure_growth(report: Report, *, rounds: int) -> None:
    """2,000 pods of twelve kinds, and of one, wait beside 1,000 full nodes of 8 and five pools."""
    chance = random.Random(1)
    mixed = inputs([chance.choice(_KINDS) for _ in range(PODS)])
    alike = inputs([share(core=50, ratio=50)] * PODS)
    for name, asked in (("twelve kinds", mixed), ("one kind", alike)):
        measured = Rounds()
        for _ in range(rounds):
            measured.floor.append([timed(partial(sorted, asked.demands, key=_size)) for _ in range(3)])
            measured.product.append([timed(partial(grow, asked))])
        figure = timed_figure(f"growth, {PODS} pods of {name}, 5 pools, {NODES} × 8", measured)
        report.add(replace(figure, aims=[Aim(f"median ≤ {MOST_MS} ms", figure.value, MOST_MS)]))


def inputs(requests: list[DeviceRequest]) -> GrowthInput:
    """Lone pods of these requests."""
    full = fleet(*(node(f"n{number:04}", gpus=8, taken=range(8)) for number in range(NODES)))
    demands = tuple(
        Demand(f"p{place}", (Need(Member(f"p{place}", request, Age(True, "", place))),))
        for place, request in enumerate(requests)
    )
    pools = tuple(Pool(name, node(name, gpus=gpus), weight=weight) for name, gpus, weight in _POOLS)
    labels: list[dict[str, str]] = [{} for _ in range(NODES)]
    return GrowthInput(full, labels, pools, demands)


def _size(demand: Demand) -> int:
    return -sum(ask.count for need in demand.needs for ask in need.member.request.asks)
