"""The cluster that a whole process speaks to: one client, one pool of connections, whoever asks."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from kube.client import Cluster

IN_CLUSTER = "in-cluster"
"""What stands in the place of a kubeconfig's path inside a pod."""


@lru_cache(maxsize=4)
def shared_cluster(kubeconfig: str) -> Cluster | None:
    """The client for a kubeconfig's path or `in-cluster`; None for an empty one. Raises `NotConfigured`."""
    if not kubeconfig:
        return None
    return Cluster.from_settings(None if kubeconfig == IN_CLUSTER else Path(kubeconfig).expanduser())
