"""What kube-scheduler may wait for between filter and bind: volume claims, their classes, and resource claims.

Every call is one request without retries, since filter waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from kube.client import Cluster
from kube.errors import NotFoundInCluster
from kube.listing import decode, decode_chunk
from kube.objects import Named
from kube.resources import RESOURCE_CLAIMS, STORAGE_CLASSES, VOLUME_CLAIMS, Resource

WAITS: Final = "WaitForFirstConsumer"
MOST: Final = 500
"""Most objects of one answer; those beyond count as unknown."""

_CLASS: Final = "volume.beta.kubernetes.io/storage-class"


class VolumeClaimSpec(msgspec.Struct, rename="camel"):
    """spec of a PersistentVolumeClaim."""

    volume_name: str = ""
    storage_class_name: str | None = None


class VolumeClaim(Named):
    """A PersistentVolumeClaim."""

    spec: VolumeClaimSpec = msgspec.field(default_factory=VolumeClaimSpec)

    @property
    def bound(self) -> bool:
        """Whether a volume was chosen and the binding is complete, as kube-scheduler reads it."""
        return bool(self.spec.volume_name) and "pv.kubernetes.io/bind-completed" in self.annotations

    @property
    def storage_class(self) -> str:
        """Its class, empty for none; the deprecated annotation takes precedence, as in Kubernetes."""
        return self.annotations.get(_CLASS) or self.spec.storage_class_name or ""


class StorageClass(Named):
    """A class of volumes."""

    volume_binding_mode: str = "Immediate"


class ResourceClaimStatus(msgspec.Struct):
    """status of a ResourceClaim."""

    allocation: dict[str, object] | None = None


class ResourceClaim(Named):
    """A ResourceClaim."""

    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)

    @property
    def allocated(self) -> bool:
        """Whether its devices have been chosen."""
        return self.status.allocation is not None


T = TypeVar("T", VolumeClaim, ResourceClaim)


def volume_claims(cluster: Cluster, *, namespace: str, names: Sequence[str], seconds: float) -> dict[str, VolumeClaim]:
    """The existing claims of these names. Raises `kube.errors`."""
    return _named(cluster, VOLUME_CLAIMS, VolumeClaim, namespace, names, seconds)


def resource_claims(
    cluster: Cluster, *, namespace: str, names: Sequence[str], seconds: float
) -> dict[str, ResourceClaim]:
    """The existing claims of these names. Raises `kube.errors`."""
    return _named(cluster, RESOURCE_CLAIMS, ResourceClaim, namespace, names, seconds)


def binding_modes(cluster: Cluster, *, seconds: float) -> dict[str, str]:
    """Storage class → its volumeBindingMode. Raises `kube.errors`."""
    path = STORAGE_CLASSES.path()
    body = cluster.request("GET", path, query={"limit": MOST}, timeout=seconds, retry=False)
    found = decode_chunk(body, StorageClass, request=f"GET {path}").items
    return {one.metadata.name: one.volume_binding_mode for one in found}


def _named(
    cluster: Cluster, resource: Resource, kind: type[T], namespace: str, names: Sequence[str], seconds: float
) -> dict[str, T]:
    """One is read by name, several by a list of the namespace."""
    if len(names) == 1:
        path = resource.path(namespace=namespace, name=names[0])
        try:
            body = cluster.request("GET", path, timeout=seconds, retry=False)
        except NotFoundInCluster:
            return {}
        return {names[0]: decode(body, kind, request=f"GET {path}")}
    path = resource.path(namespace=namespace)
    body = cluster.request("GET", path, query={"limit": MOST}, timeout=seconds, retry=False)
    found = {one.metadata.name: one for one in decode_chunk(body, kind, request=f"GET {path}").items}
    return {name: found[name] for name in names if name in found}
