"""Devices that are closed to newcomers: a pod runs with them, or may, that the ledger could not write down (LEASE-2, LEASE-6, DEV-8, DEV-9).

Called by every comparison, and before the devices of a new node are opened. Kept true: who holds a device keeps it; a device is opened again
only by a comparison that saw the whole cluster after it was closed and found no cause any more; a device is not closed and opened by turns, since
its causes are worked out anew each time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from access.transactions import atomic_retry
from allocations.models import AllocationDevice
from allocations.reconcile.adoption import Closed, of_types, without_devices
from allocations.reconcile.report import ACTOR
from audit.announce import announce
from audit.choices import Kind
from audit.happenings import Happening
from audit.services import record_many
from claims.admission.recognise import looks_ours
from claims.dialects import dialect_of
from claims.dialects.request import Dialect
from kube.device_types import GPU
from kube.listing import Unreadable as UnreadableObject
from kube.objects import Pod
from nodes.changes import DISPLACED_MINOR
from nodes.choices import Presence
from nodes.mig import mig_closings
from nodes.models import Device, KubeletCheckpoint
from nodes.revisions import next_revision

LONGEST: Final = 300
BATCH: Final = 500
Shut = Mapping[int, str]
"""Device id → why it was closed when that was read."""

_BY_PLUGIN: Final = frozenset({Dialect.NATIVE, Dialect.HAMI})
"""Dialects in which a device plugin gives a pod devices without any word on the pod itself."""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct):
    phase: str = ""


class _Placed(msgspec.Struct):
    """The least of a pod that cannot be decoded."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class Changes(NamedTuple):
    """How many devices were closed and opened, and a sentence for each group of them."""

    closed: int
    opened: int
    lines: list[str]


class _Group(NamedTuple):
    """Devices that change alike. `before`, `after`: why they are closed, empty: open."""

    node: str
    type: str
    before: str
    after: str


def shut_devices() -> Shut:
    """Read it before the cluster is looked at: what is closed later is not known by that look."""
    return dict(Device.objects.exclude(closed="").exclude(presence=Presence.REMOVED).values_list("pk", "closed"))


def untold(*, pods: Iterable[Pod], known: Collection[str], waiting: Collection[str] = ()) -> Closed:
    """GPUs of nodes where pods run that a device plugin gave some, and no record of the kubelet tells which.

    `known`: UIDs of pods that have a row. `waiting`: nodes whose devices are not open yet. A record that leaves a pod out says that it has none.
    """
    suspects = [pod for pod in without_devices(pods, known) if dialect_of(pod) in _BY_PLUGIN]
    names = {pod.spec.node_name for pod in suspects} - set(waiting)
    if not names:
        return {}
    told = set(KubeletCheckpoint.objects.filter(node__name__in=names).values_list("node__name", flat=True))
    found: Closed = {}
    there = _there(names - told)
    for pod in suspects:
        why = f"pod {pod.metadata.namespace}/{pod.metadata.name} runs with GPUs of which no record of the kubelet tells"
        for pk in of_types(there.get(pod.spec.node_name, ()), {GPU}):
            found.setdefault(pk, why)
    return found


def undecoded(*, objects: Sequence[UnreadableObject], known: Collection[tuple[str, str]]) -> Closed:
    """Devices of nodes where pods run that are in no form that is understood, and name resources or annotations of ours.

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
    for node, devices in _there(placed).items():
        namespace, name = placed[node].key
        why = f"pod {namespace}/{name} runs there and cannot be read"
        found |= dict.fromkeys(of_types(devices, None), why)
    return found


def _there(nodes: Iterable[str]) -> dict[str, list[Device]]:
    found: dict[str, list[Device]] = defaultdict(list)
    names = list(nodes)
    if names:
        rows = (
            Device.objects.filter(node__name__in=names)
            .exclude(presence=Presence.REMOVED)
            .select_related("node")
            .defer("node__links", "node__disputed")
        )
        for device in rows:
            found[device.node.name].append(device)
    return found


def _replacements() -> Closed:
    """Devices that an inventory brought in place of others that are still held: it may be the same device under another name.

    Not GPUs: their UUIDs are burnt into them.
    """
    held = AllocationDevice.objects.filter(
        live=True, device__presence=Presence.VANISHED, device__minor__gte=DISPLACED_MINOR
    ).exclude(type=GPU)
    found: Closed = {}
    for node_id, kind, minor, uuid in held.values_list("device__node_id", "type", "minor", "uuid").distinct():
        there = Device.objects.filter(node=node_id, type=kind, minor=minor, presence=Presence.PRESENT)
        found |= dict.fromkeys(there.values_list("pk", flat=True), f"{uuid}, which was in its place, is still held")
    return found


def close(wanted: Closed, *, now: datetime, before: Shut | None = None) -> Changes:
    """Close these devices, and those that MIG forbids. `before`: open again those of them that nothing closes any more."""
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
                continue  # as it is to be; or closed anew since, by somebody who knows more
            changes[node][_Group(node, kind, closed, after)].append((pk, minor))
    done = Changes(0, 0, [])
    for node in sorted(changes):
        closed_now, opened_now = _write(node, changes[node], now)
        done = Changes(done.closed + len(closed_now), done.opened + len(opened_now), done.lines + _lines(changes[node]))
    return done


@atomic_retry
def _write(node: str, groups: Mapping[_Group, Sequence[tuple[int, int]]], now: datetime) -> tuple[list[int], list[int]]:
    """(ids closed that were open, ids opened)."""
    ids = sorted(pk for listed in groups.values() for pk, _ in listed)
    locked = list(Device.objects.select_for_update(no_key=True).filter(pk__in=ids).order_by("pk"))
    is_now = {device.pk: device.closed for device in locked}
    mig = mig_closings(node_id=locked[0].node_id) if locked else {}
    revision = next_revision()
    closed: list[int] = []
    opened: list[int] = []
    told: list[Happening] = []
    for group, listed in groups.items():
        own = [pk for pk, _ in listed if is_now.get(pk) == group.before and (group.after or pk not in mig)]
        Device.objects.filter(pk__in=own).update(closed=group.after, revision=revision, changed_at=now)
        if own and not (group.before and group.after):
            (closed if group.after else opened).extend(own)
            told.append(_told(group, [minor for pk, minor in listed if pk in own], now))
    record_many(told)
    if opened:
        announce(node=node)
    return closed, opened


def _told(group: _Group, minors: Sequence[int], now: datetime) -> Happening:
    data: dict[str, Any] = {"type": group.type, "minors": list(minors), "closed": group.after}
    namespace, name = _pod_of(group.after)
    return Happening(
        kind=Kind.DEVICE_TAKEN,
        message=_sentence(group, minors),
        actor=ACTOR,
        at=now,
        namespace=namespace,
        name=name,
        node=group.node,
        data=data,
    )


def _pod_of(why: str) -> tuple[str, str]:
    """(namespace, name) of the pod that a cause names, so that only those read of it who see its namespace."""
    words = why.split(" ", 2)
    if len(words) < 2 or words[0] != "pod":
        return "", ""
    namespace, _, name = words[1].rstrip(":").partition("/")
    return namespace, name


def _sentence(group: _Group, minors: Sequence[int]) -> str:
    which = f"{group.type} {','.join(map(str, sorted(minors)))} of {group.node}"
    return f"{which} closed to newcomers: {group.after}" if group.after else f"{which} open to newcomers again"


def _lines(groups: Mapping[_Group, Sequence[tuple[int, int]]]) -> list[str]:
    return [
        _sentence(group, [minor for _, minor in listed])
        for group, listed in groups.items()
        if not (group.before and group.after)
    ]


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
