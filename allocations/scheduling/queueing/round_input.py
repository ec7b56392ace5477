"""The input of a round: what `allocations.engine.queueing` decides by, and the rows that its names stand for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec
from django.conf import settings

from allocations import fleet
from allocations.choices import State
from allocations.engine.patch import patch
from allocations.engine.queueing.members import WaitingPod, group_into_workloads
from allocations.engine.queueing.rounds import DecisionInput
from allocations.engine.queueing.workloads import Age, Gang, Member, Running, holds_whole
from allocations.engine.snapshot import Snapshot
from allocations.gang_queues import GangPod, counts_in, gang_queues, known_queue
from allocations.models import GangState
from allocations.queued_pod import QueuedPod
from allocations.scheduling.queueing.idle_pods import idle_holders
from allocations.scheduling.queueing.waiting_rows import (
    Holder,
    NodesCache,
    WaitingRow,
    WaitingRowsReader,
    read_gang_states,
    read_gangs,
    read_holders,
)
from claims.choices import Phase
from claims.membership import Membership, is_queued, queue_of
from claims.models import GpuGang
from claims.queue_manifests import GangFields, parse_gang_spec
from claims.queues import StoredQueues, stored_queues
from kube.node_rules import NodeTraits, is_restricted, refusal_of

ASKED: Final = timedelta(seconds=60)
"""Without a cluster a pod waits so long after its scheduler asked for it last."""
MOST: Final = 512
"""Pods that a round admits, so that the gates of the first do not wait for the last."""


@dataclass(frozen=True, slots=True)
class RoundInput:
    """`waiting`, `holders`: rows by the names that the decision uses; `problems`: why pods are in no workload.

    `members`: pods of each workload, by its name; `queues`: of each waiting pod, by its name.
    """

    decision_input: DecisionInput
    now: datetime
    waiting: Mapping[str, WaitingRow]
    gated: Sequence[WaitingRow]
    """Pods whose devices are held, and whose gate is on still."""
    outside: Sequence[WaitingRow]
    """Pods with our gate that the queues do not admit."""
    holders: Mapping[str, Holder]
    problems: Mapping[str, str]
    members: Mapping[str, tuple[str, ...]]
    gangs: Mapping[str, GangFields]
    states: Mapping[str, GangState]
    queues: StoredQueues

    def without_gangs(self, reasons: Mapping[str, str]) -> RoundInput:
        """The input in which the waiting pods of these gangs are in no workload, for the reasons given."""
        if not reasons:
            return self
        before = self.decision_input
        waiting = tuple(one for one in before.waiting if (one.above or one.name) not in reasons)
        problems = {name: reasons[row.gang] for name, row in self.waiting.items() if row.gang in reasons}
        return replace(
            self,
            decision_input=msgspec.structs.replace(before, waiting=waiting),
            problems={**self.problems, **problems},
        )


class InputReader:
    """Reads the input of round after round; keeps what did not change."""

    def __init__(self) -> None:
        self._waiting_rows = WaitingRowsReader()
        self._nodes = NodesCache()

    def read(
        self,
        protected: Collection[str],
        *,
        also: WaitingPod | None = None,
        without: Collection[int] = (),
        look: fleet.FleetSnapshot | None = None,
    ) -> RoundInput:
        """Everything as of now. `protected`: UIDs of pods that no eviction moves for the moment; `also`: who waits
        beside the pods; `without`: ids of devices to leave out; `look`: the fleet that a caller has read before,
        whose rows of nodes it uses.
        """
        # Rows first: what they say is at most older than a snapshot that is read here. The one that growth passes is
        # older than the rows: the devices of a pod admitted in between look free, and a node for others may be planned
        # a round later. With older rows the pod would count twice, as waiting too, and a node too many be planned.
        rows, holders = self._waiting_rows.read(), read_holders()
        queues, gangs, states, nodes = stored_queues(), _parsed(read_gangs()), read_gang_states(), self._nodes.read()
        look = fleet.current() if look is None else look
        rows = [row for row in rows if _is_asked_for(row, look.now)]
        snapshot = _without(look, {*without, *_kept_from(look, {row.pod_uid for row in rows})})
        there = [one for one in holders if one.node in snapshot.node_index]
        idle = idle_holders(there, snapshot, look.now)
        running = [_running(one, place, queues, snapshot, protected, idle) for place, one in enumerate(there)]
        rules = _Rules(look, nodes)
        outside = [row for row in rows if not is_queued(row.pod.pod_request.membership, row.namespace, queues)]
        apart = {row.pod_uid for row in outside}
        waiting = [row for row in rows if row.allocation_id is None and row.pod_uid not in apart]
        pods = [_waiting_pod(row, queues, rules) for row in waiting] + ([] if also is None else [also])
        by_gang = _gang_queues(pods, running)
        running = [_in_queue_of_gang(one, by_gang, queues) for one in running]
        grouped = group_into_workloads(
            queues.tree,
            pods,
            running,
            {name: Gang.of(name, spec) for name, spec in gangs.items()},
            gang_queues=by_gang,
            held_back={
                name: f"gang {one.name} was undone; it is tried again at {one.retry_at:%H:%M:%S} UTC"
                for name, one in states.items()
                if one.retry_at is not None and one.retry_at > look.now
            },
            undone={
                name: Age(undated=False, created=f"{one.retry_at:%Y-%m-%dT%H:%M:%SZ}", place=0)
                for name, one in states.items()
                if one.retry_at is not None
            },
        )
        decision_input = DecisionInput(
            tree=queues.tree,
            snapshot=snapshot,
            running=tuple(running),
            waiting=tuple(grouped.workloads),
            gangs={name: Gang.of(name, spec) for name, spec in gangs.items()},
            labels=[_labels(nodes, name) for name in snapshot.node_names],
            most=MOST,
        )
        return RoundInput(
            decision_input=decision_input,
            now=look.now,
            waiting={row.name: row for row in waiting},
            gated=[row for row in rows if row.allocation_id is not None and row.pod.gated],
            outside=[row for row in outside if row.pod.gated],
            holders={one.name: one for one in holders},
            problems=grouped.problems,
            members={one.name: tuple(member.name for member in one.members) for one in grouped.workloads},
            gangs=gangs,
            states=states,
            queues=queues,
        )


def _is_asked_for(row: WaitingRow, now: datetime) -> bool:
    """Whether the pod still waits. Without a cluster its end is not seen: it waits while its scheduler asks."""
    return bool(settings.GPUPLANE_KUBECONFIG) or (row.seen_at is not None and now - row.seen_at < ASKED)


def _parsed(gangs: Mapping[str, GpuGang]) -> dict[str, GangFields]:
    return {name: parse_gang_spec(row.spec) for name, row in gangs.items() if row.phase != Phase.INVALID}


def _labels(nodes: Mapping[str, NodeTraits], name: str) -> Mapping[str, str]:
    return nodes[name].labels if name in nodes else {}


def without_kept(look: fleet.FleetSnapshot, waiting: Collection[str]) -> Snapshot:
    """The snapshot in which devices that are kept for pods beside these waiting ones are used."""
    return _without(look, _kept_from(look, waiting))


def _kept_from(look: fleet.FleetSnapshot, waiting: Collection[str]) -> list[int]:
    """Devices that are kept for preemptors outside the queues."""
    return [device for device, kept in look.kept.items() if kept.pods.isdisjoint(waiting) and kept.until > look.now]


def _without(look: fleet.FleetSnapshot, devices: Collection[int]) -> Snapshot:
    """The snapshot in which these devices are used."""
    others, snapshot = sorted(devices), look.snapshot
    core, memory = snapshot.core_used, snapshot.memory_used
    rows = zip(others, snapshot.index.rows_of(others).tolist(), strict=True)
    uses = [(device, int(core[row]), int(memory[row]), False) for device, row in rows if row >= 0]
    return patch(snapshot, uses)


def _running(
    one: Holder,
    place: int,
    queues: StoredQueues,
    snapshot: Snapshot,
    protected: Collection[str],
    idle: Collection[str],
) -> Running:
    member = Membership(one.queue, one.gang_name)
    return Running(
        name=one.name,
        queue=counts_in(member, one.namespace, queues, {}),
        held=one.held,
        row=snapshot.node_index[one.node],
        priority=one.priority,
        age=_age(one.pod_created or f"{one.made_at:%Y-%m-%dT%H:%M:%SZ}", place),
        preemptible=one.preemptible and bool(one.pod_uid),
        movable=one.state in (State.HELD, State.BOUND) and one.pod_uid not in protected,
        gang=one.gang,
        leaving=one.leaving or one.state is State.RELEASING,
        whole=one.whole or holds_whole(snapshot, one.held),
        idle=one.name in idle,
        outside=not is_queued(member, one.namespace, queues),
    )


def _age(created: str, place: int) -> Age:
    return Age(undated=not created, created=created, place=place)


def _waiting_pod(row: WaitingRow, queues: StoredQueues, rules: _Rules) -> WaitingPod:
    pod_request = row.pod.pod_request
    queue = queue_of(pod_request.membership, row.namespace, queues)
    member = Member(row.name, pod_request.request, _age(pod_request.membership.created, row.pk), rules.rows(row.pod))
    return WaitingPod(
        member,
        queue,
        pod_request.membership.priority,
        preemptible=pod_request.membership.preemptible,
        gang=row.gang,
        borrows_idle=pod_request.membership.borrows_idle,
        barred=queues.barred(queue, row.namespace) or _left_out(queues, queue),
    )


def _left_out(queues: StoredQueues, queue: str) -> str:
    """Why a queue that is stored takes no pods."""
    problem = queues.invalid.get(queue, "")
    return f"queue {queue} is left out: {problem}" if problem else ""


def _gang_queues(waiting: Sequence[WaitingPod], running: Sequence[Running]) -> dict[str, str]:
    """The queue of each gang by the pods of this round."""
    pods = [GangPod(pod.gang, pod.member.age.created, pod.member.name, pod.queue) for pod in waiting if pod.gang]
    pods += [GangPod(one.gang, one.age.created, one.name, one.queue) for one in running if one.gang]
    return gang_queues(pods)


def _in_queue_of_gang(one: Running, by_gang: Mapping[str, str], queues: StoredQueues) -> Running:
    """The pod in the queue of its gang, whatever its own label names."""
    queue = by_gang.get(one.gang, one.queue)
    if queue == one.queue:
        return one
    return msgspec.structs.replace(one, queue=known_queue(queue, queues))


class _Rules:
    """The nodes that a pod's own rules allow, worked out once for equal rules."""

    def __init__(self, look: fleet.FleetSnapshot, nodes: Mapping[str, NodeTraits]) -> None:
        self._nodes = [nodes.get(name) or NodeTraits(name, {}) for name in look.snapshot.node_names]
        self._put_off = look.nodes_put_off()
        self._closed = any(node.taints or node.unschedulable for node in self._nodes)
        self._known: dict[bytes, tuple[int, ...] | None] = {}

    def rows(self, pod: QueuedPod) -> tuple[int, ...] | None:
        """Node rows, None for all. Nodes that begin no new group for now are left out where the pod may need one."""
        rows = self._allowed(pod)
        if not self._put_off or pod.pod_request.request.for_kubelet:
            return rows
        return tuple(row for row in (range(len(self._nodes)) if rows is None else rows) if row not in self._put_off)

    def _allowed(self, pod: QueuedPod) -> tuple[int, ...] | None:
        spec = pod.spec
        if not self._closed and not is_restricted(spec):
            return None
        key = msgspec.json.encode((pod.node_selector, pod.affinity, pod.tolerations))
        if key not in self._known:
            rows = tuple(row for row, node in enumerate(self._nodes) if not refusal_of(spec, node))
            self._known[key] = rows if len(rows) < len(self._nodes) else None
        return self._known[key]
