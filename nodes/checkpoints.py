"""Devices that kubelets gave to containers, as agents read them from the kubelet's checkpoint (DEV-8).

Written for agents' frames; read by `allocations.reconcile`, which adopts the pods. Invariants: the newest checkpoint of
a node replaces the one before; a pod that has ended may still be listed, since the kubelet removes it when it next
allocates a device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from access.actors import Actor
from nodes.frame_order import FrameStamp, frame_accept
from nodes.models import KubeletCheckpoint
from nodes.services import existing_node, require_inventory_writer
from storage.transactions import atomic_retry


class CheckpointGrant(NamedTuple):
    """Devices of one container for one resource. `devices`: ids, UUIDs for GPUs."""

    pod_uid: str
    container: str
    resource: str
    devices: tuple[str, ...]


@atomic_retry
def checkpoint_put(
    *, node_name: str, entries: Sequence[CheckpointGrant], actor: Actor, now: datetime, frame: FrameStamp | None = None
) -> bool:
    """Replace the node's checkpoint; False when nothing changed. `frame`: of the agent's frame.

    Raises NotAllowed, NotFound, Unavailable (a newer frame was stored).
    """
    require_inventory_writer(actor, node=node_name)
    node = existing_node(node_name)
    if frame is not None:
        frame_accept(node=node, frame=frame, now=now)
    new = [[one.pod_uid, one.container, one.resource, list(one.devices)] for one in entries]
    known = KubeletCheckpoint.objects.select_for_update().filter(node=node).first()
    if known is None:
        KubeletCheckpoint.objects.create(node=node, entries=new, read_at=now)
        return True
    if known.entries == new:
        return False
    known.entries, known.read_at = new, now
    known.save(update_fields=["entries", "read_at"])
    return True


def grants_by_kubelets(*, nodes: Collection[str] | None = None) -> Mapping[tuple[str, str], list[CheckpointGrant]]:
    """(node, pod UID) → grants to the pod's containers; of these nodes, or of all."""
    known = KubeletCheckpoint.objects.all() if nodes is None else KubeletCheckpoint.objects.filter(node__name__in=nodes)
    found: dict[tuple[str, str], list[CheckpointGrant]] = defaultdict(list)
    for node, entries in known.values_list("node__name", "entries"):
        for pod_uid, container, resource, devices in entries:
            found[node, pod_uid].append(CheckpointGrant(pod_uid, container, resource, tuple(devices)))
    return found
