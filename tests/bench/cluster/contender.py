"""What a contender does in a burst: brings its pods, its scheduler and its own processes, checks what came out, leaves
nothing behind.

Used by `tests.bench.cluster.burst`; kube-scheduler alone is the simplest of them. Invariants: one whose pods are not
all bound, or which gave a device twice, has no figure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.bench.cluster.ground import GPUS, NAMESPACE, Ground
from tests.cluster.controlplane.objects import pod
from tests.cluster.controlplane.program import Program

Json = dict[str, Any]
NATIVE = "nvidia.com/gpu"
CLEAN_SECONDS = 900.0


@dataclass(frozen=True)
class Size:
    """One kind of burst: so many pods of `count` GPUs each; `policy` where a claim can say one."""

    name: str
    pods: int
    count: int
    policy: str = "none"


class Contender:
    """What every contender does; kube-scheduler alone does no more."""

    name = "stock"
    title = "kube-scheduler alone, nvidia.com/gpu"
    scheduler = "default-scheduler"

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    def open(self) -> None:
        """Before its bursts of a round."""

    def prepare(self, size: Size) -> None:
        """Before the pods of a burst are made."""

    def bodies(self, size: Size) -> list[Json]:
        """The pods of a burst."""
        return [
            pod(f"pod-{number:05d}", NAMESPACE, scheduler=self.scheduler, **self.asking(size))
            for number in range(size.pods)
        ]

    def asking(self, size: Size) -> Json:
        """Keywords of `objects.pod`."""
        return {"resources": {NATIVE: size.count}}

    def wait_for_pods(self, size: Size) -> None:
        """After they were made, before the scheduler starts."""

    def start_scheduler(self) -> Program:
        """The scheduler that binds them."""
        return self.ground.start_stock_scheduler()

    def pids(self) -> dict[str, int]:
        """Its own processes, by name, besides the cluster's and the scheduler."""
        return {}

    def begin(self) -> None:
        """Forget times of requests."""

    def times(self) -> Json:
        """`seconds` of requests by path, and `profile`, since `begin`."""
        return {"seconds": {}, "profile": []}

    def check(self, size: Size) -> None:
        """AssertionError when a pod is unbound or a device was given twice."""
        found = self.ground.pods()
        assert len(found) == size.pods
        on = Counter(one.spec.node_name for one in found)
        assert "" not in on, f"{on['']} pods are not bound"
        assert max(on.values()) * size.count <= GPUS, "a node has more pods than GPUs"

    def clean(self, size: Size) -> None:
        """Leave nothing behind of a burst."""
        self.ground.empty()

    def close(self) -> None:
        """After its bursts of a round."""
