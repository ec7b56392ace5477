"""Queries of a round: waiting pods, holders, nodes, gangs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from django.db.models import TextField
from django.db.models.functions import Cast

from allocations.choices import LIVE, State
from allocations.engine.amounts import Held
from allocations.models import GangState
from allocations.queued_pod import QueuedPod
from claims.dialects.request import DeviceRequest
from claims.models import GpuGang
from kube.keys import HOSTNAME_LABEL
from kube.node_rules import NodeTraits
from kube.objects import Taint
from nodes.models import Node
from storage.columns import read_identity, read_moment
from storage.cursors import hot_cursor

_LIVE: Final = ", ".join(f"'{state.value}'" for state in LIVE)
_WAITING: Final = f"""
SELECT r.id, r.pod_uid, r.namespace, r.pod_name, r.summary, r.member, r.seen_at, a.id, a.state
FROM allocations_podrefusal r
LEFT JOIN allocations_allocation a ON a.pod_uid = r.pod_uid AND a.state IN ({_LIVE})
WHERE r.member IS NOT NULL
"""  # noqa: S608 - constants
_HOLDERS: Final = f"""
SELECT a.id, a.namespace, a.pod_name, a.pod_uid, a.holder, a.queue, a.gang, a.preemptible, a.pod_created,
       a.pod_priority, a.state, a.leaving_at, a.created_at, n.name, g.device_id, g.core_percent, g.memory_bytes, g.whole
FROM allocations_allocation a
JOIN nodes_node n ON n.id = a.node_id
JOIN allocations_allocationdevice g ON g.allocation_id = a.id AND g.live
WHERE a.state IN ({_LIVE})
ORDER BY a.created_at, a.id
"""  # noqa: S608 - constants
_MEMBER: Final = msgspec.json.Decoder(QueuedPod)
REQUESTS_KEPT: Final = 4096
_TAINTS: Final = list[Taint]


class WaitingRow(NamedTuple):
    """A pod that waits, or whose devices are held already (`allocation_id`)."""

    pk: int
    pod_uid: str
    namespace: str
    pod_name: str
    summary: str
    pod: QueuedPod
    seen_at: datetime | None
    allocation_id: UUID | None
    state: str | None

    @property
    def name(self) -> str:
        """What the decision knows the pod by."""
        return f"{self.namespace}/{self.pod_name}/{self.pod_uid}"

    @property
    def gang(self) -> str:
        """`namespace/name` of its gang, empty without one."""
        gang = self.pod.pod_request.membership.gang
        return f"{self.namespace}/{gang}" if gang else ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A live allocation."""

    id: UUID
    namespace: str
    pod_name: str
    pod_uid: str
    identity: str
    queue: str
    gang_name: str
    preemptible: bool
    pod_created: str
    priority: int
    state: State
    leaving: bool
    made_at: datetime
    node: str
    held: tuple[Held, ...]
    whole: bool

    @property
    def name(self) -> str:
        """What the decision knows the pod by."""
        return self.identity

    @property
    def gang(self) -> str:
        """`namespace/name` of its gang, empty without one."""
        return f"{self.namespace}/{self.gang_name}" if self.gang_name else ""


class WaitingRowsReader:
    """Waiting pods, decoded once for as long as their rows do not change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, QueuedPod]] = {}
        self._requests: dict[DeviceRequest, DeviceRequest] = {}

    def read(self) -> list[WaitingRow]:
        """All of them. One query."""
        with hot_cursor() as cursor:
            cursor.execute(_WAITING)
            found = cursor.fetchall()
        known: dict[str, tuple[str, QueuedPod]] = {}
        rows = []
        for pk, uid, namespace, name, summary, member, seen_at, allocation, state in found:
            text = member if isinstance(member, str) else msgspec.json.encode(member).decode()
            before = self._known.get(uid)
            known[uid] = before if before is not None and before[0] == text else (text, self._decoded(text))
            held = None if allocation is None else read_identity(allocation)
            rows.append(WaitingRow(pk, uid, namespace, name, summary, known[uid][1], read_moment(seen_at), held, state))
        self._known = known
        return rows

    def _decoded(self, text: str) -> QueuedPod:
        """The pod; equal requests are one object, which the decision compares faster."""
        pod = _MEMBER.decode(text)
        if len(self._requests) > REQUESTS_KEPT:
            self._requests.clear()
        request = self._requests.setdefault(pod.pod_request.request, pod.pod_request.request)
        return msgspec.structs.replace(pod, pod_request=replace(pod.pod_request, request=request))


def read_holders() -> list[Holder]:
    """Every live allocation with its devices. One query."""
    with hot_cursor() as cursor:
        cursor.execute(_HOLDERS)
        found = cursor.fetchall()
    grants: defaultdict[Any, list[tuple[int, int, int, bool]]] = defaultdict(list)
    first: dict[Any, Sequence[Any]] = {}
    for row in found:
        first.setdefault(row[0], row)
        grants[row[0]].append(row[14:18])
    return [_holder(row, grants[key]) for key, row in first.items()]


def _holder(row: Sequence[Any], grants: Sequence[tuple[int, int, int, bool]]) -> Holder:
    id_, namespace, name, uid, identity, queue, gang, preemptible, created, priority, state, leaving, made, node = row[
        :14
    ]
    made_at = read_moment(made)
    assert made_at is not None  # the column is never null
    return Holder(
        id=read_identity(id_),
        namespace=namespace,
        pod_name=name,
        pod_uid=uid,
        identity=identity,
        queue=queue,
        gang_name=gang,
        preemptible=bool(preemptible),
        pod_created=created,
        priority=priority,
        state=State(state),
        leaving=leaving is not None,
        made_at=made_at,
        node=node,
        held=tuple((device, core, memory) for device, core, memory, _ in grants),
        whole=all(bool(whole) for *_, whole in grants),
    )


class NodesCache:
    """Labels, taints and cordons of all nodes, read again when a node has changed."""

    def __init__(self) -> None:
        self._stamp: tuple[Any, ...] = ()
        self._nodes: Mapping[str, NodeTraits] = {}

    def read(self) -> Mapping[str, NodeTraits]:
        """By name."""
        # of each node: `changed_at` is a clock that its writer read earlier, so the newest says nothing of the others
        # as text, which is not parsed
        found = tuple(Node.objects.order_by("pk").values_list("pk", Cast("changed_at", TextField())))
        if found != self._stamp:
            rows = Node.objects.values_list("name", "labels", "taints", "unschedulable")
            self._nodes = {
                name: NodeTraits(
                    name, {HOSTNAME_LABEL: name} | labels, msgspec.convert(taints or [], _TAINTS), unschedulable
                )
                for name, labels, taints, unschedulable in rows
            }
            self._stamp = found
        return self._nodes


def read_gangs() -> dict[str, GpuGang]:
    """`namespace/name` → the gang as it is stored."""
    return {str(row): row for row in GpuGang.objects.all()}


def read_gang_states() -> dict[str, GangState]:
    """`namespace/name` → the state of the gang."""
    return {str(row): row for row in GangState.objects.all()}
