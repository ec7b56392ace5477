"""A pod's live allocation, and the nodes that failed it lately."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from allocations.choices import LIVE, State
from allocations.engine.amounts import Amounts
from allocations.engine.decision import Grant
from allocations.ledger.holder import Holder
from claims.dialects.request import DeviceRequest
from claims.membership import NO_MEMBERSHIP, Membership
from kube.device_types import GPU
from storage.clock import CLOCK, RunningClock
from storage.columns import identity, read_identity, read_moment
from storage.cursors import Query, hot_cursor, marks, moment, on_postgresql, run_together

SHUN = timedelta(minutes=5)
"""A node on which an attempt of the pod ended unbound ranks last for it so long."""


@dataclass(frozen=True, slots=True)
class Live:
    """A live allocation with its devices. `memory_total`: bytes of each whole device by (type, minor); `bus_id`: its
    PCI address, where it is known.

    `usable`: every device could be given still, on a node that takes pods. `hold_until` None: no hold any more.
    `pod_version`: the pod's resourceVersion as filter saw it, empty where it is not known. `bind_attempt`: its number,
    from 1; 0 for a hold.
    """

    id: uuid.UUID
    state: State
    node: str
    holder: Holder
    request: DeviceRequest
    claim_id: int | None
    grants: tuple[Grant, ...]
    memory_total: dict[tuple[str, int], int]
    bus_id: dict[tuple[str, int], str]
    usable: bool
    made_at: datetime
    hold_until: datetime | None
    pod_version: str = ""
    bind_attempt: int = 0
    kubelet_node: bool = False
    """The kubelet of its node chooses GPUs (mode device-plugin)."""
    groups: tuple[str, ...] = ()
    """Names of the groups of its devices (`allocations.ledger.groups`), sorted."""
    awaited: bool = False
    """Whether a node is reserved for the pod, which ends once it is bound."""
    membership: Membership = NO_MEMBERSHIP
    """Queue, gang and whether it is preemptible, as it counts."""

    def lapsed(self, now: datetime) -> bool:
        """Whether it is an expired hold that was not dropped yet."""
        return self.state is State.HELD and self.hold_until is not None and self.hold_until < now

    @property
    def by_reservation_pods(self) -> bool:
        """Whether reservation pods keep its GPUs from the kubelet's other pods."""
        return self.kubelet_node and not self.request.by_kubelet and any(grant.type == GPU for grant in self.grants)

    def taken_up(self, attempt: int) -> Live:
        """The same, reserved by that attempt."""
        return replace(self, state=State.RESERVED, bind_attempt=attempt)

    @property
    def amounts(self) -> dict[int, Amounts]:
        """Device id → (core percent, bytes)."""
        return {grant.device_id: (grant.core_percent, grant.memory_bytes or 0) for grant in self.grants}


@dataclass(frozen=True, slots=True)
class PodAllocation:
    """`live` None: the pod holds nothing. `shunned`: names of nodes to rank last."""

    live: Live | None
    shunned: frozenset[str]


_LIVE = ", ".join(f"'{state.value}'" for state in LIVE)
_SELECT = """
SELECT a.id, a.state, n.name, a.namespace, a.pod_name, a.pod_uid, a.holder, a.request, a.claim_id,
       a.created_at, a.hold_until, a.attempt_version, a.bind_attempt,
       g.device_id, g.uuid, g.type, g.minor, g.core_percent, g.memory_bytes, g.whole, d.memory_bytes,
       d.healthy AND d.presence = 'present' AND d.stranger = '' AND d.conflict = '' AND d.closed = '' AND NOT d.mig
         AND (d.gpu_group = '' OR d.gpu_group_open)
         AND n.state = 'ready' AND n.problem = '',
       d.bus_id, d.gpu_group, n.mode = 'device-plugin', a.pod_uid IN (SELECT m.pod_uid FROM nodes_makingway m),
       a.queue, a.gang, a.preemptible
FROM allocations_allocation a
JOIN nodes_node n ON n.id = a.node_id
LEFT JOIN allocations_allocationdevice g ON g.allocation_id = a.id AND g.live
LEFT JOIN nodes_device d ON d.id = g.device_id
WHERE """
_OF_POD = f"{_SELECT} a.pod_uid = %s AND (a.state IN ({_LIVE}) OR (a.state = 'failed' AND a.ended_at > %s))"
_OF_POD_NOW = (
    f"{_SELECT} a.pod_uid = %s AND (a.state IN ({_LIVE}) "
    "OR (a.state = 'failed' AND a.ended_at > clock_timestamp() - make_interval(secs => %s)))"
)
"""The same by PostgreSQL's own clock."""
_BY_ID = f"{_SELECT} a.id = %s AND a.state IN ({_LIVE})"
_REQUEST = msgspec.json.Decoder(DeviceRequest)


def read_pod_allocation(pod_uid: str, now: datetime) -> PodAllocation:
    """One query: the pod's live allocation with its devices, and the nodes to rank last for it."""
    with hot_cursor() as cursor:
        cursor.execute(_OF_POD, [pod_uid, moment(now - SHUN)])
        return pod_allocation_of(cursor.fetchall())


def read_pod_live(pod_uid: str, *, read_clock: Callable[[], datetime]) -> tuple[Live | None, RunningClock]:
    """The pod's live allocation, and the database's clock before it was read.

    On PostgreSQL it is one round trip, with the clock; `read_clock` reads it elsewhere.
    """
    if on_postgresql():
        ((now,),), rows = run_together([Query(CLOCK, []), pod_query(pod_uid)])
        return pod_allocation_of(rows).live, RunningClock(now.astimezone(UTC))
    clock = RunningClock(read_clock())
    return read_pod_allocation(pod_uid, clock.read_at).live, clock


def pod_query(pod_uid: str) -> Query:
    """The query of `read_pod_allocation` by PostgreSQL's clock, for a pipeline; `pod_allocation_of` reads its rows."""
    return Query(_OF_POD_NOW, [pod_uid, SHUN.total_seconds()])


def pod_allocation_of(rows: Sequence[Sequence[Any]]) -> PodAllocation:
    """What the rows of the query say."""
    return PodAllocation(
        live=_live([row for row in rows if row[1] != State.FAILED]),
        shunned=frozenset(row[2] for row in rows if row[1] == State.FAILED),
    )


def read_held(pod_uids: Sequence[str]) -> dict[str, Live]:
    """One query: the holds of these pods, by pod UID."""
    with hot_cursor() as cursor:
        cursor.execute(f"{_SELECT} a.pod_uid IN ({marks(pod_uids)}) AND a.state = 'held'", pod_uids)
        return lives_of(cursor.fetchall())


_COLUMNS = 29
_HELD_NAMES = ", ".join(f"c{place}" for place in range(_COLUMNS))
_ON_NODES = "(a.pod_uid, n.name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))"
_HELD_ROWS = f"{_SELECT} a.state = 'held' AND {_ON_NODES}"
HELD_ON = f"held ({_HELD_NAMES}) AS MATERIALIZED ({_HELD_ROWS})"
"""PostgreSQL, after WITH: the rows of holds on the nodes named. Parameters: UIDs of pods, and a node for each."""
HELD_ID, HELD_USABLE, HELD_DEVICE = "c0", "c21", "c13"


def lives_of(rows: Sequence[Sequence[Any]]) -> dict[str, Live]:
    """The allocations in these rows, by pod UID."""
    by_pod: dict[str, list[Sequence[Any]]] = defaultdict(list)
    for row in rows:
        by_pod[row[5]].append(row)
    return {uid: live for uid, of_pod in by_pod.items() if (live := _live(of_pod)) is not None}


def read_live(allocation_id: uuid.UUID) -> Live | None:
    """One live allocation with its devices; None when it has ended."""
    with hot_cursor() as cursor:
        cursor.execute(_BY_ID, [identity(allocation_id)])
        return _live(cursor.fetchall())


def request_of(stored: object) -> DeviceRequest:
    """The DeviceRequest in `Allocation.request`, as the ORM reads it."""
    return msgspec.convert(stored, DeviceRequest)


def _live(rows: Sequence[Sequence[Any]]) -> Live | None:
    if not rows:
        return None
    raw_id, state, node, namespace, pod_name, pod_uid, held_by, request, claim_id = rows[0][:9]
    made_at, until, pod_version, bind_attempt = rows[0][9:13]
    kubelet_node, awaited, queue, gang, preemptible = rows[0][24:_COLUMNS]
    created_at = read_moment(made_at)
    assert created_at is not None  # the column is never null
    grants: list[Grant] = []
    totals: dict[tuple[str, int], int] = {}
    bus_ids: dict[tuple[str, int], str] = {}
    groups: set[str] = set()
    usable = True
    for device_id, uuid_, kind, minor, core, memory, whole, total, device_usable, bus_id, group in (
        row[13:24] for row in rows
    ):
        if device_id is None:
            continue
        usable = usable and bool(device_usable)
        grants.append(Grant(device_id, uuid_, kind, minor, core, memory if total else None, bool(whole)))
        totals[kind, minor] = total
        if bus_id:
            bus_ids[kind, minor] = bus_id
        if group:
            groups.add(group)
    return Live(
        id=read_identity(raw_id),
        state=State(state),
        node=node,
        holder=Holder(namespace=namespace, identity=held_by, pod_name=pod_name, pod_uid=pod_uid),
        request=_REQUEST.decode(request),
        claim_id=claim_id,
        grants=tuple(grants),
        memory_total=totals,
        bus_id=bus_ids,
        usable=usable,
        made_at=created_at,
        hold_until=read_moment(until),
        pod_version=pod_version,
        bind_attempt=bind_attempt,
        kubelet_node=bool(kubelet_node),
        groups=tuple(sorted(groups)),
        awaited=bool(awaited),
        membership=Membership(queue, gang, bool(preemptible)),
    )
