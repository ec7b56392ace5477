"""New devices: opened once the pods that run on their node already are in the ledger (LEASE-2, LEASE-6).

Called by `allocations.tasks.read_newcomers` after an inventory brought them, and by every comparison with the cluster.
Invariants: a device is opened only when the pods of its node were read after it was marked; nothing is opened while
the API server does not answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

import structlog

from allocations.backends import Backends
from allocations.choices import LIVE
from allocations.models import Allocation
from allocations.reconcile.adoption import adopt_running, runs_with_devices
from allocations.reconcile.closing import close, undecodable_devices, unreported_devices
from allocations.reconcile.conflicts import conflicts_note
from allocations.reconcile.leases import take_leases
from allocations.reconcile.report import Found, differences_report
from allocations.reconcile.unallocated import awaiting_checkpoint, without_devices
from audit.requeue_notify import announce
from kube import pods
from nodes.checkpoints import grants_by_kubelets
from nodes.choices import Presence
from nodes.models import Device
from nodes.revisions import next_revision
from nodes.unverified_devices import UNREAD
from storage.transactions import atomic_retry

log = structlog.get_logger(__name__)

BATCH = 500
UnverifiedDevices = Mapping[str, list[int]]
"""Node → ids of its devices that are still closed."""


def unverified() -> UnverifiedDevices:
    """The devices that are not verified. Read before the cluster, which says nothing of those marked later."""
    found: dict[str, list[int]] = defaultdict(list)
    rows = Device.objects.filter(stranger=UNREAD).exclude(presence=Presence.REMOVED).order_by("node__name", "pk")
    for node, pk in rows.values_list("node__name", "pk"):
        found[node].append(pk)
    return found


def verify_devices(*, backends: Backends, now: datetime) -> int:
    """Adopt what runs on nodes with new devices, then open these; how many. On a KubeError the rest stays closed."""
    if backends.cluster is None:
        return 0
    opened = 0
    for node, ids in unverified().items():
        found = pods.list_all(backends.cluster, field_selector=f"spec.nodeName={node}")
        given = grants_by_kubelets(nodes=[node])
        running = [pod for pod in found.items if runs_with_devices(pod, given)]
        adopted = adopt_running(pods=running, given=given, since=now, now=now)
        taken = Found.total(take_leases(live, backends, now) for live in adopted.allocations)
        conflicts_note(differences=adopted.differences, complete=False, now=now)
        differences_report(differences=[*adopted.differences, *taken.differences], now=now)
        live = Allocation.objects.filter(state__in=LIVE)
        uids = [pod.metadata.uid for pod in found.items]
        known = set(live.filter(pod_uid__in=uids).values_list("pod_uid", flat=True))
        suspects = without_devices(backends.cluster, found.items, known)
        if awaiting_checkpoint(suspects, now):
            continue  # reconciling opens them, with the record or without
        named = set(live.filter(node__name=node).values_list("namespace", "pod_name"))
        causes = {
            **unreported_devices(suspects),
            **undecodable_devices(objects=found.unreadable, known=named),
            **adopted.closed,
        }
        close(causes, now=now)
        opened += open_devices({node: ids}, now=now)
        log.info("unverified_devices.verified", node=node, devices=len(ids), adopted=len(adopted.allocations))
    return opened


def open_devices(read: UnverifiedDevices, *, now: datetime) -> int:
    """Open the devices, and wake the pods that wait for them; how many of them were still closed."""
    return sum(_open(node, ids, now) for node, ids in read.items())


@atomic_retry
def _open(node: str, ids: Sequence[int], now: datetime) -> int:
    revision = next_revision()
    opened = 0
    for start in range(0, len(ids), BATCH):
        closed = Device.objects.filter(pk__in=ids[start : start + BATCH], stranger=UNREAD)
        opened += closed.update(stranger="", revision=revision, changed_at=now)
    if opened:
        announce(node=node)
    return opened
