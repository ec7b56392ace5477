"""Devices of new nodes, and new devices: opened once the pods that run there already are in the ledger (LEASE-2, LEASE-6).

Called by `allocations.tasks.read_newcomers` soon after an inventory brought them, and by every comparison with the cluster. Kept true:
a device is opened only when the pods of its node were read after it was marked; a cluster that does not answer opens nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import structlog

from access.transactions import atomic_retry
from allocations.choices import LIVE
from allocations.models import Allocation
from allocations.outside import Outside
from allocations.reconcile.adoption import adopt_running, awaiting_checkpoint, runs_with_devices
from allocations.reconcile.conflicts import conflicts_note
from allocations.reconcile.leases import Leased, take_leases
from allocations.reconcile.report import differences_report
from audit.announce import announce
from kube import pods
from kube.objects import Pod
from nodes.checkpoints import given_by_kubelets
from nodes.choices import Presence
from nodes.models import Device
from nodes.newcomers import UNREAD
from nodes.revisions import next_revision

log = structlog.get_logger(__name__)

BATCH = 500
Newcomers = Mapping[str, list[int]]
"""Node → ids of its devices that are still closed."""


def newcomers() -> Newcomers:
    """Read it before the cluster is looked at: what is marked later is not known by that look."""
    found: dict[str, list[int]] = defaultdict(list)
    rows = Device.objects.filter(stranger=UNREAD).exclude(presence=Presence.REMOVED).order_by("node__name", "pk")
    for node, pk in rows.values_list("node__name", "pk"):
        found[node].append(pk)
    return found


def read_newcomers(*, world: Outside, now: datetime) -> int:
    """Adopt what runs on nodes with new devices, then open these; how many. Raises KubeError: the rest stays closed."""
    if world.cluster is None:
        return 0
    opened = 0
    for node, ids in newcomers().items():
        found = pods.list_all(world.cluster, field_selector=f"spec.nodeName={node}")
        given = given_by_kubelets(nodes=[node])
        running = [pod for pod in found.items if runs_with_devices(pod, given)]
        adopted = adopt_running(pods=running, given=given, since=now, now=now)
        taken = Leased()
        for live in adopted.allocations:
            take_leases(live, world, taken)
        conflicts_note(differences=adopted.differences, complete=False, now=now)
        differences_report(differences=[*adopted.differences, *taken.differences], now=now)
        known = {live.holder.pod_uid for live in adopted.allocations} | _having_rows(found.items)
        if awaiting_checkpoint(pods=found.items, known=known, now=now):
            continue  # reconciling opens it, with the record or without
        opened += open_devices({node: ids}, now=now)
        log.info("newcomers.read", node=node, devices=len(ids), adopted=len(adopted.allocations))
    return opened


def _having_rows(pods: Sequence[Pod]) -> set[str]:
    live = Allocation.objects.filter(pod_uid__in=[pod.metadata.uid for pod in pods], state__in=LIVE)
    return set(live.values_list("pod_uid", flat=True))


def open_devices(read: Newcomers, *, now: datetime) -> int:
    """Let the devices be given to pods; how many of them were still closed. What waits for them is told."""
    return sum(_open(node, ids, now) for node, ids in read.items())


@atomic_retry
def _open(node: str, ids: Iterable[int], now: datetime) -> int:
    listed = list(ids)
    revision = next_revision()
    opened = 0
    for start in range(0, len(listed), BATCH):
        closed = Device.objects.filter(pk__in=listed[start : start + BATCH], stranger=UNREAD)
        opened += closed.update(stranger="", revision=revision, changed_at=now)
    if opened:
        announce(node=node)
    return opened
