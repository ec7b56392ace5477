"""gpuplane with halves of GPUs in KAI's words, on nodes in mode exclusive and, behind reservation pods, in mode
device-plugin.

Two contenders that differ in the nodes' mode alone: the same nodes, made for each round, and the same imitated kubelets
(`tests.cluster.controlplane.kubelet`), which answer at once. Each burst fills the nodes, two pods a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from tests.bench.cluster.contender import CLEAN_SECONDS, Contender, Size
from tests.bench.cluster.contenders import VENDORS, WithGpuplane, installation
from tests.bench.cluster.ground import GPUS, NAMESPACE, Ground, Json
from tests.cluster.controlplane.gpuplane import Gpuplane
from tests.cluster.controlplane.kubelet import DEVICE_PLUGIN, PREFIX, Kubelets, uuids
from tests.cluster.controlplane.objects import inventory, node, pod, two_islands
from tests.cluster.controlplane.stack import eventually
from tests.cluster.invariants import VISIBLE, settled
from tests.cluster.truth import read

WAYS = ("halves", "reserved")
HALVES = tuple(f"{vendor}-{way}" for vendor in VENDORS for way in WAYS)
ON = {"bench/halves": "true"}
A_NODE = 2 * GPUS


class WithHalves(WithGpuplane):
    """`way`: halves (nodes in mode exclusive) or reserved (device-plugin)."""

    def __init__(self, ground: Ground, gpuplane: Gpuplane, *, way: str, pods: int) -> None:
        super().__init__(ground, gpuplane, way=way)
        mode = "device-plugin" if way == "reserved" else "exclusive"
        self.title = f"gpuplane on {gpuplane.vendor}, gpu-fraction 0.5 on nodes in mode {mode}"
        self._labels = {**ON, **(DEVICE_PLUGIN if way == "reserved" else {})}
        self._mode = mode
        self._names = [f"{PREFIX}{number:04d}" for number in range(max(pods // A_NODE, 1))]
        self._kubelets: Kubelets | None = None
        self._running = ExitStack()

    def open(self) -> None:
        """gpuplane, then its nodes and their kubelets."""
        super().open()
        native = GPUS if self._way == "reserved" else 0

        def make(name: str) -> None:
            self.ground.api.create("/api/v1/nodes", node(name, native=native, labels=self._labels))
            body = {**inventory(name, gpus=GPUS, links=two_islands(GPUS)), "mode": self._mode}
            self._gpuplane.rest.put(f"/api/v1/nodes/{name}/inventory/", json=body).raise_for_status()

        self.ground.for_each(self._names, make)
        eventually(self._are_ready, seconds=120, what="the nodes of halves ready")
        made = Kubelets(self.ground.plane, {name: uuids(name, GPUS) for name in self._names}, fast=True)
        self._kubelets = self._running.enter_context(made.running())

    def bodies(self, size: Size) -> list[Json]:
        """As many as fill the nodes."""
        return [
            pod(f"pod-{number:05d}", NAMESPACE, annotations={"gpu-fraction": "0.5"}, nodeSelector=ON)
            for number in range(size.pods)
        ]

    def check(self, size: Size) -> None:
        """Two halves on each GPU; one reservation pod for each GPU in mode device-plugin; kubelets agree."""
        assert self._kubelets is not None
        truth = settled(self.ground.stack, seconds=300, records=self._kubelets.records)
        found = self.ground.pods()
        assert len(found) == size.pods
        on = Counter(one.metadata.annotations.get(VISIBLE, "") for one in found)
        assert "" not in on
        assert max(on.values()) <= 2
        assert len(truth.groups) == (len(on) if self._way == "reserved" else 0)

    def clean(self, size: Size) -> None:
        """Reservation pods too."""
        super().clean(size)
        eventually(lambda: not read(self.ground.stack).groups, seconds=CLEAN_SECONDS, what="no group left")

    def close(self) -> None:
        """Kubelets and nodes first."""
        self._running.close()
        self.ground.for_each(self._names, lambda name: self.ground.api.delete(f"/api/v1/nodes/{name}"))
        super().close()

    def _are_ready(self) -> bool:
        there = {one["metadata"]["name"]: one for one in self.ground.api.items("/api/v1/nodes")}
        ready = all(name in there and not there[name]["spec"].get("taints") for name in self._names)
        return ready and not set(self._names) & self.ground.stack.closed_nodes()


def with_halves(ground: Ground, names: Sequence[str], usual: Sequence[Contender], *, pods: int) -> list[Contender]:
    """Those of HALVES that are named, on the installations that there are, or new ones."""
    installed = {one._gpuplane.vendor: one._gpuplane for one in usual if isinstance(one, WithGpuplane)}
    made: list[Contender] = []
    for name in (one for one in HALVES if one in names):
        vendor, _, way = name.partition("-")
        if vendor not in installed:
            installed[vendor] = installation(ground, vendor)
        made.append(WithHalves(ground, installed[vendor], way=way, pods=pods))
    return made
