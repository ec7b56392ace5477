"""When the containers of a pod run, and what they take of one device at once.

Called by the dialects that count container by container, and by the engine. Kept true: ordinary init containers run one
after another, then the containers, all at once; a sidecar (an init container that restarts always) runs from where it
is declared for as long as the pod does. Source: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kube.objects import Container, Pod

ALWAYS: Final = "Always"
"""`restartPolicy` of a sidecar."""


class Steps(NamedTuple):
    """The steps of the pod's life in which a container runs, first and last. The last step of all is that of the
    containers.
    """

    first: int
    last: int


class Taken(NamedTuple):
    """What one container takes of a device."""

    steps: Steps
    core_percent: int
    memory: int
    """In any unit, the same for all."""


def is_sidecar(init_container: Container) -> bool:
    """Whether an init container runs as long as the pod."""
    return init_container.restart_policy == ALWAYS


def containers_of(pod: Pod) -> list[Container]:
    """Init containers first, as HAMi counts them."""
    return [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]


def steps_of(inits: Sequence[Container]) -> Iterator[Steps]:
    """The steps of each init container, then without end those of the containers."""
    end = sum(not is_sidecar(one) for one in inits)
    step = 0
    for one in inits:
        if is_sidecar(one):
            yield Steps(step, end)
        else:
            yield Steps(step, step)
            step += 1
    while True:
        yield Steps(end, end)


def most_at_once(taken: Iterable[Taken]) -> tuple[int, int]:
    """Core percent and memory of the step that takes most of each, which need not be the same."""
    listed = list(taken)
    sums = [
        (sum(one.core_percent for one in running), sum(one.memory for one in running))
        for step in {one.steps.last for one in listed}
        for running in ([one for one in listed if one.steps.first <= step <= one.steps.last],)
    ]
    return max((core for core, _ in sums), default=0), max((memory for _, memory in sums), default=0)
