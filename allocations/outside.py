"""The world outside the ledger: leases, and the cluster where there is one.

Called by the bind saga, release, collection and the watches; the settings choose once a process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from django.conf import settings

from allocations.leases.database import DatabaseLeases
from allocations.leases.kubernetes import KubernetesLeases
from allocations.leases.port import LeasePort, LeaseView
from kube.client import Cluster
from kube.shared import shared_cluster


@dataclass(frozen=True, slots=True)
class Outside:
    """`cluster` None: no Kubernetes, so no pods to bind, read or evict."""

    leases: LeasePort
    cluster: Cluster | None = None


def outside() -> Outside:
    """What the settings say. Raises kube.errors.NotConfigured for a kubeconfig that cannot be used."""
    return _outside(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_NAMESPACE)


@lru_cache(maxsize=4)
def _outside(kubeconfig: str, namespace: str) -> Outside:
    cluster = shared_cluster(kubeconfig)
    if cluster is None:
        return Outside(leases=DatabaseLeases())
    return Outside(leases=KubernetesLeases(cluster, namespace), cluster=cluster)


def lease_list() -> list[LeaseView]:
    """Every lease of ours, by name. Raises kube.errors when the API server does not answer."""
    return list(outside().leases.all())
