"""What a node's labels say of where it stands: its rack, and the pool that it was made in, as the well-known autoscalers label it.

Read by the fleet stream, history and exports. An empty text: unknown.
"""

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
    """The first label that is there."""
    return _first(labels, RACK_LABELS)


def pool_of(labels: Mapping[str, Any]) -> str:
    """The first label that is there."""
    return _first(labels, POOL_LABELS)


def _first(labels: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return next((str(labels[key]) for key in keys if labels.get(key)), "")
