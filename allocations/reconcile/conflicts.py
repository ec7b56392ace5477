"""Devices that two pods run with: `Device.conflict` names the pods for as long as that is so (LEASE-6).

Called by every comparison with the cluster, and by the verification of new devices. Invariants: a device in conflict is
given to nobody new, which the database enforces; its holder keeps it; it opens when a complete comparison, in which
neither pod was unreadable, shows that one of the two has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime

from allocations.choices import State
from allocations.models import Allocation, AllocationDevice
from allocations.reconcile.report import ACTOR, Difference
from audit.choices import EventKind
from audit.events import NewEvent
from audit.requeue_notify import announce
from audit.services import record_many
from nodes.mig import close_for_mig
from nodes.models import Device
from nodes.revisions import next_revision
from storage.transactions import atomic_retry

LONGEST = 300


def conflicts_note(
    *, differences: Iterable[Difference], unreadable: Collection[str] = (), complete: bool, now: datetime
) -> list[str]:
    """Close the disputed devices, and, after a `complete` comparison, open those that are disputed no more.

    Returns a sentence for each that was opened. `unreadable`: pods, as `namespace/name`, that could not be read.
    """
    due: dict[int, set[str]] = {}
    for difference in differences:
        for device_id, pod in difference.disputed:
            due.setdefault(device_id, set()).add(pod)
    if not due and not (complete and Device.objects.exclude(conflict="").exists()):
        return []
    return _write(due, frozenset(unreadable), now, complete=complete)


def overlaps() -> list[Difference]:
    """Pods with a MIG instance of a GPU that another pod holds itself. One query where nobody has an instance."""
    held = AllocationDevice.objects.filter(live=True, allocation__state__in=(State.RESERVED, State.BOUND))
    parts = held.exclude(device__parent="").select_related("allocation", "device__node")
    parts = parts.defer("device__node__links", "device__node__disputed")
    whole: dict[tuple[int, str], list[AllocationDevice]] = defaultdict(list)
    parents = held.filter(device__uuid__in={_device(part).parent for part in parts})
    for grant in parents.select_related("allocation", "device"):
        whole[_device(grant).node_id, grant.uuid].append(grant)
    return [_overlap(part, grant) for part in parts for grant in whole[_device(part).node_id, _device(part).parent]]


def _overlap(part: AllocationDevice, grant: AllocationDevice) -> Difference:
    device, holder = _device(part), part.allocation
    return Difference(
        f"pod {_label(holder)} has a MIG instance of a GPU of {device.node.name} that another pod holds itself",
        holder.namespace,
        holder.pod_name,
        device.node.name,
        holder.pk,
        ((_device(grant).pk, _label(holder)), (device.pk, _label(grant.allocation))),
    )


def _device(grant: AllocationDevice) -> Device:
    assert grant.device is not None  # live grants have one, by a constraint
    return grant.device


def _label(holder: Allocation) -> str:
    return f"{holder.namespace}/{holder.pod_name}" if holder.pod_name else holder.holder


@atomic_retry
def _write(due: dict[int, set[str]], unreadable: frozenset[str], now: datetime, *, complete: bool) -> list[str]:
    standing = set(Device.objects.exclude(conflict="").values_list("pk", flat=True))
    revision = next_revision()
    opened: list[Device] = []
    shut: list[Device] = []
    rows = Device.objects.select_for_update(of=("self",)).filter(pk__in=standing.union(due)).order_by("pk")
    for device in rows.select_related("node").defer("node__links", "node__disputed"):
        before = set(pods_in(device.conflict))
        pods = due.get(device.pk, set()) | (_standing(before, unreadable, device.conflict) if complete else before)
        text = ", ".join(sorted(pods))[:LONGEST]
        if text == device.conflict:
            continue
        Device.objects.filter(pk=device.pk).update(conflict=text, revision=revision, changed_at=now)
        (opened if not text else shut).append(device)
    for node_id in {device.node_id for device in shut}:
        close_for_mig(node_id=node_id, revision=revision, now=now)  # with the GPU its MIG instances
    for name in {device.node.name for device in opened}:
        announce(node=name)
    events = [
        NewEvent(
            kind=EventKind.DIFFERENCE,
            message=f"{device.type} {device.minor} of {device.node.name} is nobody's dispute any more",
            actor=ACTOR,
            at=now,
            node=device.node.name,
        )
        for device in opened
    ]
    record_many(events)
    return [event.message for event in events]


def _standing(before: set[str], unreadable: frozenset[str], conflict: str) -> set[str]:
    """The pods that may still be in dispute. Of a text that was cut not all are known: an unreadable pod may be any."""
    return before if unreadable and len(conflict) >= LONGEST else before & unreadable


def pods_in(conflict: str) -> list[str]:
    """The pods, as `namespace/name`, that `Device.conflict` names."""
    return [pod for pod in conflict.split(", ") if pod]
