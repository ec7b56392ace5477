"""Device objects (`scheduling.koordinator.sh/v1alpha1`): one for each node, cluster-scoped, named after it (DEV-6).

Invariants: only objects with our label are written or deleted; a write is conditional on the resourceVersion that was
read, and keeps labels and annotations of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kube.client import Cluster
from kube.crds import CustomObject, patch_at
from kube.keys import MANAGED_BY, MANAGER
from kube.owned import owned_by_node
from kube.resources import DEVICES

VENDOR: Final = "node.koordinator.sh/gpu-vendor"
MODEL: Final = "node.koordinator.sh/gpu-model"
"""Koordinator's labels for the GPUs of a node; each is set only where it is true of all of them."""
LABELS: Final = frozenset({VENDOR, MODEL})
CHECKPOINTS: Final = "node.koordinator.sh/devices-checkpoints"
"""Annotation: devices that the kubelet gave to pods which gpuplane did not place, as JSON (DEV-8)."""


def is_ours(found: CustomObject) -> bool:
    """Whether gpuplane keeps the object."""
    return found.labels.get(MANAGED_BY) == MANAGER


def labels_of(found: CustomObject) -> dict[str, str]:
    """Those of `LABELS` that the object has."""
    return {key: value for key, value in found.labels.items() if key in LABELS}


def create(
    cluster: Cluster,
    *,
    name: str,
    node_uid: str,
    spec: Mapping[str, Any],
    labels: Mapping[str, str],
    checkpoints: str,
) -> None:
    """Create it, owned by its node. Raises `AlreadyExists`, `OutcomeUnknown`."""
    meta = {**owned_by_node(name, node_uid), "labels": {MANAGED_BY: MANAGER, **labels}}
    meta |= {"annotations": {CHECKPOINTS: checkpoints}} if checkpoints else {}
    body = {"apiVersion": DEVICES.api_version, "kind": DEVICES.kind, "metadata": meta, "spec": spec}
    cluster.create(DEVICES.path(), body, CustomObject)


def replace(
    cluster: Cluster, *, found: CustomObject, spec: Mapping[str, Any], labels: Mapping[str, str], checkpoints: str
) -> None:
    """Update it, unless it was written since. Raises `ConflictInCluster`, `NotFoundInCluster`, `OutcomeUnknown`."""
    annotations = {key: value for key, value in found.annotations.items() if key != CHECKPOINTS}
    annotations |= {CHECKPOINTS: checkpoints} if checkpoints else {}
    kept = {key: value for key, value in found.labels.items() if key not in LABELS}
    values = {"/spec": spec, "/metadata/labels": {**kept, **labels}, "/metadata/annotations": annotations}
    patch_at(cluster, DEVICES.path(name=found.metadata.name), found.metadata.resource_version, values)
