"""Devices that are closed to new pods: a pod runs with them, or may, that has no row in the ledger (LEASE-2, LEASE-6,
DEV-8, DEV-9).

Called by every comparison, and before the devices of a new node are opened. Invariants: a holder keeps its device; a
device is opened again only by a comparison that read the whole cluster after it was closed and found no cause; the
causes are determined anew each time, so that no device is closed and opened by turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec

from allocations.models import AllocationDevice
from allocations.reconcile.adoption import Closed, of_types
from allocations.reconcile.report import ACTOR, Reconciled
from allocations.reconcile.rows import devices_by_node
from audit.choices import EventKind
from audit.events import NewEvent
from audit.requeue_notify import announce
from audit.services import record_many
from claims.admission.recognise import looks_ours
from claims.dialects.parse import asks_device_plugin
from kube.device_types import GPU
from kube.listing import Unreadable as UnreadableObject
from kube.objects import Pod
from nodes.choices import Presence
from nodes.inventory_diff import DISPLACED_MINOR
from nodes.mig import mig_closings
from nodes.models import Device, KubeletCheckpoint
from nodes.revisions import next_revision
from storage.transactions import atomic_retry

LONGEST: Final = 300
BATCH: Final = 500


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct):
    phase: str = ""


class _Placed(msgspec.Struct):
    """The least of a pod that cannot be decoded."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Group(NamedTuple):
    """Devices that change alike. `before`, `after`: why they are closed, empty for open."""

    node: str
    type: str
    before: str
    after: str


def closed_devices() -> Closed:
    """The devices that are closed. Read before the cluster: `close` opens none that are closed later."""
    return dict(Device.objects.exclude(closed="").exclude(presence=Presence.REMOVED).values_list("pk", "closed"))


def unreported_devices(suspects: Iterable[Pod], waiting: Collection[str] = ()) -> Closed:
    """GPUs of nodes where pods without devices run with GPUs of a device plugin, and no kubelet's record says which.

    `waiting`: nodes whose devices are not open yet. A pod that a record leaves out has none.
    """
    by_plugin = [pod for pod in suspects if asks_device_plugin(pod)]
    names = {pod.spec.node_name for pod in by_plugin} - set(waiting)
    recorded = set(KubeletCheckpoint.objects.filter(node__name__in=names).values_list("node__name", flat=True))
    found: Closed = {}
    there = devices_by_node(names - recorded)
    for pod in by_plugin:
        why = f"pod {pod.metadata.namespace}/{pod.metadata.name} runs with GPUs that no record of the kubelet names"
        for pk in of_types(there.get(pod.spec.node_name, ()), {GPU}):
            found.setdefault(pk, why)
    return found


def undecodable_devices(*, objects: Sequence[UnreadableObject], known: Collection[tuple[str, str]]) -> Closed:
    """Devices of nodes where pods run that cannot be decoded, and name resources or annotations of gpuplane.

    `known`: (namespace, name) of pods that have a row.
    """
    placed: dict[str, UnreadableObject] = {}
    for one in objects:
        try:
            pod = msgspec.json.decode(one.raw, type=_Placed)
        except msgspec.MsgspecError:
            continue  # which node it is on cannot be read either; it is reported
        running = pod.spec.node_name and pod.status.phase not in {"Succeeded", "Failed"}
        if running and one.key not in known and looks_ours(msgspec.Raw(one.raw)):
            placed[pod.spec.node_name] = one
    found: Closed = {}
    for node, devices in devices_by_node(placed.keys()).items():
        namespace, name = placed[node].key
        why = f"pod {namespace}/{name} runs there and cannot be read"
        found |= dict.fromkeys(of_types(devices, None), why)
    return found


def _replacements() -> Closed:
    """Devices that an inventory brought in place of others that are still held: they may be the same, renamed.

    Not GPUs, whose UUIDs never change.
    """
    held = AllocationDevice.objects.filter(
        live=True, device__presence=Presence.VANISHED, device__minor__gte=DISPLACED_MINOR
    ).exclude(type=GPU)
    found: Closed = {}
    for node_id, kind, minor, uuid in held.values_list("device__node_id", "type", "minor", "uuid").distinct():
        there = Device.objects.filter(node=node_id, type=kind, minor=minor, presence=Presence.PRESENT)
        found |= dict.fromkeys(there.values_list("pk", flat=True), f"{uuid}, which was in its place, is still held")
    return found


def close(wanted: Closed, *, now: datetime, before: Closed | None = None) -> Reconciled:
    """Close these devices, and those that MIG forbids.

    `before`: devices that were closed, to be opened where nothing closes them any more.
    """
    causes = {**_replacements(), **mig_closings(), **wanted}
    ids = sorted({*causes, *(before or {})})
    changes: dict[str, dict[_Group, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for start in range(0, len(ids), BATCH):
        rows = Device.objects.filter(pk__in=ids[start : start + BATCH]).exclude(presence=Presence.REMOVED)
        for pk, node, kind, minor, closed in rows.order_by("minor").values_list(
            "pk", "node__name", "type", "minor", "closed"
        ):
            after = causes.get(pk, "")[:LONGEST]
            if closed == after or (not after and closed != (before or {}).get(pk)):
                continue  # unchanged; or closed anew since, by somebody who knows more
            changes[node][_Group(node, kind, closed, after)].append((pk, minor))
    return Reconciled.total([_write(node, changes[node], now) for node in sorted(changes)])


@atomic_retry
def _write(node: str, groups: Mapping[_Group, Sequence[tuple[int, int]]], now: datetime) -> Reconciled:
    ids = sorted(pk for listed in groups.values() for pk, _ in listed)
    locked = list(Device.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk"))
    is_now = {device.pk: device.closed for device in locked}
    mig = mig_closings(node_id=locked[0].node_id) if locked else {}
    revision = next_revision()
    closed, opened = 0, 0
    events: list[NewEvent] = []
    for group, listed in groups.items():
        unchanged = {pk: minor for pk, minor in listed if is_now.get(pk) == group.before}
        if not group.after:
            unchanged = {pk: minor for pk, minor in unchanged.items() if pk not in mig}
        Device.objects.filter(pk__in=unchanged).update(closed=group.after, revision=revision, changed_at=now)
        if not unchanged or (group.before and group.after):
            continue
        closed += len(unchanged) if group.after else 0
        opened += len(unchanged) if group.before else 0
        events.append(_event(group, sorted(unchanged.values()), now))
    record_many(events)
    if opened:
        announce(node=node)
    return Reconciled(closed=closed, reopened=opened, lines=tuple(event.message for event in events))


def _event(group: _Group, minors: Sequence[int], now: datetime) -> NewEvent:
    which = f"{group.type} {','.join(map(str, minors))} of {group.node}"
    namespace, name = _pod_of(group.after)
    return NewEvent(
        kind=EventKind.DEVICE_TAKEN,
        message=f"{which} closed to newcomers: {group.after}" if group.after else f"{which} open to newcomers again",
        actor=ACTOR,
        at=now,
        namespace=namespace,
        name=name,
        node=group.node,
        data={"type": group.type, "minors": minors, "closed": group.after},
    )


def _pod_of(why: str) -> tuple[str, str]:
    """(namespace, name) of the pod that a cause names, so that only those who may see its namespace read of it."""
    words = why.split(" ", 2)
    if len(words) < 2 or words[0] != "pod":
        return "", ""
    namespace, _, name = words[1].rstrip(":").partition("/")
    return namespace, name


def closed_nodes() -> list[str]:
    """One sentence for each node and type of which devices are closed, for `takeover --check`."""
    rows = Device.objects.exclude(closed="").exclude(presence=Presence.REMOVED).order_by("node__name", "type", "minor")
    found: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for node, kind, minor, why in rows.values_list("node__name", "type", "minor", "closed"):
        found[node, kind].append((minor, why))
    return [
        f"node {node}: {kind} {','.join(str(minor) for minor, _ in listed)} closed to newcomers: {listed[0][1]}"
        for (node, kind), listed in found.items()
    ]
