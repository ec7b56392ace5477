"""One burst: pods made first, then the scheduler started; what it took from the first binding to the last.

Used by `tests.bench.cluster`. Figures of a burst whose outcome is wrong are thrown away with it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from tests.bench.cluster.contender import Contender, Size
from tests.bench.cluster.ground import NAMESPACE, Ground, PodFound
from tests.bench.cluster.measuring import Bindings, cpu_seconds, requests_so_far, settled_requests
from tests.bench.figures import quantile

SILENCE_SECONDS = 120.0
"""Without a binding for so long, a burst has failed."""
TRAILING = ("POST events", "PATCH pods/status")


@dataclass
class Burst:
    """What was measured. Times in seconds; `cpu` and `requests` are a pod's share, by process and by
    `VERB resource`.
    """

    contender: str
    size: str
    round: int
    pods: int
    rate: float
    seconds: float
    by_conditions: float
    """The same rate by the pods' own PodScheduled conditions, which know whole seconds only: a check."""
    made_seconds: float
    start_seconds: float
    resumed: int
    """How often the API server dropped the watch that saw the bindings."""
    cleaned_seconds: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)
    requests: dict[str, float] = field(default_factory=dict)
    times: dict[str, dict[str, float]] = field(default_factory=dict)
    profile: list[str] = field(default_factory=list)

    @property
    def stored(self) -> dict[str, Any]:
        """For the JSON."""
        return asdict(self)


def burst(ground: Ground, contender: Contender, size: Size, number: int) -> Burst:
    """Measure one, check it, clean up. Raises what the contender's checks raise."""
    try:
        contender.prepare(size)
        made = time.monotonic()
        ground.add_pods(contender.bodies(size))
        contender.wait_for_pods(size)
        found = _measure(ground, contender, size, number, made_seconds=time.monotonic() - made)
        ground.stop_scheduler()
        contender.check(size)
    finally:
        ground.stop_scheduler()
        cleaning = time.monotonic()
        contender.clean(size)
    found.cleaned_seconds = time.monotonic() - cleaning
    return found


def _measure(ground: Ground, contender: Contender, size: Size, number: int, *, made_seconds: float) -> Burst:
    before = requests_so_far(ground.api)
    contender.begin()
    bindings = Bindings(ground.api, NAMESPACE, ca=ground.plane.authority.certificate)

    def used() -> dict[str, float]:
        programs = ground.plane.programs
        return {**cpu_seconds({one.name: one.pid for one in programs} | contender.pids()), "this": time.process_time()}

    def used_at_first() -> dict[str, float]:
        assert bindings.until(1, silence_seconds=SILENCE_SECONDS), "nothing was bound"
        return used()

    with bindings.watching(), ThreadPoolExecutor(1) as beside:
        started = time.monotonic()
        first = beside.submit(used_at_first)
        contender.start_scheduler()
        all_bound = bindings.until(size.pods, silence_seconds=SILENCE_SECONDS)
        at_end = used()
        assert all_bound, f"{len(bindings.at)} of {size.pods} bound, then nothing for {SILENCE_SECONDS:.0f} s"
    told = contender.times()
    requests = settled_requests(ground.api, quiet=TRAILING)
    requests.subtract(before)
    seconds = bindings.at[-1] - bindings.at[0]
    at_first = first.result()
    return Burst(
        contender=contender.name,
        size=size.name,
        round=number,
        pods=size.pods,
        rate=(size.pods - 1) / seconds,
        seconds=seconds,
        by_conditions=_by_conditions(ground.pods()),
        made_seconds=made_seconds,
        start_seconds=bindings.at[0] - started,
        resumed=bindings.resumed,
        cpu={name: (spent - at_first.get(name, 0.0)) / size.pods for name, spent in at_end.items()},
        requests=_shares(requests, size.pods),
        times={path.rpartition("/")[2]: _spread(took) for path, took in told["seconds"].items()},
        profile=told["profile"],
    )


def _shares(requests: Counter[str], pods: int) -> dict[str, float]:
    return {name: count / pods for name, count in sorted(requests.items()) if count > 0}


def _spread(took: Sequence[float]) -> dict[str, float]:
    ordered = sorted(took)
    return {
        "count": len(ordered),
        "mean": sum(ordered) / len(ordered),
        "p50": quantile(ordered, 0.5),
        "p99": quantile(ordered, 0.99),
        "most": ordered[-1],
    }


def _by_conditions(pods: Sequence[PodFound]) -> float:
    moments = [
        datetime.fromisoformat(one.last_transition_time)
        for pod in pods
        for one in pod.status.conditions
        if one.type == "PodScheduled" and one.status == "True"
    ]
    if not moments:
        return 0.0
    return len(moments) / ((max(moments) - min(moments)).total_seconds() + 1)
