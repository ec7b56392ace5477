"""GpuNodeStatus objects (`gpu.scheduling/v1`): one a node, cluster-scoped, named after it (NODE-3).

Called by `allocations.node_statuses`. Kept true: only the status is written, and
rests on the version that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kube.client import JSON_PATCH, Cluster
from kube.crds import CustomObject
from kube.owned import owned_by_node
from kube.resources import GPU_NODE_STATUSES


def create(cluster: Cluster, *, name: str, node_uid: str) -> CustomObject:
    """Make it, still without a status. Raises `AlreadyExists`, `OutcomeUnknown`."""
    meta = owned_by_node(name, node_uid)
    body = {"apiVersion": GPU_NODE_STATUSES.api_version, "kind": GPU_NODE_STATUSES.kind, "metadata": meta}
    return cluster.create(GPU_NODE_STATUSES.path(), body, CustomObject)


def write(cluster: Cluster, *, found: CustomObject, status: Mapping[str, Any]) -> None:
    """Replace its status, if it is still as found. Raises `ConflictInCluster`, `NotFoundInCluster`, `OutcomeUnknown`."""
    steps = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": found.metadata.resource_version},
        {"op": "add", "path": "/status", "value": status},
    ]
    path = GPU_NODE_STATUSES.path(name=found.metadata.name, subresource="status")
    cluster.patch(path, steps, CustomObject, content_type=JSON_PATCH, idempotent=False)
