"""The collections of the Kubernetes API that gpuplane uses, and their paths.

Invariants: a name cannot leave its path segment.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import quote

import msgspec

from kube import keys


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A collection; the group is empty for core."""

    group: str = ""
    version: str = "v1"
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def qualified(self) -> str:
        """`<plural>.<group>`, or only the plural for core."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """`group/version`, or only the version for core."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of the collection (without a namespace: of all namespaces), of an object, or of its subresource.

        Raises ValueError for an invalid combination and for a segment that is empty, `.` or `..`.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.plural} have no namespace")
        if name is not None and self.namespaced and namespace is None:
            raise ValueError(f"{self.plural} need a namespace")
        if subresource is not None and name is None:
            raise ValueError("a subresource needs the name of its object")
        segments = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            segments += ["namespaces", namespace]
        segments.append(self.plural)
        segments += [part for part in (name, subresource) if part is not None]
        return "".join("/" + _segment(part) for part in segments)


@lru_cache(maxsize=1024)
def _segment(text: str) -> str:
    if text in ("", ".", ".."):
        raise ValueError(f"{text!r} cannot be part of a path")
    return quote(text, safe="")


NAMESPACES: Final = Resource(plural="namespaces", kind="Namespace", namespaced=False)
NODES: Final = Resource(plural="nodes", kind="Node", namespaced=False)
PODS: Final = Resource(plural="pods", kind="Pod")
EVENTS: Final = Resource(plural="events", kind="Event")
VOLUME_CLAIMS: Final = Resource(plural="persistentvolumeclaims", kind="PersistentVolumeClaim")
STORAGE_CLASSES: Final = Resource(
    group="storage.k8s.io", plural="storageclasses", kind="StorageClass", namespaced=False
)
RESOURCE_CLAIMS: Final = Resource(group="resource.k8s.io", plural="resourceclaims", kind="ResourceClaim")
ACCOUNTS: Final = Resource(plural="serviceaccounts", kind="ServiceAccount")
ROLES: Final = Resource(group="rbac.authorization.k8s.io", plural="roles", kind="Role")
ROLE_BINDINGS: Final = Resource(group="rbac.authorization.k8s.io", plural="rolebindings", kind="RoleBinding")
LEASES: Final = Resource(group="coordination.k8s.io", plural="leases", kind="Lease")
CRDS: Final = Resource(
    group="apiextensions.k8s.io", plural="customresourcedefinitions", kind="CustomResourceDefinition", namespaced=False
)
MUTATING_WEBHOOKS: Final = Resource(
    group="admissionregistration.k8s.io",
    plural="mutatingwebhookconfigurations",
    kind="MutatingWebhookConfiguration",
    namespaced=False,
)
VALIDATING_WEBHOOKS: Final = Resource(
    group="admissionregistration.k8s.io",
    plural="validatingwebhookconfigurations",
    kind="ValidatingWebhookConfiguration",
    namespaced=False,
)
GPU_CLAIMS: Final = Resource(group=keys.GROUP, version=keys.VERSION, plural="gpuclaims", kind="GpuClaim")
GPU_GANGS: Final = Resource(group=keys.GROUP, version=keys.VERSION, plural="gpugangs", kind="GpuGang")
GPU_QUEUES: Final = Resource(
    group=keys.GROUP, version=keys.VERSION, plural="gpuqueues", kind="GpuQueue", namespaced=False
)
GPU_NODE_STATUSES: Final = Resource(
    group=keys.GROUP, version=keys.VERSION, plural="gpunodestatuses", kind="GpuNodeStatus", namespaced=False
)
NODE_POOLS: Final = Resource(group="karpenter.sh", plural="nodepools", kind="NodePool", namespaced=False)
NODE_CLAIMS: Final = Resource(group="karpenter.sh", plural="nodeclaims", kind="NodeClaim", namespaced=False)
DEVICES: Final = Resource(
    group="scheduling.koordinator.sh", version="v1alpha1", plural="devices", kind="Device", namespaced=False
)
