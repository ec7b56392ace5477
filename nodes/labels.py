"""A node's rack and pool by its labels, as the common autoscalers set them; empty where unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

RACK_LABELS: Final = ("topology.kubernetes.io/rack", "gpu.scheduling/rack", "rack", "topology.kubernetes.io/zone")
POOL_LABELS: Final = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "pool",
)


def rack_of(labels: Mapping[str, Any]) -> str:
    """The node's rack."""
    return _first(labels, RACK_LABELS)


def pool_of(labels: Mapping[str, Any]) -> str:
    """The node's pool."""
    return _first(labels, POOL_LABELS)


def _first(labels: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return next((str(labels[key]) for key in keys if labels.get(key)), "")
