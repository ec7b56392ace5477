"""What kube-scheduler may wait for between filter and bind: volume claims, their classes, and resource claims.

Called by filter for pods that name any. Every call here is one request, tried once, within the time given: a hold waits
for the answer. Where the version of an API is not served, that is an error as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from kube.client import Cluster
from kube.errors import NotFoundInCluster
from kube.listing import decode, decode_chunk
from kube.objects import ObjectMeta
from kube.resources import RESOURCE_CLAIMS, STORAGE_CLASSES, VOLUME_CLAIMS, Resource

WAITS: Final = "WaitForFirstConsumer"
MOST: Final = 500
"""Objects of one answer: what is not among them is not known."""

_CLASS: Final = "volume.beta.kubernetes.io/storage-class"


class VolumeClaimSpec(msgspec.Struct, rename="camel"):
    """spec of a PersistentVolumeClaim."""

    volume_name: str = ""
    storage_class_name: str | None = None


class VolumeClaim(msgspec.Struct):
    """A PersistentVolumeClaim."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: VolumeClaimSpec = msgspec.field(default_factory=VolumeClaimSpec)

    @property
    def bound(self) -> bool:
        """Whether a volume was chosen and the binding is complete, as kube-scheduler reads it."""
        return bool(self.spec.volume_name) and "pv.kubernetes.io/bind-completed" in (self.metadata.annotations or {})

    @property
    def storage_class(self) -> str:
        """Its class, empty for none; the annotation of old goes first, as in Kubernetes."""
        return (self.metadata.annotations or {}).get(_CLASS) or self.spec.storage_class_name or ""


class StorageClass(msgspec.Struct, rename="camel"):
    """A class of volumes. `volume_binding_mode`: `Immediate` where it says nothing."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    volume_binding_mode: str = "Immediate"


class ResourceClaimStatus(msgspec.Struct):
    """status of a ResourceClaim."""

    allocation: dict[str, object] | None = None


class ResourceClaim(msgspec.Struct):
    """A ResourceClaim."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)

    @property
    def allocated(self) -> bool:
        """Whether its devices are chosen."""
        return self.status.allocation is not None


T = TypeVar("T", VolumeClaim, ResourceClaim)


def volume_claims(cluster: Cluster, *, namespace: str, names: Sequence[str], seconds: float) -> dict[str, VolumeClaim]:
    """Those of the names that are there. Raises `kube.errors`."""
    return _named(cluster, VOLUME_CLAIMS, VolumeClaim, namespace, names, seconds)


def resource_claims(
    cluster: Cluster, *, namespace: str, names: Sequence[str], seconds: float
) -> dict[str, ResourceClaim]:
    """Those of the names that are there. Raises `kube.errors`."""
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
    """One is read by its name, several from one list of their namespace."""
    if len(names) == 1:
        path = resource.path(namespace=namespace, name=names[0])
        try:
            body = cluster.request("GET", path, timeout=seconds, retry=False)
        except NotFoundInCluster:
            return {}
        return {names[0]: decode(body, kind, request=f"GET {path}")}
    path = resource.path(namespace=namespace)
    body = cluster.request("GET", path, query={"limit": MOST}, timeout=seconds, retry=False)
    wanted = set(names)
    return {
        one.metadata.name: one
        for one in decode_chunk(body, kind, request=f"GET {path}").items
        if one.metadata.name in wanted
    }
