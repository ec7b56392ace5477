"""Reservation pods in the cluster: made, read, listed and deleted, with the namespace and rights that they need.

Called by `allocations.scheduling.reservation_pods`. Invariants: a pod is deleted only under its uid; a pod of the name
that we would make is ours where its labels and its node say so, whoever made it (a process that was killed, say).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from kube.client import Cluster
from kube.errors import AlreadyExists, ConflictInCluster, Denied, NotFoundInCluster, PermanentKubeError
from kube.keys import KAI_GPU_GROUP_LABEL, KAI_RESERVATION, MANAGED_BY, MANAGER
from kube.leases import ensure_namespace
from kube.listing import Listing, decode
from kube.objects import Named
from kube.reservation_pod import APP, APP_LABEL, SERVICE_ACCOUNT
from kube.resources import ACCOUNTS, NAMESPACES, PODS, ROLE_BINDINGS, ROLES, Resource

SELECTOR: Final = f"{APP_LABEL}={APP}"
ENDED: Final = frozenset({"Failed", "Succeeded"})
LONGEST_UUID: Final = 128


class _Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    node_name: str = ""


class _Status(msgspec.Struct, omit_defaults=True):
    phase: str = ""
    reason: str = ""
    message: str = ""


class ReservationPod(Named):
    """What is read of a reservation pod."""

    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def uid(self) -> str:
        """Its UID."""
        return self.metadata.uid

    @property
    def group(self) -> str:
        """The group that its label names."""
        return self.labels.get(KAI_GPU_GROUP_LABEL, "")

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs that the program inside has written down; empty before."""
        return reported_uuids(self.annotations.get(KAI_RESERVATION, ""))

    @property
    def ended(self) -> bool:
        """Whether its kubelet has the GPUs back."""
        return self.status.phase in ENDED

    @property
    def failure(self) -> str:
        """Why it will never report its GPUs; empty while it may."""
        if self.ended:
            words = [self.status.reason or f"the reservation pod has {self.status.phase.lower()}", self.status.message]
            return ": ".join(word for word in words if word)
        return "the reservation pod is being deleted" if self.metadata.deletion_timestamp else ""

    def is_for(self, *, node: str, group: str) -> bool:
        """Whether it is the pod of this group."""
        return self.group == group and self.spec.node_name == node


def reported_uuids(text: str) -> tuple[str, ...]:
    """The UUIDs of the annotation, sorted, without duplicates."""
    return tuple(sorted({one.strip()[:LONGEST_UUID] for one in text.split(",") if one.strip()}))


async def create(cluster: Cluster, manifest: Mapping[str, Any], *, timeout: float | None = None) -> ReservationPod:
    """Make the pod, or find the one that was made for the same group before; a missing namespace or account is made.

    Raises `AlreadyExists` where somebody else has a pod of that name, and the rest of `kube.errors`.
    """
    meta = manifest["metadata"]
    path = PODS.path(namespace=meta["namespace"])
    try:
        answer = await _post(cluster, path, manifest, timeout)
    except AlreadyExists:
        found = await find(cluster, namespace=meta["namespace"], name=meta["name"], timeout=timeout)
        node, group = manifest["spec"]["nodeName"], meta["labels"][KAI_GPU_GROUP_LABEL]
        if found is None:
            raise ConflictInCluster("the pod of that name has just gone", request=f"POST {path}") from None
        if not found.is_for(node=node, group=group):
            raise
        return found
    return decode(answer, ReservationPod, request=f"POST {path}")


async def _post(cluster: Cluster, path: str, manifest: Mapping[str, Any], timeout: float | None) -> bytes:
    try:
        return await cluster.arequest("POST", path, body=manifest, idempotent=True, timeout=timeout)
    except (NotFoundInCluster, Denied) as error:
        if not _is_homeless(error):
            raise
        await ensure_home(cluster, namespace=manifest["metadata"]["namespace"])
        return await cluster.arequest("POST", path, body=manifest, idempotent=True, timeout=timeout)


def _is_homeless(error: PermanentKubeError) -> bool:
    """Whether namespace or account are missing; another bind may have made the namespace a moment ago."""
    if isinstance(error, NotFoundInCluster):
        return error.details.kind == NAMESPACES.plural
    return f'serviceaccount "{SERVICE_ACCOUNT}" not found' in error.message


async def find(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    timeout: float | None = None,
) -> ReservationPod | None:
    """The pod, or None."""
    try:
        return await cluster.aget(PODS.path(namespace=namespace, name=name), ReservationPod, timeout=timeout)
    except NotFoundInCluster:
        return None


def list_all(cluster: Cluster, *, namespace: str) -> Listing[ReservationPod]:
    """Every reservation pod of the namespace."""
    return cluster.list(PODS.path(namespace=namespace), ReservationPod, label_selector=SELECTOR)


async def delete(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    uid: str,
    timeout: float | None = None,
) -> bool:
    """Delete the pod at once; False when it was gone already, or another pod has its name."""
    path = PODS.path(namespace=namespace, name=name)
    try:
        await cluster.adelete(path, uid=uid, grace_seconds=0, timeout=timeout)
    except (NotFoundInCluster, ConflictInCluster):
        return False
    return True


async def ensure_home(cluster: Cluster, *, namespace: str) -> None:
    """Make the namespace, and an account in it that may read and patch pods there, where they are missing.

    Raises `kube.errors`: the rights to do so are only there where the chart gives them.
    """
    await ensure_namespace(cluster, name=namespace)
    await asyncio.gather(
        *(
            _ensure(cluster, resource, namespace, body)
            for resource, body in ((ACCOUNTS, {}), (ROLES, _ROLE), (ROLE_BINDINGS, _binding(namespace)))
        )
    )


_ROLE: Final[Mapping[str, Any]] = {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]}]}


def _binding(namespace: str) -> dict[str, Any]:
    return {
        "roleRef": {"apiGroup": ROLES.group, "kind": ROLES.kind, "name": SERVICE_ACCOUNT},
        "subjects": [{"kind": ACCOUNTS.kind, "name": SERVICE_ACCOUNT, "namespace": namespace}],
    }


async def _ensure(cluster: Cluster, resource: Resource, namespace: str, body: Mapping[str, Any]) -> None:
    meta = {"name": SERVICE_ACCOUNT, "namespace": namespace, "labels": {MANAGED_BY: MANAGER}}
    manifest = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta, **body}
    try:
        await cluster.arequest("POST", resource.path(namespace=namespace), body=manifest, idempotent=True)
    except AlreadyExists:
        return
