"""Devices that two pods run with: what stands on the device's row for as long as that is so (LEASE-6).

Called by every comparison with the cluster, and by the reading of new nodes. Kept true: a device in conflict is given to nobody new, by the
database itself; whoever holds it keeps it; it opens when a whole look at the cluster, of which nothing that concerns it was unreadable, shows
that one of the two has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime

from access.transactions import atomic_retry
from allocations.reconcile.report import ACTOR, Difference
from audit.announce import announce
from audit.choices import Kind
from audit.happenings import Happening
from audit.services import record_many
from nodes.models import Device
from nodes.revisions import next_revision

LONGEST = 300


def conflicts_note(
    *, differences: Iterable[Difference], unreadable: Collection[str] = (), complete: bool, now: datetime
) -> list[str]:
    """Close the devices that these dispute, and, where the look was `complete`, open those that nobody disputes any more; what was opened, for people.

    `unreadable`: pods, as `namespace/name`, of which this look can say nothing.
    """
    due: dict[int, set[str]] = {}
    for difference in differences:
        for device_id, pod in difference.disputed:
            due.setdefault(device_id, set()).add(pod)
    if not due and not (complete and Device.objects.exclude(conflict="").exists()):
        return []
    return _write(due, frozenset(unreadable), now, complete=complete)


@atomic_retry
def _write(due: dict[int, set[str]], unreadable: frozenset[str], now: datetime, *, complete: bool) -> list[str]:
    standing = set(Device.objects.exclude(conflict="").values_list("pk", flat=True))
    revision = next_revision()
    opened: list[Device] = []
    rows = Device.objects.select_for_update(of=("self",)).filter(pk__in=standing.union(due)).order_by("pk")
    for device in rows.select_related("node"):
        before = set(pods_in(device.conflict))
        pods = due.get(device.pk, set()) | (before & unreadable if complete else before)
        text = ", ".join(sorted(pods))[:LONGEST]
        if text == device.conflict:
            continue
        Device.objects.filter(pk=device.pk).update(conflict=text, revision=revision, changed_at=now)
        if not text:
            opened.append(device)
    for name in {device.node.name for device in opened}:
        announce(node=name)
    told = [f"{device.type} {device.minor} of {device.node.name} is nobody's dispute any more" for device in opened]
    record_many(
        [
            Happening(kind=Kind.DIFFERENCE, message=line, actor=ACTOR, at=now, node=device.node.name)
            for device, line in zip(opened, told, strict=True)
        ]
    )
    return told


def pods_in(conflict: str) -> list[str]:
    """The pods, as `namespace/name`, that `Device.conflict` names."""
    return [pod for pod in conflict.split(", ") if pod]
