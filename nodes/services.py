"""Writes of nodes and devices: inventories, health, states.

Called by REST (`PUT …/inventory/`), agents' frames, the node watch and periodic tasks. Invariants: each call is one
transaction with its audit events; the same inventory twice writes nothing; a held device is never deleted and never
made smaller than what is held; every change that placement could see stamps the devices with a new revision.
`core_used` and `memory_used` belong to the ledger, and are only read here, under the rows' locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import IntegrityError, transaction

from access.actors import SYSTEM, Actor
from access.choices import Role, TokenScope
from access.errors import Conflict, NotAllowed, NotFound
from audit import services as audit
from audit.choices import EventKind
from audit.events import NewEvent
from audit.requeue_notify import announce
from kube.device_types import GPU
from nodes import disputed_devices, flapping
from nodes.advertise import advertise_soon
from nodes.choices import NodeState, Presence
from nodes.flapping import HealthChange
from nodes.frame_order import FrameStamp, frame_accept
from nodes.inventory_diff import InventoryChange, compare, shape_islands, wired
from nodes.mig import close_for_mig, follow_gpus, instances_following
from nodes.models import Device, Node
from nodes.revisions import transaction_revision
from nodes.unverified_devices import mark_unverified, verify_soon
from storage.cursors import write_rows
from storage.transactions import atomic_retry

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from nodes.inventory import NodeShape

LONGEST_REASON = 200
ROWS_A_STATEMENT = 32
"""New devices a statement: binding the values of 256 would hold the interpreter for 150 ms."""
MOST_NAMED = 3
"""Disputed devices that an event names."""


def require_inventory_writer(actor: Actor, *, node: str) -> None:
    """Require an admin, a machine account of scope `inventory`, or the node's own agent. Raises NotAllowed."""
    if actor.scope == TokenScope.AGENT:
        actor.require_node(node)
    elif actor.scope == TokenScope.REST:
        if actor.role != Role.ADMIN:
            raise NotAllowed("only admins and machine accounts of scope inventory may change what a node has")
    else:
        actor.require_scope(TokenScope.INVENTORY)


def inventory_put(
    *, shape: NodeShape, actor: Actor, now: datetime, frame: FrameStamp | None = None
) -> tuple[Node, bool]:
    """Make the node's devices and links exactly the shape's; (node, whether it was registered by this call).

    Devices of types that the shape does not report stay, and without GPUs the links. A device left out is `vanished`
    while held, else removed. One that another node has stays there (`nodes.disputed_devices`). `frame`: of the agent's
    frame, None for another source. Raises NotAllowed, Conflict (a held device would change), Unavailable (a newer frame
    was stored).
    """
    require_inventory_writer(actor, node=shape.name)
    shape, island = wired(shape)
    try:
        return _inventory_put(shape=shape, island=island, actor=actor, now=now, frame=frame)
    except IntegrityError:
        # another node's inventory took a UUID in between
        return _inventory_put(shape=shape, island=island, actor=actor, now=now, frame=frame)


@atomic_retry
def _inventory_put(
    *, shape: NodeShape, island: Mapping[int, int], actor: Actor, now: datetime, frame: FrameStamp | None = None
) -> tuple[Node, bool]:
    node, created = _locked_node(shape, now=now)
    if frame is not None:
        frame_accept(node=node, frame=frame, now=now)
    settled, claims = disputed_devices.settle_uuids(shape, node=node, now=now)
    disputed = disputed_devices.kept_claims(node, shape, claims)
    if settled is not shape:
        shape, island = settled, shape_islands(settled)
    rows = _lock_devices(node)
    back = {row.uuid for row in rows if row.presence == Presence.REMOVED}
    change = compare(rows, shape, island=island, now=now)
    write_rows(change.noted, flapping.COLUMNS)
    has_unverified = mark_unverified([*change.added, *(row for row in change.returned if row.uuid in back)])
    links = [list(link) for link in shape.links]
    before = (node.mode, dict(node.labels), node.links, node.state)
    if shape.owns(GPU):
        node.links = links
    if not node.cluster_uid and (created or shape.owns(GPU)):
        node.mode, node.labels = shape.mode, dict(shape.labels)  # else the Node object's (nodes.cluster)
    if node.state == NodeState.GONE:
        node.state, node.problem = NodeState.READY, ""
    was_disputed, before_disputed = disputed_devices.disputed_of(node), node.disputed
    node.disputed = disputed
    newly = disputed_devices.disputed_of(node)
    if disputed != before_disputed:  # it also has the shape
        Node.objects.filter(pk=node.pk).update(disputed=disputed)
    node_changed = before != (node.mode, dict(node.labels), node.links, node.state) or was_disputed != newly
    if not (created or node_changed or change):
        return node, False
    if node_changed or created:
        node.changed_at = now
        node.save(update_fields=["mode", "labels", "links", "state", "problem", "changed_at"])
    placement_changed = before[::2] != (node.mode, node.links) or before[3] != node.state
    revision = transaction_revision()
    _apply(change, node=node, revision=revision)
    if placement_changed:
        Device.objects.filter(node=node).update(revision=revision)
    close_for_mig(node_id=node.pk, revision=revision, now=now)
    new_disputes = newly if newly != was_disputed else ()
    _record_events(change, node=node, created=created, actor=actor, now=now, disputed=new_disputes)
    announce(node=node.name)
    if has_unverified:
        verify_soon()
    advertise_soon(node=node.name)
    return node, created


@atomic_retry
def devices_health(
    *, node_name: str, health: Mapping[str, str], actor: Actor, now: datetime, frame: FrameStamp | None = None
) -> tuple[Device, ...]:
    """Set devices' health by UUID, empty for healthy ones; the devices that changed. Unknown UUIDs are ignored.

    `frame`: as for `inventory_put`. Raises NotFound (no such node), NotAllowed, Unavailable (a newer frame was stored).
    """
    require_inventory_writer(actor, node=node_name)
    node = existing_node(node_name)
    if frame is not None:
        frame_accept(node=node, frame=frame, now=now)
    if node.disputed:
        disputed_devices.record_health(node, health)
    changed, noted = [], []
    rows = Device.objects.select_for_update(no_key=True).filter(node=node, uuid__in=health, presence=Presence.PRESENT)
    for device in rows.order_by("id"):
        applied = flapping.apply_report(device, health[device.uuid], now=now)
        if applied is HealthChange.CHANGED:
            changed.append(device)
        elif applied is HealthChange.NOTED:
            noted.append(device)
    write_rows(noted, flapping.COLUMNS)
    return _health_changed(changed, node=node, actor=actor, now=now)


def _health_changed(
    changed: list[Device], *, node: Node, actor: Actor, now: datetime, notes: Mapping[int, str] | None = None
) -> tuple[Device, ...]:
    """Write the devices, MIG instances that follow them, and events. `notes`: additions to events, by device id."""
    changed = [*changed, *instances_following(changed, now=now)]
    if not changed:
        return ()
    revision = transaction_revision()
    for device in changed:
        device.revision, device.changed_at = revision, now
    write_rows(changed, ("healthy", "health_reason", "changed_at", "revision", *flapping.COLUMNS))
    notes = notes or {}
    audit.record_many(
        [_health_event(device, node=node, actor=actor, now=now, note=notes.get(device.pk, "")) for device in changed]
    )
    if any(device.healthy for device in changed):
        announce(node=node.name)
    advertise_soon(node=node.name)
    return tuple(changed)


def health_settle(*, now: datetime) -> int:
    """Let health that flapped and is steady take effect; of how many devices. Idempotent."""
    names = _steady(now).order_by("node__name").values_list("node__name", flat=True).distinct()
    return sum(_settle_node(node_name=name, now=now) for name in list(names))


def _steady(now: datetime) -> QuerySet[Device]:
    flapped = Device.objects.filter(health_said__isnull=False, flapped_at__lte=now - flapping.STEADY)
    return flapped.filter(presence=Presence.PRESENT)


@atomic_retry
def _settle_node(*, node_name: str, now: datetime) -> int:
    node = existing_node(node_name)
    steady = _steady(now).filter(node=node).select_for_update(no_key=True).order_by("id")
    changed = list(steady)
    notes = {device.pk: flapping.settle(device, now=now) for device in changed}
    follow_gpus(changed)
    _health_changed(changed, node=node, actor=SYSTEM, now=now, notes=notes)
    return len(changed)


def disputes_settle(*, now: datetime) -> int:
    """Give nodes the devices that they claim and no other node has any more; how many nodes changed. Idempotent."""
    return sum(_disputes_settle_node(node_name=node.name, now=now) for node in disputed_devices.nodes_with_released())


@atomic_retry
def _disputes_settle_node(*, node_name: str, now: datetime) -> bool:
    node = Node.objects.select_for_update(no_key=True).get(name=node_name)
    claimed = disputed_devices.claimed_by(node)
    if claimed is None or node.state == NodeState.GONE:
        return False
    rows = Device.objects.filter(node=node, presence=Presence.PRESENT)
    healthy = {row.uuid: flapping.was_reported_healthy(row) for row in rows}
    shape, island = wired(disputed_devices.with_health(claimed.shape, healthy=healthy))
    _inventory_put(shape=shape, island=island, actor=SYSTEM, now=now)
    return True


@atomic_retry
def node_state_set(*, node: Node, state: NodeState, problem: str, actor: Actor, now: datetime) -> bool:
    """Set the node's state, and why nothing new is placed there; whether that changed anything."""
    require_inventory_writer(actor, node=node.name)
    problem = problem[:LONGEST_REASON]
    locked = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    if (locked.state, locked.problem) == (state, problem):
        return False
    before = locked.state
    _lock_devices(node)
    Node.objects.filter(pk=node.pk).update(state=state, problem=problem, changed_at=now)
    Device.objects.filter(node=node).update(revision=transaction_revision())
    node.state, node.problem, node.changed_at = state, problem, now
    audit.record(
        kind=EventKind.NODE_HEALTH,
        message=f"{node.name} is {state}" + (f": {problem}" if problem else ""),
        actor=actor.name,
        name=node.name,
        node=node.name,
        now=now,
        data={"before": before, "state": state, "problem": problem},
    )
    if state == NodeState.READY:
        announce(node=node.name)
    return True


@atomic_retry
def node_remove(*, node: Node, actor: Actor, now: datetime, only_gone: bool = False) -> bool:
    """Mark the node gone and its devices removed; whether that changed anything. Raises Conflict while any is held.

    Rows stay: the history of allocations refers to them. `only_gone`: where the node is gone, and has been since
    `node` was read.
    """
    actor.require_admin()
    locked = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    if only_gone and (locked.state, locked.changed_at) != (NodeState.GONE, node.changed_at):
        return False
    devices = [device for device in _lock_devices(node) if device.presence != Presence.REMOVED]
    held = sum(device.is_allocated for device in devices)
    if held:
        raise Conflict(f"{held} devices of {node.name} are held; release them first")
    if locked.state == NodeState.GONE and not devices:
        return False
    revision = transaction_revision()
    for device in devices:
        device.presence = Presence.REMOVED
        device.healthy, device.health_reason = False, "the node is gone"
        device.changed_at, device.revision = now, revision
    write_rows(devices, ["presence", "healthy", "health_reason", "changed_at", "revision"])
    Node.objects.filter(pk=node.pk).update(state=NodeState.GONE, problem="the node is gone", changed_at=now)
    node.state, node.problem, node.changed_at = NodeState.GONE, "the node is gone", now
    audit.record(
        kind=EventKind.NODE_REMOVED,
        message=f"{node.name} is gone",
        actor=actor.name,
        name=node.name,
        node=node.name,
        now=now,
    )
    return True


def _locked_node(shape: NodeShape, *, now: datetime) -> tuple[Node, bool]:
    """The node's row, locked; (row, whether it was created)."""
    node = Node.objects.select_for_update(no_key=True).filter(name=shape.name).first()
    if node is not None:
        return node, False
    try:
        with transaction.atomic():
            return Node.objects.create(name=shape.name, mode=shape.mode, registered_at=now, changed_at=now), True
    except IntegrityError:
        # another inventory registered it in between
        return Node.objects.select_for_update(no_key=True).get(name=shape.name), False


def _lock_devices(node: Node) -> list[Device]:
    """Every row of the node, locked in the order of all writers."""
    return list(Device.objects.select_for_update(no_key=True).filter(node=node).order_by("id"))


def existing_node(name: str) -> Node:
    """The node of that name. Raises NotFound."""
    node = Node.objects.filter(name=name).first()
    if node is None:
        raise NotFound(f"there is no node {name}")
    return node


_WRITTEN = (
    "type",
    "minor",
    "model",
    "memory_bytes",
    "numa",
    "pcie",
    "bus_id",
    "island",
    "healthy",
    "health_reason",
    *flapping.COLUMNS,
    "presence",
    "stranger",
    "closed",
    "mig",
    "parent",
    "profile",
    "changed_at",
    "revision",
)


def _apply(change: InventoryChange, *, node: Node, revision: int) -> None:
    """Write the rows: those that free a minor before those that take it (minors are unique per node and type)."""
    for device in (*change.rows, *change.added):
        device.node, device.revision = node, revision
    for device in change.renumbered:
        Device.objects.filter(pk=device.pk).update(minor=PARKED_MINOR + device.pk)
    write_rows(change.leaving, _WRITTEN)
    write_rows(change.staying, _WRITTEN)
    Device.objects.bulk_create(change.added, batch_size=ROWS_A_STATEMENT)


PARKED_MINOR = 1_000_000_000
"""Minors, plus the id, of rows that swap theirs, within the transaction."""


def _record_events(
    change: InventoryChange,
    *,
    node: Node,
    created: bool,
    actor: Actor,
    now: datetime,
    disputed: Sequence[disputed_devices.Disputed],
) -> None:
    """`disputed`: devices that the node claims in vain, if new."""
    count = len(change.added)
    theirs = ", ".join(f"{one.uuid} (of {one.node})" for one in disputed[:MOST_NAMED])
    left_out = f"{len(disputed)} claimed that other nodes have: {theirs}" if disputed else ""
    if created:
        kind, message = EventKind.NODE_REGISTERED, f"{node.name} registered with {count} devices"
    else:
        summary = change.summary or ("" if left_out else "labels or links")
        kind, message = EventKind.NODE_INVENTORY, f"inventory of {node.name} changed: {summary}".rstrip(": ")
    if left_out:
        message += f"; {left_out}"
    events = [
        NewEvent(
            kind=kind,
            message=message,
            actor=actor.name,
            at=now,
            name=node.name,
            node=node.name,
            data=change.lists() | ({"disputed": [one.uuid for one in disputed]} if disputed else {}),
        )
    ]
    events += [_health_event(device, node=node, actor=actor, now=now) for device in change.health]
    audit.record_many(events)


def _health_event(device: Device, *, node: Node, actor: Actor, now: datetime, note: str = "") -> NewEvent:
    name = f"{device.type} {device.minor} of {node.name}"
    message = f"{name} is well again" if device.healthy else f"{name} is unhealthy: {device.health_reason}"
    return NewEvent(
        kind=EventKind.DEVICE_HEALTH,
        message=f"{message}; {note}" if note else message,
        actor=actor.name,
        at=now,
        name=node.name,
        node=node.name,
        data={"uuid": device.uuid, "healthy": device.healthy, "reason": device.health_reason},
    )
