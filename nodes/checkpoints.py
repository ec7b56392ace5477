"""What kubelets gave to containers by themselves, as their agents read it from the kubelet's checkpoint (DEV-8).

Written by agents' frames; read by `allocations.reconcile`, which adopts the pods. Kept true: an agent's newest word replaces all that it
said before; a pod that has ended may still stand in it, since the kubelet tidies up only when it next gives a device away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from access.actors import Actor
from access.errors import NotFound
from access.transactions import atomic_retry
from nodes.models import KubeletCheckpoint, Node
from nodes.services import require_inventory_writer


class Given(NamedTuple):
    """Devices that a kubelet gave to one container, for one resource. `devices`: their ids, UUIDs for GPUs."""

    pod_uid: str
    container: str
    resource: str
    devices: tuple[str, ...]


@atomic_retry
def checkpoint_put(*, node_name: str, entries: Sequence[Given], actor: Actor, now: datetime) -> bool:
    """Replace what is known of the node; False when it says the same as before. Raises NotAllowed, NotFound."""
    require_inventory_writer(actor, node=node_name)
    node = Node.objects.filter(name=node_name).first()
    if node is None:
        raise NotFound(f"there is no node {node_name}")
    said = [[one.pod_uid, one.container, one.resource, list(one.devices)] for one in entries]
    known = KubeletCheckpoint.objects.select_for_update().filter(node=node).first()
    if known is None:
        KubeletCheckpoint.objects.create(node=node, entries=said, read_at=now)
        return True
    if known.entries == said:
        return False
    known.entries, known.read_at = said, now
    known.save(update_fields=["entries", "read_at"])
    return True


def given_by_kubelets(*, nodes: Collection[str] | None = None) -> Mapping[tuple[str, str], list[Given]]:
    """(node, pod UID) → what the pod's containers were given there; of these nodes, or of all."""
    known = KubeletCheckpoint.objects.all() if nodes is None else KubeletCheckpoint.objects.filter(node__name__in=nodes)
    found: dict[tuple[str, str], list[Given]] = defaultdict(list)
    for node, entries in known.values_list("node__name", "entries"):
        for pod_uid, container, resource, devices in entries:
            found[node, pod_uid].append(Given(pod_uid, container, resource, tuple(devices)))
    return found
