"""Places the waiting pods one after the other, in the order of the file: what a cluster without queues does.

A gang is decided when its `minMember`-th pod comes, and again with each further one until it has room.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from allocations.engine.plan import plan
from allocations.engine.queueing.equal_pods import Placements, taken
from allocations.engine.queueing.members import incomplete_text
from allocations.engine.queueing.placing import Placer
from allocations.engine.queueing.workloads import Member, Workload
from allocations.scenario.parse import Scenario
from allocations.scenario.rules import traits_of
from allocations.scenario.waiting_pods import Answered, WaitingPods, gang_of, gangs_by_name

if TYPE_CHECKING:
    from allocations.engine.queueing.workloads import Gang
    from allocations.engine.snapshot import Snapshot


def in_order(scenario: Scenario, pods: WaitingPods, snapshot: Snapshot) -> Answered:
    """The decisions, and the fleet after them."""
    course = _Course(scenario, pods, snapshot)
    for pod, member in pods.members():
        gang = gang_of(scenario, pod)
        if gang:
            course.gang(gang, member)
        else:
            course.lone(member)
    course.note_gangs()
    return Answered(pods.in_file_order(), course.snapshot)


class _Course:
    def __init__(self, scenario: Scenario, pods: WaitingPods, snapshot: Snapshot) -> None:
        self.pods = pods
        self.snapshot = snapshot
        self._gangs = gangs_by_name(scenario)
        labels = {node.name: traits_of(node).labels for node in scenario.nodes}
        self._placer = Placer([labels[name] for name in snapshot.node_names])
        self._standing: defaultdict[str, list[int]] = defaultdict(list)
        self._waiting: defaultdict[str, list[Member]] = defaultdict(list)
        for pod in scenario.pods:
            row = snapshot.node_index.get(pod.spec.node_name or "")
            gone = pod.finished or pod.metadata.deletion_timestamp
            if row is not None and not gone and (gang := gang_of(scenario, pod)):
                self._standing[gang].append(row)

    def lone(self, member: Member) -> None:
        """Place a pod without a gang."""
        decision = plan(self.snapshot, member.request, candidates=member.rows)
        self.pods.decided(member.name, decision)
        if decision.node is None:
            self.pods.lacks_devices(Workload(member.name, "", (member,), 0, member.age))
        self.snapshot = taken(self.snapshot, decision)

    def gang(self, name: str, member: Member) -> None:
        """Add a pod to its gang, and place what can be placed."""
        gang, waiting = self._gangs.get(name), self._waiting[name]
        waiting.append(member)
        there = len(self._standing[name]) + len(waiting)
        if gang is None or there < gang.min_member:
            for one in waiting:
                self.pods.waits(one.name, incomplete_text(name, there, gang))
            return
        missing = max(gang.min_member - len(self._standing[name]), 1)
        reason = ""
        while len(waiting) >= missing and not reason:
            reason = self._placed(gang, waiting[:missing])
            if not reason:
                del waiting[:missing]
                missing = 1
        for one in waiting:
            self.pods.waits(one.name, reason)

    def note_gangs(self) -> None:
        """Note the complete gangs without room, and pods above a gang's `minMember`."""
        for name, waiting in self._waiting.items():
            gang, beside = self._gangs.get(name), tuple(self._standing[name])
            if gang is None or not waiting or len(beside) + len(waiting) < gang.min_member:
                continue
            missing = max(gang.min_member - len(beside), 0)
            whole = Workload(
                name, "", tuple(waiting[:missing]), 0, waiting[0].age, topology=gang.topology, beside=beside
            )
            if missing:
                self.pods.lacks_devices(whole)
            for one in waiting[missing:]:
                self.pods.lacks_devices(
                    msgspec.structs.replace(whole, name=one.name, members=(one,), age=one.age, above=name)
                )

    def _placed(self, gang: Gang, members: list[Member]) -> str:
        """Place these members together; why they cannot be."""
        beside = tuple(self._standing[gang.name])
        workload = Workload(gang.name, "", tuple(members), 0, members[0].age, topology=gang.topology, beside=beside)
        found = self._placer.place(self.snapshot, workload, blocked=())
        if not isinstance(found, Placements):
            return found.reason
        for one in found.pods:
            self.pods.decided(one.member.name, one.decision)
            self._standing[gang.name].append(self.snapshot.node_index[str(one.decision.node)])
        self.snapshot = found.snapshot
        return ""
