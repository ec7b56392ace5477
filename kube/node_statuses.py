"""GpuNodeStatus objects (`gpu.scheduling/v1`): one for each node, cluster-scoped, named after it (NODE-3).

Invariants: only the status is written, conditional on the resourceVersion that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kube.client import Cluster
from kube.crds import CustomObject, patch_at
from kube.owned import owned_by_node
from kube.resources import GPU_NODE_STATUSES


def create(cluster: Cluster, *, name: str, node_uid: str) -> CustomObject:
    """Create it without a status. Raises `AlreadyExists`, `OutcomeUnknown`."""
    meta = owned_by_node(name, node_uid)
    body = {"apiVersion": GPU_NODE_STATUSES.api_version, "kind": GPU_NODE_STATUSES.kind, "metadata": meta}
    return cluster.create(GPU_NODE_STATUSES.path(), body, CustomObject)


def write(cluster: Cluster, *, found: CustomObject, status: Mapping[str, Any]) -> None:
    """Replace its status, unless it was written since.

    Raises `ConflictInCluster`, `NotFoundInCluster`, `OutcomeUnknown`.
    """
    path = GPU_NODE_STATUSES.path(name=found.metadata.name, subresource="status")
    patch_at(cluster, path, found.metadata.resource_version, {"/status": status})
