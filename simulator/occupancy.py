"""Who holds which GPU, as the workload learned it from gpuplane's answers; feeds the signals.

Used by `workload`. Kept true: a GPU counts as busy when anybody holds any of it, shares included, and
room is counted for each GPU model by itself: so that a tenth of each kind of machine stays free whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.fleet import SimNode
from simulator.signals import Load, Signals

BUSIEST: Final = 0.9
"""Part of the GPUs that the workload lets be busy at most."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One live allocation. `gpus`: (UUID, core 0..1, memory bytes) of each GPU."""

    allocation_id: str
    state: str
    namespace: str
    pod_name: str
    pod_uid: str
    node: str
    gpus: tuple[tuple[str, float, int], ...]


def holding_of(row: Mapping[str, Any]) -> Holding:
    """Read an allocation of the REST API."""
    gpus = tuple(
        (str(device["uuid"]), float(device["core"] or 0) / 100, int(device["memory"] or 0))
        for device in row["devices"]
        if device["type"] == "gpu"
    )
    return Holding(
        allocation_id=str(row["uid"]),
        state=str(row["state"]),
        namespace=str(row["namespace"]),
        pod_name=str(row["pod"]),
        pod_uid=str(row["pod_uid"]),
        node=str(row["node"]),
        gpus=gpus,
    )


class Occupancy:
    """Holdings of the whole fleet by allocation id."""

    def __init__(self, signals: Signals, *, fleet: Sequence[SimNode]) -> None:
        self._signals = signals
        self._model_of = {uuid: node.kind.model for node in fleet for uuid in node.uuids}
        self._memory_of = {uuid: node.kind.memory_gib * 2**30 for node in fleet for uuid in node.uuids}
        self._nodes_of: dict[str, list[str]] = {}
        for node in fleet:
            self._nodes_of.setdefault(node.kind.model, []).append(node.name)
        self._model_of_node = {node.name: node.kind.model for node in fleet}
        self._sizes = Counter(self._model_of.values())
        self._holders: dict[str, dict[str, Load]] = {}
        self._busy: Counter[str] = Counter()
        self._coming: dict[str, tuple[str, int]] = {}
        self.holdings: dict[str, Holding] = {}

    @property
    def size(self) -> int:
        """GPUs of the fleet."""
        return len(self._model_of)

    @property
    def busy(self) -> int:
        """GPUs of the fleet that anybody holds."""
        return len(self._holders)

    @property
    def room(self) -> int:
        """GPUs that new pods may still touch, over all models."""
        return sum(self.room_of(model) for model in self._sizes)

    def room_of(self, model: str) -> int:
        """GPUs of the model that new pods may still touch, less those that pods on their way may take."""
        coming = sum(devices for at, devices in self._coming.values() if at == model)
        return max(0, int(BUSIEST * self._sizes[model]) - self._busy[model] - coming)

    def nodes_with_room(self, devices: int, models: Sequence[str] = ()) -> list[str]:
        """Nodes whose GPU model (one of `models`, where given) has room for that many."""
        wanted = [model for model in self._sizes if not models or model in models]
        return [name for model in wanted if self.room_of(model) >= devices for name in self._nodes_of[model]]

    def expect(self, pod_uid: str, node: str, devices: int) -> None:
        """A pod is on its way to the node and may touch that many GPUs."""
        self._coming[pod_uid] = (self._model_of_node.get(node, ""), devices)

    def arrived(self, pod_uid: str) -> None:
        """The pod is no longer on its way: it runs, or was given up."""
        self._coming.pop(pod_uid, None)

    def add(self, holding: Holding) -> None:
        """Somebody holds GPUs."""
        self.holdings[holding.allocation_id] = holding
        # a wave of its own for each allocation, the same in every run
        period = 12.0 + int(holding.allocation_id.replace("-", "")[:4] or "0", 16) % 50
        for uuid, core, memory in holding.gpus:
            share = min(1.0, memory / self._memory_of[uuid]) if uuid in self._memory_of else 0.0
            load = Load(core=core or share, memory=share, peers=len(holding.gpus), period_seconds=period)
            if uuid not in self._holders:
                self._busy[self._model_of.get(uuid, "")] += 1
            self._holders.setdefault(uuid, {})[holding.allocation_id] = load
            self._signals.hold(uuid, self._holders[uuid].values())

    def remove(self, allocation_id: str) -> None:
        """It was given back. Unknown ids are passed over."""
        holding = self.holdings.pop(allocation_id, None)
        for uuid, _, _ in holding.gpus if holding is not None else ():
            holders = self._holders[uuid]
            del holders[allocation_id]
            if not holders:
                del self._holders[uuid]
                self._busy[self._model_of.get(uuid, "")] -= 1
            self._signals.hold(uuid, holders.values())

    def free_gpus(self) -> list[str]:
        """UUIDs of GPUs that nobody holds."""
        return [uuid for uuid in self._model_of if uuid not in self._holders]
