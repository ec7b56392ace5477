"""Publish each node's GPUs, their health and their holders as GpuNodeStatus (NODE-3).

Called by a task every half minute. Invariants: a status that was edited is overwritten by the ledger's; an equal one is
not written again; a node that is not in the cluster, or has no GPUs, has no object; a GPU in MIG mode counts once, and
is free while no instance of it is held.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from allocations.models import AllocationDevice
from kube import node_statuses as objects
from kube.client import Cluster
from kube.crds import CustomObject
from kube.device_types import GPU
from kube.owned import bring_all, delete
from kube.quantities import format_bytes
from kube.resources import GPU_NODE_STATUSES
from nodes.choices import NodeState, Presence
from nodes.models import Device, Node

LINKS_MOST: Final = 18
"""NVLinks of one GPU at most: where its pairs add up to more, they share them over a switch."""
LINK_GBPS: Final = 50
"""Both directions of one NVLink, from V100 to H200."""
FASTER: Final = re.compile(r"\bG?B\d{3}")
"""Models whose NVLinks are twice as fast (Blackwell)."""

Status = dict[str, Any]


class Published(NamedTuple):
    """The object of a node."""

    node_uid: str
    status: Status


def publish(*, cluster: Cluster) -> list[str]:
    """Bring all objects up to date; the names of those written or deleted.

    Raises TemporaryKubeError. Without the definition nothing is published.
    """
    return bring_all(
        cluster,
        GPU_NODE_STATUSES,
        wanted=node_statuses_of,
        bring=lambda name, found, want: _bring(cluster, name, found, want),
    )


def _bring(cluster: Cluster, name: str, found: CustomObject | None, want: Published | None) -> bool:
    """Whether anything was written."""
    if want is None:
        if found is not None:
            delete(cluster, GPU_NODE_STATUSES, found)
        return found is not None
    if found is None:
        found = objects.create(cluster, name=name, node_uid=want.node_uid)
    if found.status == want.status:
        return False
    objects.write(cluster, found=found, status=want.status)
    return True


def node_statuses_of() -> dict[str, Published]:
    """Node → its object, for every node of the cluster that has GPUs. Three queries."""
    nodes = {node.name: node for node in Node.objects.exclude(state=NodeState.GONE).exclude(cluster_uid="")}
    holders: dict[int, list[dict[str, Any]]] = defaultdict(list)
    grants = AllocationDevice.objects.filter(live=True, type=GPU).select_related("allocation")
    for grant in grants.order_by("allocation__created_at", "pk"):
        if grant.device_id is not None:
            holders[grant.device_id].append(_holder(grant))
    devices: dict[str, list[Device]] = defaultdict(list)
    rows = Device.objects.filter(type=GPU, presence=Presence.PRESENT).order_by("minor")
    for device in rows.select_related("node").defer("node__links", "node__disputed"):
        devices[device.node.name].append(device)
    return {
        name: Published(node.cluster_uid, _status(node, devices[name], holders))
        for name, node in nodes.items()
        if name in devices
    }


def _status(node: Node, devices: Sequence[Device], holders: Mapping[int, list[dict[str, Any]]]) -> Status:
    links = links_of(node.links)
    gpus = [device for device in devices if not device.parent]
    split = {device.parent for device in devices if device.parent and device.is_held}
    return {
        "state": str(node.state),
        "reason": node.problem,
        "mode": str(node.mode),
        "gpus": len(gpus),
        "free": sum(gpu.healthy and not gpu.is_held and gpu.uuid not in split for gpu in gpus),
        "unhealthy": sum(not gpu.healthy for gpu in gpus),
        "devices": [_device(device, links.get(device.minor, 0), holders.get(device.pk, [])) for device in devices],
    }


def _device(device: Device, links: int, held: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": device.minor,
        "uuid": device.uuid,
        "model": device.model,
        "memory": format_bytes(device.memory_bytes),
        "island": f"nvlink-group-{device.island}" if links else "",
        "bandwidthGBps": links * LINK_GBPS * (2 if FASTER.search(device.model) else 1),
        "health": "Healthy" if device.healthy else "Unhealthy",
        "reason": device.health_reason,
        "holders": held,
    }


def _holder(grant: AllocationDevice) -> dict[str, Any]:
    allocation = grant.allocation
    return {
        "namespace": allocation.namespace,
        "pod": allocation.pod_name or allocation.holder,
        "uid": allocation.pod_uid,
        "core": grant.core_percent,
        "memory": format_bytes(grant.memory_bytes),
    }


def links_of(matrix: Iterable[Sequence[int]]) -> dict[int, int]:
    """Minor → NVLinks of the GPU. Behind a switch every pair counts all links of both, so the largest pair counts."""
    pairs: dict[int, list[int]] = defaultdict(list)
    for low, high, links in matrix:
        pairs[low].append(links)
        pairs[high].append(links)
    return {minor: sum(counts) if sum(counts) <= LINKS_MOST else max(counts) for minor, counts in pairs.items()}
