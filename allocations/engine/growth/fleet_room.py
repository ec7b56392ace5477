"""Room on the nodes there, for pods that the plan of growth looks at. Called by `growth.plan`.

Invariants: a pod that fits takes its devices, so that nobody else counts them; what was refused once stays refused,
since room only shrinks here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from allocations.engine.plan import plan
from allocations.engine.queueing.equal_pods import Placements, taken
from allocations.engine.queueing.placing import Labels, Placer
from allocations.engine.queueing.workloads import Workload

if TYPE_CHECKING:
    from allocations.engine.growth.records import Demand
    from allocations.engine.queueing.workloads import Member
    from allocations.engine.snapshot import Snapshot
    from claims.dialects.request import DeviceRequest


class FleetRoom:
    """What is left of one snapshot."""

    def __init__(self, snapshot: Snapshot, labels: Labels) -> None:
        self.snapshot = snapshot
        self._labels = labels
        self._placer = Placer(labels)
        self._refused: set[tuple[DeviceRequest, tuple[int, ...] | None]] = set()

    def take(self, demand: Demand) -> dict[str, str]:
        """Pod → node, for as many of the workload's pods as have room; all or none where it has a topology."""
        members = [need.member for need in demand.needs]
        if not self.snapshot.node_names:
            return {}
        if demand.topology is None and (len(members) == 1 or all(map(self._is_refused, members))):
            return self.some(members)
        workload = Workload(
            demand.name, "", tuple(members), 0, members[0].age, topology=demand.topology, beside=demand.beside
        )
        found = self._placer.place(self.snapshot, workload, blocked=())
        if isinstance(found, Placements):
            self.snapshot = found.snapshot
            return {one.member.name: str(one.decision.node) for one in found.pods}
        return {} if demand.topology is not None else self.some(members)

    def copy(self) -> FleetRoom:
        """The same, to try something."""
        return FleetRoom(self.snapshot, self._labels)

    def some(self, members: Iterable[Member]) -> dict[str, str]:
        """Pod → node, for those that have room."""
        found = {}
        for member in members:
            if self._is_refused(member):
                continue
            decision = plan(self.snapshot, member.request, candidates=member.rows, verdicts_up_to=0)
            if decision.node is None:
                self._refused.add((member.request, member.rows))
                continue
            self.snapshot = taken(self.snapshot, decision)
            found[member.name] = decision.node
        return found

    def _is_refused(self, member: Member) -> bool:
        return (member.request, member.rows) in self._refused
