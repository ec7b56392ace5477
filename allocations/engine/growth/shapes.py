"""Nodes of one shape as they fill up, decided by the engine; every answer is remembered.

Called by `growth.packing` and `growth.plan`. Invariants: a state is what is used of each device of the node, 0 is the
empty node; the same pods in the same order lead to the same state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from allocations.engine.build import build_snapshot
from allocations.engine.needs import amounts
from allocations.engine.plan import plan
from allocations.engine.queueing.equal_pods import taken
from claims.dialects.request import CORE_WHOLE, Policy, SharePolicy
from kube.device_types import GPU, is_mig

if TYPE_CHECKING:
    from allocations.engine.build import NodeRow
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest

EMPTY: Final = 0


def packed(request: DeviceRequest) -> DeviceRequest:
    """The request with its shares on the fullest devices: so they go on new nodes, whatever the pod or fleet says."""
    if request.own_share and request.share is SharePolicy.GPUPACK:
        return request
    policy = Policy.BINPACK if request.policy is Policy.SPREAD else request.policy
    return msgspec.structs.replace(request, policy=policy, share=SharePolicy.GPUPACK, own_share=True)


class Shape:
    """The states of nodes of one shape."""

    def __init__(self, node: NodeRow) -> None:
        empty = build_snapshot([node])
        self._gpu = np.equal(empty.device_type, empty.type_code[GPU])
        self._mig = np.array([is_mig(empty.types[code]) for code in empty.device_type.tolist()], dtype=np.bool_)
        self._snapshots: list[Snapshot] = []
        self._numbers: dict[bytes, int] = {}
        self._free: list[int] = []
        self._used: list[int] = []
        self._after: dict[tuple[int, DeviceRequest], int | None] = {}
        self._options: dict[tuple[int, DeviceRequest], tuple[int, ...]] = {}
        self._refusals: dict[DeviceRequest, str] = {}
        self._number(empty)
        self.gpus = int(self._gpu.sum())
        """GPUs of a node."""

    def refusal(self, request: DeviceRequest) -> str:
        """Why an empty node cannot hold the request; empty where it can."""
        if request not in self._refusals:
            decision = plan(self._snapshots[EMPTY], request)
            verdicts = decision.verdicts
            reason = next((reason.text for _, reason in verdicts.refused()), "") if verdicts is not None else ""
            self._refusals[request] = "" if decision.node is not None else reason or decision.summary
        return self._refusals[request]

    def after(self, state: int, request: DeviceRequest) -> int | None:
        """The state with the request placed by the engine; None where it does not fit."""
        key = (state, request)
        if key not in self._after:
            self._after[key] = self._planned(state, request, ())[0]
        return self._after[key]

    def options(self, state: int, request: DeviceRequest) -> tuple[int, ...]:
        """The states with the request placed, the engine's choice first; then a single share on other devices."""
        key = (state, request)
        if key not in self._options:
            first = self.after(state, request)
            found = [] if first is None else [first]
            if first is not None and len(request.asks) == 1 and request.asks[0].count == 1 and request.shares:
                found += self._on_other_devices(state, request)
            self._options[key] = tuple(dict.fromkeys(found))
        return self._options[key]

    def free(self, state: int) -> int:
        """Percent of GPUs that are left, 100 a GPU; of a node without GPUs the devices of other types."""
        return self._free[state]

    def used(self, state: int) -> int:
        """GPUs of which something is used: what a trigger pod has to ask for."""
        return self._used[state]

    def demand(self, request: DeviceRequest) -> tuple[int, int, int]:
        """(core percent, bytes, whole devices of other types than GPUs) that the request takes of a node."""
        empty = self._snapshots[EMPTY]
        least = int(empty.memory_total[self._gpu].min(initial=0)) if self.gpus else 0
        core = memory = others = 0
        if not request.several:  # containers that run one after the other use the same amounts
            for ask in request.asks:
                if ask.type != GPU:
                    others += ask.count * ask.whole
                    continue
                one = amounts(ask, least) or (0, 0)
                core, memory = core + ask.count * one[0], memory + ask.count * one[1]
        return core, memory, others

    @property
    def capacity(self) -> tuple[int, int, int]:
        """The same of an empty node."""
        empty = self._snapshots[EMPTY]
        return self.gpus * CORE_WHOLE, int(empty.memory_total[self._gpu].sum()), int((~self._gpu).sum())

    def left(self, state: int) -> tuple[int, int, int]:
        """What is left of the capacity."""
        snapshot = self._snapshots[state]
        core, memory, others = self.capacity
        in_use = int((snapshot.core_used[~self._gpu] > 0).sum())
        return (
            core - int(snapshot.core_used[self._gpu].sum()),
            memory - int(snapshot.memory_used[self._gpu].sum()),
            others - in_use,
        )

    def _planned(self, state: int, request: DeviceRequest, blocked: tuple[int, ...]) -> tuple[int | None, int]:
        """(the state after, the first device given)."""
        snapshot = self._snapshots[state]
        decision = plan(snapshot, request, blocked=blocked, verdicts_up_to=0)
        if decision.node is None:
            return None, -1
        return self._number(taken(snapshot, decision)), decision.grants[0].device_id

    def _on_other_devices(self, state: int, request: DeviceRequest) -> list[int]:
        """The states with the share on a device of another use than the devices tried before."""
        snapshot = self._snapshots[state]
        core, memory, total = (
            column.tolist() for column in (snapshot.core_used, snapshot.memory_used, snapshot.memory_total)
        )
        ids = snapshot.device_id.tolist()
        blocked: set[int] = set()
        found: list[int] = []
        while True:
            after, device = self._planned(state, request, tuple(sorted(blocked)))
            if after is None:
                return found
            found.append(after)
            here = ids.index(device)
            alike = core[here], memory[here], total[here]
            blocked |= {one for row, one in enumerate(ids) if (core[row], memory[row], total[row]) == alike}

    def _number(self, snapshot: Snapshot) -> int:
        """The number of the state."""
        key = snapshot.core_used.tobytes() + snapshot.memory_used.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._snapshots)
            self._snapshots.append(snapshot)
            self._free.append(self._percent_left(snapshot))
            in_use = (snapshot.core_used > 0) | (snapshot.memory_used > 0)
            gpus = int((in_use & self._gpu).sum())
            self._used.append(gpus or int((in_use & self._mig).any()))
        return self._numbers[key]

    def _percent_left(self, snapshot: Snapshot) -> int:
        rows = self._gpu if self._gpu.any() else np.ones_like(self._gpu)
        usable = rows & snapshot.device_healthy
        total = np.maximum(snapshot.memory_total[usable], 1)
        memory = (total - np.minimum(snapshot.memory_used[usable], total)) * CORE_WHOLE // total
        return int(np.minimum(CORE_WHOLE - snapshot.core_used[usable], memory).sum())
