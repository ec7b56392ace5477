"""What the ledger knows about one pod: its live allocation, and nodes that failed it lately."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import msgspec

from allocations.choices import LIVE, State
from allocations.engine.decision import Grant
from allocations.ledger.holder import Holder
from allocations.ledger.sql import identity, moment, read_identity, read_moment
from audit.cursors import hot_cursor
from claims.dialects.request import DeviceRequest

SHUN = timedelta(minutes=5)
"""A node on which the pod's attempt ended unbound ranks last for it that long (DESIGN §3, Holds)."""


@dataclass(frozen=True, slots=True)
class Live:
    """A live allocation with its devices. `memory_total`: bytes of each whole device by (type, minor); `bus_id`: its PCI address, if known.

    `usable`: every device is still one that could be given, on a node that takes pods. `hold_until` None: no longer a
    mere hold. `pod_version`: the pod's resourceVersion as filter saw it, empty where it is not known. `bind_attempt`: which one
    it is, from 1; 0 for a hold.
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
    awaited: bool = False
    """Whether a node makes way for the pod, which ends once it is bound."""

    def lapsed(self, now: datetime) -> bool:
        """Whether it is a hold past its time that nobody has dropped yet."""
        return self.state is State.HELD and self.hold_until is not None and self.hold_until < now

    def taken_up(self, attempt: int) -> Live:
        """The same, reserved by that attempt."""
        return replace(self, state=State.RESERVED, bind_attempt=attempt)

    @property
    def amounts(self) -> dict[int, tuple[int, int]]:
        """Device id → (core percent, bytes)."""
        return {grant.device_id: (grant.core_percent, grant.memory_bytes or 0) for grant in self.grants}


@dataclass(frozen=True, slots=True)
class Own:
    """`live` None: the pod holds nothing. `shunned`: names of nodes to rank last."""

    live: Live | None
    shunned: frozenset[str]


_LIVE = ", ".join(f"'{state.value}'" for state in LIVE)
_SELECT = """
SELECT a.id, a.state, n.name, a.namespace, a.pod_name, a.pod_uid, a.holder, a.request, a.claim_id,
       a.created_at, a.hold_until, a.attempt_version, a.bind_attempt,
       g.device_id, g.uuid, g.type, g.minor, g.core_percent, g.memory_bytes, g.whole, d.memory_bytes,
       d.healthy AND d.presence = 'present' AND d.stranger = '' AND d.conflict = '' AND n.state = 'ready' AND n.problem = '',
       d.bus_id, a.pod_uid IN (SELECT m.pod_uid FROM nodes_makingway m)
FROM allocations_allocation a
JOIN nodes_node n ON n.id = a.node_id
LEFT JOIN allocations_allocationdevice g ON g.allocation_id = a.id AND g.live
LEFT JOIN nodes_device d ON d.id = g.device_id
WHERE """
_OF_POD = f"{_SELECT} a.pod_uid = %s AND (a.state IN ({_LIVE}) OR (a.state = 'failed' AND a.ended_at > %s))"
_BY_ID = f"{_SELECT} a.id = %s AND a.state IN ({_LIVE})"
_REQUEST = msgspec.json.Decoder(DeviceRequest)


def read_own(pod_uid: str, now: datetime) -> Own:
    """One query: the pod's live allocation with its devices, and the nodes to rank last for it."""
    with hot_cursor() as cursor:
        cursor.execute(_OF_POD, [pod_uid, moment(now - SHUN)])
        rows = cursor.fetchall()
    return Own(
        live=_live([row for row in rows if row[1] != State.FAILED]),
        shunned=frozenset(row[2] for row in rows if row[1] == State.FAILED),
    )


def read_held(pod_uids: Sequence[str]) -> dict[str, Live]:
    """One query: the holds of these pods, by pod UID."""
    marks = ", ".join(["%s"] * len(pod_uids))
    with hot_cursor() as cursor:
        cursor.execute(f"{_SELECT} a.pod_uid IN ({marks}) AND a.state = 'held'", pod_uids)
        rows = cursor.fetchall()
    by_pod: dict[str, list[tuple[object, ...]]] = {}
    for row in rows:
        by_pod.setdefault(str(row[5]), []).append(row)
    return {uid: live for uid, of_pod in by_pod.items() if (live := _live(of_pod)) is not None}


def read_live(allocation_id: uuid.UUID) -> Live | None:
    """One live allocation with its devices; None when it has ended."""
    with hot_cursor() as cursor:
        cursor.execute(_BY_ID, [identity(allocation_id)])
        return _live(cursor.fetchall())


def request_of(stored: object) -> DeviceRequest:
    """The DeviceRequest in `Allocation.request`, as the ORM reads it."""
    return msgspec.convert(stored, DeviceRequest)


def _live(rows: list[tuple[object, ...]]) -> Live | None:
    if not rows:
        return None
    raw_id, state, node, namespace, pod_name, pod_uid, held_by, request, claim_id = rows[0][:9]
    made_at, until, pod_version, bind_attempt = rows[0][9:13]
    created_at = read_moment(made_at)
    assert created_at is not None  # the column is never null
    devices = [row[13:] for row in rows if row[13] is not None]
    return Live(
        id=read_identity(raw_id),
        state=State(str(state)),
        node=str(node),
        holder=Holder(namespace=str(namespace), identity=str(held_by), pod_name=str(pod_name), pod_uid=str(pod_uid)),
        request=_REQUEST.decode(str(request)),
        claim_id=claim_id if isinstance(claim_id, int) else None,
        grants=tuple(_grant(*device[:7], total=device[7]) for device in devices),
        memory_total={(str(device[2]), int(str(device[3]))): int(str(device[7])) for device in devices},
        bus_id={(str(device[2]), int(str(device[3]))): str(device[9]) for device in devices if device[9]},
        usable=all(device[8] for device in devices),
        made_at=created_at,
        hold_until=read_moment(until),
        pod_version=str(pod_version),
        bind_attempt=int(str(bind_attempt)),
        awaited=bool(rows[0][-1]),
    )


def _grant(
    device_id: object,
    device_uuid: object,
    type_name: object,
    minor: object,
    core: object,
    memory: object,
    whole: object,
    *,
    total: object,
) -> Grant:
    return Grant(
        device_id=int(str(device_id)),
        uuid=str(device_uuid),
        type=str(type_name),
        minor=int(str(minor)),
        core_percent=int(str(core)),
        memory_bytes=int(str(memory)) if total else None,
        whole=bool(whole),
    )
