"""When the containers of a pod run, and what they use of a device at once.

Invariants: ordinary init containers run one after another, then all containers at once; a sidecar runs from its place
among the init containers until the pod ends. Source:
https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kube.objects import Container


class Steps(NamedTuple):
    """The first and last step in which a container runs. The containers run in the last step of the pod."""

    first: int
    last: int


class ContainerUse(NamedTuple):
    """What one container uses of a device."""

    steps: Steps
    core_percent: int
    memory: int
    """In any unit, the same for all."""


def steps_of(inits: Sequence[Container]) -> Iterator[Steps]:
    """The steps of each init container, then endlessly those of a container."""
    end = sum(not one.is_sidecar for one in inits)
    step = 0
    for one in inits:
        if one.is_sidecar:
            yield Steps(step, end)
        else:
            yield Steps(step, step)
            step += 1
    while True:
        yield Steps(end, end)


def most_at_once(taken: Iterable[ContainerUse]) -> tuple[int, int]:
    """The most core percent and the most memory used in any step, not necessarily the same step."""
    listed = list(taken)
    sums = [
        (sum(one.core_percent for one in running), sum(one.memory for one in running))
        for step in {one.steps.last for one in listed}
        for running in ([one for one in listed if one.steps.first <= step <= one.steps.last],)
    ]
    return max((core for core, _ in sums), default=0), max((memory for _, memory in sums), default=0)
