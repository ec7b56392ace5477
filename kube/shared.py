"""The client that all threads of a process share."""

from __future__ import annotations

import threading
from functools import lru_cache
from pathlib import Path

from kube.client import Cluster
from kube.configured import configuration_source

IN_CLUSTER = "in-cluster"
"""Given instead of a kubeconfig's path inside a pod."""


_lock = threading.Lock()


def shared_cluster(kubeconfig: str) -> Cluster | None:
    """The client for a kubeconfig's path or `in-cluster`; None for an empty one. Raises `NotConfigured`."""
    if not kubeconfig:
        return None
    with _lock:  # lru_cache alone makes one for each thread that asks before the first is made
        return _cluster(kubeconfig)


@lru_cache(maxsize=4)
def _cluster(kubeconfig: str) -> Cluster:
    return Cluster(configuration_source(None if kubeconfig == IN_CLUSTER else Path(kubeconfig).expanduser()))
