"""Filter by each way of asking that is more than counting: shares in bytes and by ratio, NICs under the GPUs' switches,
containers one by one.

Called by `run`, on a fleet whose nodes have a NIC under every PCIe switch. Each is measured beside the floor of its own
rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from kube.keys import CLAIM, JOINT_ALLOCATE
from tests.bench import bodies
from tests.bench.figures import Report, timed_figure
from tests.bench.over_http import Bench, placed
from tests.bench.wire import alternate

Limits = Mapping[str, str]
JOINT = '{"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}'
WORDS: dict[str, tuple[Sequence[Limits], Mapping[str, str]]] = {
    "a share, memory in bytes": ([{"koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory": "16Gi"}], {}),
    "a share by ratio": ([{"koordinator.sh/gpu-core": "25", "koordinator.sh/gpu-memory-ratio": "40"}], {}),
    "two GPUs and a NIC, one switch": (
        [{"koordinator.sh/gpu": "200", "koordinator.sh/rdma": "100"}],
        {JOINT_ALLOCATE: JOINT},
    ),
    "HAMi, two containers": (
        [
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000"},
            {"nvidia.com/gpumem": "30000", "nvidia.com/gpucores": "30"},
        ],
        {"nvidia.com/use-gputype": "h100"},
    ),
}
"""Title → limits of the containers, annotations."""


def pod_of(name: str, limits: Sequence[Limits], notes: Mapping[str, str]) -> dict[str, Any]:
    """A pod of the usual size that asks so."""
    made = bodies.pod(name, "one")
    del made["metadata"]["annotations"][CLAIM]
    made["metadata"]["annotations"].update(notes)
    for container, amounts in zip(made["spec"]["containers"], limits, strict=False):
        for part in container["resources"].values():
            part.update(amounts)
    return made


def measure_words(at: Bench, report: Report, *, rounds: int, each: int) -> None:
    """One figure a way of asking."""
    for title, (limits, notes) in WORDS.items():
        times = alternate(
            at.wire,
            path="/extender/filter",
            bodies=partial(_asked, at, limits, notes, each),
            rounds=rounds,
            check=placed,
            after=at.give_back_one,
        )
        at.give_back_all()
        report.add(timed_figure(f"filter, {title}, {len(at.names):,} nodes", times, database=at.database))


def _asked(at: Bench, limits: Sequence[Limits], notes: Mapping[str, str], each: int, number: int) -> Sequence[bytes]:
    found = []
    for place, name in enumerate(at.fresh_names(each)):
        pod = pod_of(name, limits, notes)
        at.asked.append(pod["metadata"]["uid"])
        found.append(bodies.names_body(pod, at.lists[(number + place) % len(at.lists)]))
    return found
