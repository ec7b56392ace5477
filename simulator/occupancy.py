"""Holders of the fleet's GPUs, as gpuplane's answers say; sets the loads of the signals.

Used by `workload`. Invariants: a GPU is busy when anybody holds any of it; room is counted for each GPU model, so that
a tenth of each kind of machine stays free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kube.device_types import GPU
from simulator.fleet import SimNode
from simulator.signals import Load, Meters, Signals

BUSIEST: Final = 0.9
"""Largest part of the GPUs that the workload keeps busy."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One live allocation. `gpus`: (UUID, core 0..1, memory bytes) of each GPU."""

    allocation_id: str
    state: str
    namespace: str
    pod_name: str
    pod_uid: str
    gpus: tuple[tuple[str, float, int], ...]


def holding_of(row: Mapping[str, Any]) -> Holding:
    """A holding from an allocation of the REST API."""
    gpus = tuple(
        (str(device["uuid"]), float(device["core"] or 0) / 100, int(device["memory"] or 0))
        for device in row["devices"]
        if device["type"] == GPU
    )
    return Holding(
        allocation_id=str(row["uid"]),
        state=str(row["state"]),
        namespace=str(row["namespace"]),
        pod_name=str(row["pod"]),
        pod_uid=str(row["pod_uid"]),
        gpus=gpus,
    )


class Occupancy:
    """Holdings of the whole fleet by allocation id."""

    def __init__(
        self, signals: Signals | Meters, *, fleet: Sequence[SimNode], for_pods: Sequence[SimNode] | None = None
    ) -> None:
        """`for_pods`: the nodes that pods may use, all where it is not given."""
        self._signals = signals
        for_pods = fleet if for_pods is None else for_pods
        self._model_of = {uuid: node.kind.model for node in for_pods for uuid in node.uuids}
        self._memory_of = {uuid: node.kind.memory_gib * 2**30 for node in fleet for uuid in node.uuids}
        self._nodes_of: dict[str, list[str]] = {}
        for node in for_pods:
            self._nodes_of.setdefault(node.kind.model, []).append(node.name)
        self._model_of_node = {node.name: node.kind.model for node in for_pods}
        self._sizes = Counter(self._model_of.values())
        self._holders: dict[str, dict[str, Load]] = {}
        self._busy: Counter[str] = Counter()
        self._coming: dict[str, tuple[str, int]] = {}
        self.holdings: dict[str, Holding] = {}

    def node_came(self, node: SimNode) -> None:
        """Know a node that is no part of the fleet: its GPUs have loads, and count nowhere."""
        self._memory_of |= dict.fromkeys(node.uuids, node.kind.memory_gib * 2**30)

    def node_went(self, node: SimNode) -> None:
        """Forget it."""
        for uuid in node.uuids:
            self._memory_of.pop(uuid, None)

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self._model_of)

    @property
    def busy(self) -> int:
        """Number of held GPUs."""
        return len(self._holders)

    @property
    def room(self) -> int:
        """Number of GPUs that new pods may use."""
        return sum(self.room_of(model) for model in self._sizes)

    def room_of(self, model: str) -> int:
        """Number of GPUs of the model that new pods may use, without those expected by pods that are being bound."""
        coming = sum(devices for at, devices in self._coming.values() if at == model)
        return max(0, int(BUSIEST * self._sizes[model]) - self._busy[model] - coming)

    def nodes_with_room(self, devices: int, models: Sequence[str] = ()) -> list[str]:
        """Nodes whose GPU model, one of `models` if given, has room for so many."""
        wanted = [model for model in self._sizes if not models or model in models]
        return [name for model in wanted if self.room_of(model) >= devices for name in self._nodes_of[model]]

    def expect(self, pod_uid: str, node: str, devices: int) -> None:
        """Reserve room for a pod that is being bound to the node."""
        self._coming[pod_uid] = (self._model_of_node.get(node, ""), devices)

    def arrived(self, pod_uid: str) -> None:
        """Return the room of a pod that was bound, or given up."""
        self._coming.pop(pod_uid, None)

    def add(self, holding: Holding) -> None:
        """Add a holding."""
        self.holdings[holding.allocation_id] = holding
        # each allocation has its own period, the same in every run
        period = 12.0 + int(holding.allocation_id.replace("-", "")[:4] or "0", 16) % 50
        for uuid, core, memory in holding.gpus:
            share = min(1.0, memory / self._memory_of[uuid]) if uuid in self._memory_of else 0.0
            load = Load(core=core or share, memory=share, peers=len(holding.gpus), period_seconds=period)
            if uuid not in self._holders:
                self._busy[self._model_of.get(uuid, "")] += 1
            self._holders.setdefault(uuid, {})[holding.allocation_id] = load
            self._signals.hold(uuid, self._holders[uuid].values())

    def remove(self, allocation_id: str) -> None:
        """Remove a holding. Unknown ids are ignored."""
        holding = self.holdings.pop(allocation_id, None)
        for uuid, _, _ in holding.gpus if holding is not None else ():
            holders = self._holders[uuid]
            del holders[allocation_id]
            if not holders:
                del self._holders[uuid]
                self._busy[self._model_of.get(uuid, "")] -= 1
            self._signals.hold(uuid, holders.values())

    def free_gpus(self) -> list[str]:
        """UUIDs of free GPUs."""
        return [uuid for uuid in self._model_of if uuid not in self._holders]
