"""Leases: the cluster's own lock on a device, one `coordination.k8s.io/v1` object each.

Called by the ledger's Kubernetes port and by reconciliation. Names and holders are the caller's (DESIGN §3: `gpu-<node>-<minor>`;
`<namespace>/<pod>/<uid>`, or `gpuplane/shares` with the sharers in an annotation). Kept true: a Lease is changed only
under the resourceVersion that was read and deleted only under its uid, so a stranger's is never touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from kube import keys
from kube.client import Cluster
from kube.errors import AlreadyExists, NotFoundInCluster
from kube.names import is_label_value
from kube.objects import ObjectMeta
from kube.posts import Posts
from kube.resources import LEASES, NAMESPACES

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "gpuplane"
NODE: Final = "gpu.scheduling/node"
DEVICE_UUID: Final = "gpu.scheduling/device-uuid"


class _Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    acquire_time: datetime | None = None


class _Wire(msgspec.Struct):
    """A Lease as the API writes it."""

    metadata: ObjectMeta
    spec: _Spec | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A Lease that exists. `uid` and `resource_version` are the preconditions of the next write."""

    namespace: str
    name: str
    holder_identity: str
    uid: str
    resource_version: str
    acquire_time: datetime | None = None
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}

    @property
    def ours(self) -> bool:
        """Made by gpuplane (some pod holds it through us), not by a stranger."""
        return self.labels.get(MANAGED_BY) == MANAGER

    @property
    def node(self) -> str:
        """The node of the device, as `create` noted it; empty on a stranger's."""
        return self.annotations.get(NODE, "")

    @property
    def device_uuid(self) -> str:
        """The device, as `create` noted it; empty on a stranger's."""
        return self.annotations.get(DEVICE_UUID, "")

    @property
    def shared(self) -> bool:
        """Whether it stands for the sharers of one device."""
        return self.holder_identity == keys.SHARED_HOLDER

    @property
    def sharers(self) -> tuple[str, ...]:
        """Holder identities of the sharers, sorted; empty for a whole device and for a `damaged` list."""
        return self._sharers() or ()

    @property
    def damaged(self) -> bool:
        """Shared, but the list of sharers cannot be read (written by hand): not to be joined, and reported by reconciliation."""
        return self.shared and self._sharers() is None

    def _sharers(self) -> tuple[str, ...] | None:
        try:
            return tuple(sorted(set(msgspec.json.decode(self.annotations.get(keys.SHARERS, "[]"), type=list[str]))))
        except msgspec.DecodeError:
            return None


def sharers_text(sharers: Iterable[str]) -> str:
    """The value of the annotation `gpu.scheduling/sharers`: a JSON array, sorted, without doubles."""
    return msgspec.json.encode(sorted(set(sharers))).decode()


def create(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    holder: str,
    now: datetime,
    node: str = "",
    device_uuid: str = "",
    sharers: Iterable[str] = (),
    annotations: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Lease:
    """Take the device: create succeeds for exactly one caller. The namespace is made if missing.

    `now` is when it was acquired. Node and device are noted for people. Raises `AlreadyExists` (read it: it may be
    ours, see `ensure`), `OutcomeUnknown`, and the rest of the tree.
    """
    path = LEASES.path(namespace=namespace)
    body = _new(namespace, name, holder, now, node, device_uuid, sharers, annotations)
    try:
        wire = cluster.create(path, body, _Wire, timeout=timeout)
    except NotFoundInCluster as error:
        if error.details.kind != NAMESPACES.plural:
            raise
        ensure_namespace(cluster, name=namespace)
        wire = cluster.create(path, body, _Wire, timeout=timeout)
    return _lease(wire)


async def create_evented(
    posts: Posts,
    *,
    namespace: str,
    name: str,
    holder: str,
    now: datetime,
    node: str,
    device_uuid: str,
    seconds: float,
    before: float,
) -> None:
    """Like `create` for a whole device, once, on the event loop (`Posts.post`); the namespace must be there."""
    body = _new(namespace, name, holder, now, node, device_uuid)
    await posts.post(LEASES.path(namespace=namespace), body, seconds=seconds, before=before)


def ensure(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    holder: str,
    now: datetime,
    node: str = "",
    device_uuid: str = "",
    timeout: float | None = None,
) -> Lease:
    """Like `create` for a whole device, and safe to repeat after `OutcomeUnknown`: a Lease with our own identity is ours.

    Raises `AlreadyExists` when somebody else holds it.
    """
    try:
        return create(
            cluster,
            namespace=namespace,
            name=name,
            holder=holder,
            now=now,
            node=node,
            device_uuid=device_uuid,
            timeout=timeout,
        )
    except AlreadyExists:
        found = find(cluster, namespace=namespace, name=name, timeout=timeout)
        if found is not None and found.holder_identity == holder and holder != keys.SHARED_HOLDER:
            return found
        raise


def get(cluster: Cluster, *, namespace: str, name: str, timeout: float | None = None) -> Lease:
    """Raises `NotFoundInCluster`."""
    return _lease(cluster.get(LEASES.path(namespace=namespace, name=name), _Wire, timeout=timeout))


def find(cluster: Cluster, *, namespace: str, name: str, timeout: float | None = None) -> Lease | None:
    """The Lease, or None where there is none."""
    try:
        return get(cluster, namespace=namespace, name=name, timeout=timeout)
    except NotFoundInCluster:
        return None


def list_all(cluster: Cluster, *, namespace: str, ours_only: bool = False, timeout: float | None = None) -> list[Lease]:
    """Every Lease of the namespace at one moment; strangers' too unless `ours_only`, since they take devices as well."""
    selector = f"{MANAGED_BY}={MANAGER}" if ours_only else None
    path = LEASES.path(namespace=namespace)
    return [_lease(wire) for wire in cluster.list(path, _Wire, label_selector=selector, timeout=timeout).items]


def replace(
    cluster: Cluster,
    lease: Lease,
    *,
    holder: str | None = None,
    sharers: Iterable[str] | None = None,
    annotations: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> Lease:
    """Write the Lease anew under the resourceVersion that was read; what is None stays.

    Raises `ConflictInCluster` (somebody wrote in between, or it is another object: read again), `NotFoundInCluster`,
    `OutcomeUnknown`.
    """
    told = dict(lease.annotations if annotations is None else annotations)
    if sharers is not None:
        told[keys.SHARERS] = sharers_text(sharers)
    body = _body(
        namespace=lease.namespace,
        name=lease.name,
        holder=lease.holder_identity if holder is None else holder,
        acquired=lease.acquire_time,
        annotations=told,
        labels=lease.labels,
        uid=lease.uid,
        resource_version=lease.resource_version,
    )
    path = LEASES.path(namespace=lease.namespace, name=lease.name)
    return _lease(cluster.replace(path, body, _Wire, timeout=timeout))


def delete(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    uid: str,
    resource_version: str | None = None,
    timeout: float | None = None,
) -> bool:
    """Give the device back: True when deleted now, False when it was gone already (which counts).

    Raises `ConflictInCluster` when the Lease of that name is another one, or (with `resource_version`, for the last
    sharer out) was written since.
    """
    path = LEASES.path(namespace=namespace, name=name)
    try:
        cluster.delete(path, uid=uid, resource_version=resource_version, timeout=timeout)
    except NotFoundInCluster:
        return False
    return True


def ensure_namespace(cluster: Cluster, *, name: str) -> None:
    """Make the namespace if it is missing."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    try:
        cluster.request("POST", NAMESPACES.path(), body=body, idempotent=True)
    except AlreadyExists:
        return


def micro_time(moment: datetime) -> str:
    """metav1.MicroTime: UTC with exactly six digits of fraction, the only form the API server reads."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _new(
    namespace: str,
    name: str,
    holder: str,
    now: datetime,
    node: str,
    device_uuid: str,
    sharers: Iterable[str] = (),
    annotations: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """A Lease as it is created."""
    noted = {NODE: node, DEVICE_UUID: device_uuid}
    told = {key: value for key, value in noted.items() if value} | dict(annotations or {})
    shared = tuple(sharers)
    if shared:
        told[keys.SHARERS] = sharers_text(shared)
    labels = {key: value for key, value in noted.items() if is_label_value(value)} | {MANAGED_BY: MANAGER}
    return _body(namespace=namespace, name=name, holder=holder, acquired=now, annotations=told, labels=labels)


def _body(
    *,
    namespace: str,
    name: str,
    holder: str,
    acquired: datetime | None,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    uid: str = "",
    resource_version: str = "",
) -> dict[str, object]:
    meta = {"namespace": namespace, "name": name, "annotations": annotations, "labels": labels}
    meta |= {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
    spec = {"holderIdentity": holder} | ({"acquireTime": micro_time(acquired)} if acquired else {})
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta, "spec": spec}


def _lease(wire: _Wire) -> Lease:
    meta, spec = wire.metadata, wire.spec or _Spec()
    return Lease(
        namespace=meta.namespace,
        name=meta.name,
        holder_identity=spec.holder_identity or "",
        uid=meta.uid,
        resource_version=meta.resource_version,
        acquire_time=spec.acquire_time,
        annotations=meta.annotations or {},
        labels=meta.labels or {},
    )
