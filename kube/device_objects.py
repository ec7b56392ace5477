"""Device objects (`scheduling.koordinator.sh/v1alpha1`): one a node, cluster-scoped, named after it (DEV-6).

Called by `nodes.device_objects`. Kept true: an object is ours by its label, and no other is written or deleted; a write rests on the
version that was read, and leaves labels and annotations of others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kube.client import JSON_PATCH, Cluster
from kube.crds import CustomObject
from kube.owned import owned_by_node
from kube.resources import DEVICES

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "gpuplane"
VENDOR: Final = "node.koordinator.sh/gpu-vendor"
MODEL: Final = "node.koordinator.sh/gpu-model"
"""Labels by which Koordinator's tools tell what GPUs a node has: each only where it can be said of all of them."""
LABELS: Final = frozenset({VENDOR, MODEL})
CHECKPOINTS: Final = "node.koordinator.sh/devices-checkpoints"
"""Annotation: what the kubelet gave to pods that gpuplane did not place, as JSON (DEV-8)."""


def is_ours(found: CustomObject) -> bool:
    """Whether gpuplane keeps the object."""
    return (found.metadata.labels or {}).get(MANAGED_BY) == OURS


def labels_of(found: CustomObject) -> dict[str, str]:
    """Those of `LABELS` that the object has."""
    return {key: value for key, value in (found.metadata.labels or {}).items() if key in LABELS}


def create(
    cluster: Cluster,
    *,
    name: str,
    node_uid: str,
    spec: Mapping[str, Any],
    labels: Mapping[str, str],
    checkpoints: str,
) -> None:
    """Make it, owned by its node, so that it goes when that goes. Raises `AlreadyExists`, `OutcomeUnknown`."""
    meta = {**owned_by_node(name, node_uid), "labels": {MANAGED_BY: OURS, **labels}}
    meta |= {"annotations": {CHECKPOINTS: checkpoints}} if checkpoints else {}
    body = {"apiVersion": DEVICES.api_version, "kind": DEVICES.kind, "metadata": meta, "spec": spec}
    cluster.create(DEVICES.path(), body, CustomObject)


def replace(
    cluster: Cluster, *, found: CustomObject, spec: Mapping[str, Any], labels: Mapping[str, str], checkpoints: str
) -> None:
    """Bring it up to date, if it is still as found. Raises `ConflictInCluster`, `NotFoundInCluster`, `OutcomeUnknown`."""
    annotations = {key: value for key, value in (found.metadata.annotations or {}).items() if key != CHECKPOINTS}
    annotations |= {CHECKPOINTS: checkpoints} if checkpoints else {}
    kept = {key: value for key, value in (found.metadata.labels or {}).items() if key not in LABELS}
    steps = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": found.metadata.resource_version},
        {"op": "add", "path": "/spec", "value": spec},
        {"op": "add", "path": "/metadata/labels", "value": {**kept, **labels}},
        {"op": "add", "path": "/metadata/annotations", "value": annotations},
    ]
    path = DEVICES.path(name=found.metadata.name)
    cluster.patch(path, steps, CustomObject, content_type=JSON_PATCH, idempotent=False)
