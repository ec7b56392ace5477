"""Writes of what exists: inventories, health, states of nodes.

Called by REST (`PUT …/inventory/`), by the agents' endpoint, by the node watch and the collectors.
Kept true: each call is one transaction with its audit events; the same inventory twice writes
nothing; a device somebody holds is never deleted and never shrinks below what is held; every change
that placement could see stamps the devices with a new revision. `core_used` and `memory_used` are
the ledger's and are only read here, under the rows' locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from django.db import IntegrityError, transaction

from access.actors import SYSTEM, Actor
from access.choices import Role, TokenScope
from access.errors import Conflict, NotAllowed, NotFound
from access.transactions import atomic_retry
from audit import services as audit
from audit.announce import announce
from audit.choices import Kind
from audit.cursors import write_rows
from audit.happenings import Happening
from kube.device_types import GPU
from nodes import disputes, flapping, revisions
from nodes.advertise import advertise_soon
from nodes.changes import InventoryChange, compare, shape_islands, wired
from nodes.choices import NodeState, Presence
from nodes.flapping import Heeded
from nodes.mig import SICK, close_for_mig, follow_gpus
from nodes.models import Device, Node
from nodes.newcomers import mark_unread, read_soon

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from nodes.inventory import NodeShape

LONGEST_REASON = 200
MOST_NAMED = 3
"""Disputed devices that an event names."""


def require_inventory_writer(actor: Actor, *, node: str) -> None:
    """Refuse unless an admin, a machine of scope `inventory`, or the node's own agent. Raises NotAllowed."""
    if actor.scope == TokenScope.AGENT:
        actor.require_node(node)
    elif actor.scope == TokenScope.REST:
        if actor.role != Role.ADMIN:
            raise NotAllowed("only admins and machine accounts of scope inventory may change what a node has")
    else:
        actor.require_scope(TokenScope.INVENTORY)


def inventory_put(*, shape: NodeShape, actor: Actor, now: datetime) -> tuple[Node, bool]:
    """Make the node's devices and links exactly the shape's; (node, whether it was registered by this).

    Of a shape that says which types it reports, devices of others, and without GPUs the links, stay as they are. A device left out is
    marked `vanished` while somebody holds it, else removed. One that another node has stays there (`nodes.disputes`). Raises NotAllowed,
    Conflict (a held device would change under its holder).
    """
    require_inventory_writer(actor, node=shape.name)
    shape, island = wired(shape)
    try:
        return _inventory_put(shape=shape, island=island, actor=actor, now=now)
    except IntegrityError:
        # another node's inventory took a UUID in between: this time it is seen
        return _inventory_put(shape=shape, island=island, actor=actor, now=now)


@atomic_retry
def _inventory_put(*, shape: NodeShape, island: Mapping[int, int], actor: Actor, now: datetime) -> tuple[Node, bool]:
    node, created = _locked_node(shape, now=now)
    settled, disputed = disputes.settle_uuids(shape, node=node, now=now)
    if settled is not shape:
        shape, island = settled, shape_islands(settled)
    rows = _lock_devices(node)
    back = {row.uuid for row in rows if row.presence == Presence.REMOVED}
    change = compare(rows, shape, island=island, now=now)
    write_rows(change.noted, flapping.COLUMNS)
    unread = mark_unread([*change.added, *(row for row in change.returned if row.uuid in back)])
    links = [list(link) for link in shape.links]
    before = (node.mode, dict(node.labels), node.links, node.state)
    if shape.owns(GPU):
        node.links = links
    if not node.cluster_uid and (created or shape.owns(GPU)):
        node.mode, node.labels = shape.mode, dict(shape.labels)  # else the Node object's own (nodes.cluster)
    if node.state == NodeState.GONE:
        node.state, node.problem = NodeState.READY, ""
    was_disputed, before_disputed = disputes.disputed_of(node), node.disputed
    node.disputed = disputed
    newly = disputes.disputed_of(node)
    if disputed != before_disputed:  # the shape in it, too, is what the node said last
        Node.objects.filter(pk=node.pk).update(disputed=disputed)
    node_changed = before != (node.mode, dict(node.labels), node.links, node.state) or was_disputed != newly
    if not (created or node_changed or change):
        return node, False
    if node_changed or created:
        node.changed_at = now
        node.save(update_fields=["mode", "labels", "links", "state", "problem", "changed_at"])
    placement_changed = before[::2] != (node.mode, node.links) or before[3] != node.state
    with revisions.writing() as revision:
        _apply(change, node=node, revision=revision)
        if placement_changed:
            Device.objects.filter(node=node).update(revision=revision)
        close_for_mig(node_id=node.pk, revision=revision, now=now)
    _tell(change, node=node, created=created, actor=actor, now=now, disputed=newly if newly != was_disputed else ())
    announce(node=node.name)
    if unread:
        read_soon()
    advertise_soon(node=node.name)
    return node, created


@atomic_retry
def devices_health(*, node_name: str, health: Mapping[str, str], actor: Actor, now: datetime) -> tuple[Device, ...]:
    """Set devices' health by UUID: an empty reason means well. The devices that changed; unknown UUIDs are skipped.

    Raises NotFound (no such node), NotAllowed.
    """
    require_inventory_writer(actor, node=node_name)
    node = _existing(node_name)
    if node.disputed:
        disputes.hear(node, health)
    changed, noted = [], []
    rows = Device.objects.select_for_update(no_key=True).filter(node=node, uuid__in=health, presence=Presence.PRESENT)
    for device in rows.order_by("id"):
        heeded = flapping.heed(device, health[device.uuid], now=now)
        if heeded is Heeded.CHANGED:
            changed.append(device)
        elif heeded is Heeded.NOTED:
            noted.append(device)
    write_rows(noted, flapping.COLUMNS)
    return _health_changed(changed, node=node, actor=actor, now=now)


def _health_changed(
    changed: list[Device], *, node: Node, actor: Actor, now: datetime, told: Mapping[int, str] | None = None
) -> tuple[Device, ...]:
    """Write and tell it, with the MIG instances that follow. `told`: more words of a device's event, by id."""
    changed = [*changed, *_instances_following(changed, now=now)]
    if not changed:
        return ()
    with revisions.writing() as revision:
        for device in changed:
            device.revision, device.changed_at = revision, now
        columns = ("healthy", "health_reason", "changed_at", "revision", *flapping.COLUMNS)
        write_rows(changed, columns)
    more = told or {}
    audit.record_many(
        [_health_event(device, node=node, actor=actor, now=now, more=more.get(device.pk, "")) for device in changed]
    )
    if any(device.healthy for device in changed):
        announce(node=node.name)
    advertise_soon(node=node.name)
    return tuple(changed)


def health_settle(*, now: datetime) -> int:
    """Health that flapped and was steady since counts from now on; of how many devices. Called by the beat, idempotent."""
    names = _steady(now).order_by("node__name").values_list("node__name", flat=True).distinct()
    return sum(_settle_node(node_name=name, now=now) for name in list(names))


def _steady(now: datetime) -> QuerySet[Device]:
    flapped = Device.objects.filter(health_said__isnull=False, flapped_at__lte=now - flapping.STEADY)
    return flapped.filter(presence=Presence.PRESENT)


@atomic_retry
def _settle_node(*, node_name: str, now: datetime) -> int:
    node = _existing(node_name)
    steady = _steady(now).filter(node=node).select_for_update(no_key=True).order_by("id")
    told = {device.pk: (device, flapping.settle(device, now=now)) for device in steady}
    changed = [device for device, _ in told.values()]
    follow_gpus(changed)
    _health_changed(changed, node=node, actor=SYSTEM, now=now, told={pk: words for pk, (_, words) in told.items()})
    return len(changed)


def disputes_settle(*, now: datetime) -> int:
    """Nodes get the devices that they claimed and that nobody else has any more; how many nodes changed. Called by the beat, idempotent."""
    return sum(_disputes_settle_node(node_name=node.name, now=now) for node in disputes.may_be_free())


@atomic_retry
def _disputes_settle_node(*, node_name: str, now: datetime) -> bool:
    node = Node.objects.select_for_update(no_key=True).get(name=node_name)
    claimed = disputes.claimed_by(node)
    if claimed is None or node.state == NodeState.GONE:
        return False
    rows = Device.objects.filter(node=node, presence=Presence.PRESENT)
    shape = disputes.as_known(claimed.shape, well={row.uuid: flapping.is_said_well(row) for row in rows})
    shape, island = wired(shape)
    _inventory_put(shape=shape, island=island, actor=SYSTEM, now=now)
    return True


def _instances_following(changed: Sequence[Device], *, now: datetime) -> list[Device]:
    """MIG instances whose health changes with that of their GPUs. One of which something else is wrong stays sick when its GPU is well again."""
    gpus = {device.uuid: device for device in changed if device.mig}
    if not gpus:
        return []
    known = {device.pk for device in changed}
    found = []
    rows = Device.objects.select_for_update(no_key=True).filter(parent__in=gpus, presence=Presence.PRESENT)
    for device in rows.exclude(pk__in=known).order_by("id"):
        gpu = gpus[device.parent]
        if gpu.healthy and not device.healthy and device.health_reason.startswith(SICK):
            device.healthy, device.health_reason = True, ""
        elif not gpu.healthy and device.healthy:
            device.healthy, device.health_reason = False, f"{SICK}: {gpu.health_reason}"[:LONGEST_REASON]
        else:
            continue
        device.changed_at = now
        found.append(device)
    return found


@atomic_retry
def node_state_set(*, node: Node, state: NodeState, problem: str, actor: Actor, now: datetime) -> bool:
    """Move the node to a state, with the reason why nothing new is placed there; whether that changed anything."""
    require_inventory_writer(actor, node=node.name)
    problem = problem[:LONGEST_REASON]
    locked = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    if (locked.state, locked.problem) == (state, problem):
        return False
    before = locked.state
    _lock_devices(node)
    Node.objects.filter(pk=node.pk).update(state=state, problem=problem, changed_at=now)
    with revisions.writing() as revision:
        Device.objects.filter(node=node).update(revision=revision)
    node.state, node.problem, node.changed_at = state, problem, now
    audit.record(
        kind=Kind.NODE_HEALTH,
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
def node_remove(*, node: Node, actor: Actor, now: datetime, even_if_held: bool = False) -> bool:
    """Mark the node gone and its devices removed (vanished where held); whether that changed anything.

    Rows stay: the history of allocations refers to them. Raises Conflict while devices are held, unless
    `even_if_held` (the cluster says that the node is gone).
    """
    actor.require_admin()
    locked = Node.objects.select_for_update(no_key=True).get(pk=node.pk)
    devices = [device for device in _lock_devices(node) if device.presence != Presence.REMOVED]
    held = [device for device in devices if device.core_used or device.memory_used]
    if held and not even_if_held:
        raise Conflict(f"{len(held)} devices of {node.name} are held; release them first")
    if locked.state == NodeState.GONE and len(held) == len(devices):
        return False
    with revisions.writing() as revision:
        for device in devices:
            device.presence = Presence.VANISHED if device in held else Presence.REMOVED
            device.healthy, device.health_reason = False, "the node is gone"
            device.changed_at, device.revision = now, revision
        write_rows(devices, ["presence", "healthy", "health_reason", "changed_at", "revision"])
    Node.objects.filter(pk=node.pk).update(state=NodeState.GONE, problem="the node is gone", changed_at=now)
    node.state, node.problem, node.changed_at = NodeState.GONE, "the node is gone", now
    audit.record(
        kind=Kind.NODE_REMOVED,
        message=f"{node.name} is gone" + (f"; {len(held)} of its devices are still held" if held else ""),
        actor=actor.name,
        name=node.name,
        node=node.name,
        now=now,
        data={"held": [device.uuid for device in held]},
    )
    return True


def _locked_node(shape: NodeShape, *, now: datetime) -> tuple[Node, bool]:
    """The node's row, locked, made if missing."""
    node = Node.objects.select_for_update(no_key=True).filter(name=shape.name).first()
    if node is not None:
        return node, False
    try:
        with transaction.atomic():
            return Node.objects.create(name=shape.name, mode=shape.mode, registered_at=now, changed_at=now), True
    except IntegrityError:
        # another inventory registered it a moment ago
        return Node.objects.select_for_update(no_key=True).get(name=shape.name), False


def _lock_devices(node: Node) -> list[Device]:
    """Every row of the node, locked in the one order that all writers keep."""
    return list(Device.objects.select_for_update(no_key=True).filter(node=node).order_by("id"))


def _existing(name: str) -> Node:
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
    """Write the rows: first those that free a minor, then those that take it (the minor is unique a node and type)."""
    for device in (*change.rows, *change.added):
        device.node, device.revision = node, revision
    for device in change.renumbered:
        Device.objects.filter(pk=device.pk).update(minor=PARKED_MINOR + device.pk)
    write_rows(change.leaving, _WRITTEN)
    write_rows(change.staying, _WRITTEN)
    Device.objects.bulk_create(change.added)


PARKED_MINOR = 1_000_000_000
"""Where a row waits, within the transaction, while devices swap minors."""


def _tell(
    change: InventoryChange,
    *,
    node: Node,
    created: bool,
    actor: Actor,
    now: datetime,
    disputed: Sequence[disputes.Disputed],
) -> None:
    """`disputed`: what the node claims in vain, where that is new."""
    count = len(change.added)
    theirs = ", ".join(f"{one.uuid} (of {one.node})" for one in disputed[:MOST_NAMED])
    left_out = f"{len(disputed)} claimed that other nodes have: {theirs}" if disputed else ""
    if created:
        kind, message = Kind.NODE_REGISTERED, f"{node.name} registered with {count} devices"
    else:
        summary = change.summary or ("" if left_out else "labels or links")
        kind, message = Kind.NODE_INVENTORY, f"inventory of {node.name} changed: {summary}".rstrip(": ")
    if left_out:
        message += f"; {left_out}"
    happenings = [
        Happening(
            kind=kind,
            message=message,
            actor=actor.name,
            at=now,
            name=node.name,
            node=node.name,
            data=change.lists() | ({"disputed": [one.uuid for one in disputed]} if disputed else {}),
        )
    ]
    happenings += [_health_event(device, node=node, actor=actor, now=now) for device in change.health]
    audit.record_many(happenings)


def _health_event(device: Device, *, node: Node, actor: Actor, now: datetime, more: str = "") -> Happening:
    name = f"{device.type} {device.minor} of {node.name}"
    message = f"{name} is well again" if device.healthy else f"{name} is unhealthy: {device.health_reason}"
    return Happening(
        kind=Kind.DEVICE_HEALTH,
        message=f"{message}; {more}" if more else message,
        actor=actor.name,
        at=now,
        name=node.name,
        node=node.name,
        data={"uuid": device.uuid, "healthy": device.healthy, "reason": device.health_reason},
    )
