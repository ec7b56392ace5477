"""What binds and releases need beside the ledger: leases, and the cluster where there is one.

Called by binds and releases, collection and the watches; chosen by the settings once a process.
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
class Backends:
    """`cluster` None: without Kubernetes, so no pods to bind, read or evict."""

    leases: LeasePort
    cluster: Cluster | None = None


def current_backends() -> Backends:
    """The backends of the settings. Raises kube.errors.NotConfigured for a kubeconfig that cannot be used."""
    return _backends(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_NAMESPACE)


@lru_cache(maxsize=4)
def _backends(kubeconfig: str, namespace: str) -> Backends:
    cluster = shared_cluster(kubeconfig)
    if cluster is None:
        return Backends(leases=DatabaseLeases())
    return Backends(leases=KubernetesLeases(cluster, namespace), cluster=cluster)


def lease_list() -> list[LeaseView]:
    """Every lease of gpuplane, by name. Raises kube.errors when the API server does not answer."""
    return list(current_backends().leases.all())
