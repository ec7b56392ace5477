"""Leases (`coordination.k8s.io/v1`), one for each device in use.

Names and holders are the caller's: `gpu-<node>-<minor>`; `<namespace>/<pod>/<uid>`, or `gpuplane/shares` with the
sharers in an annotation. Invariants: a Lease is changed only under the resourceVersion that was read and deleted only
under its uid, so that nobody else's is touched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from kube import keys
from kube.client import Cluster
from kube.errors import AlreadyExists, NotFoundInCluster, OutcomeUnknown
from kube.keys import MANAGED_BY, MANAGER
from kube.listing import decode
from kube.names import is_label_value
from kube.objects import Named
from kube.resources import LEASES, NAMESPACES

NODE: Final = "gpu.scheduling/node"
DEVICE_UUID: Final = "gpu.scheduling/device-uuid"
UNNAMED_HOLDER: Final = "somebody"
"""Holder of a Lease that names none: whoever made it has the device."""

log = structlog.get_logger(__name__)


class _Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    acquire_time: datetime | None = None


class _Wire(Named):
    """A Lease as the API writes it."""

    spec: _Spec | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A stored Lease. `uid` and `resource_version` are the preconditions of the next write."""

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
        """Whether gpuplane created it."""
        return self.labels.get(MANAGED_BY) == MANAGER

    @property
    def node(self) -> str:
        """The node of the device; empty on Leases that gpuplane did not create."""
        return self.annotations.get(NODE, "")

    @property
    def device_uuid(self) -> str:
        """The UUID of the device; empty on Leases that gpuplane did not create."""
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
        """Whether it is shared and its list of sharers cannot be read."""
        return self.shared and self._sharers() is None

    def _sharers(self) -> tuple[str, ...] | None:
        try:
            return tuple(sorted(set(msgspec.json.decode(self.annotations.get(keys.SHARERS, "[]"), type=list[str]))))
        except msgspec.DecodeError:
            return None


def sharers_text(sharers: Iterable[str]) -> str:
    """The value of the annotation `gpu.scheduling/sharers`: a JSON array, sorted, without duplicates."""
    return msgspec.json.encode(sorted(set(sharers))).decode()


async def create(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    holder: str,
    now: datetime,
    node: str = "",
    device_uuid: str = "",
    sharers: Collection[str] = (),
    timeout: float | None = None,
) -> Lease:
    """Take the device: create succeeds for exactly one caller. A missing namespace is created.

    Raises `AlreadyExists` (it may be our own, see `ensure`), `OutcomeUnknown`, and the rest of the tree.
    """
    path = LEASES.path(namespace=namespace)
    about = {NODE: node, DEVICE_UUID: device_uuid}
    annotations = {key: value for key, value in about.items() if value}
    if sharers:
        annotations[keys.SHARERS] = sharers_text(sharers)
    labels = {key: value for key, value in about.items() if is_label_value(value)} | {MANAGED_BY: MANAGER}
    meta = {"namespace": namespace, "name": name, "annotations": annotations, "labels": labels}
    post = partial(cluster.arequest, "POST", path, body=_body(meta, holder, now), timeout=timeout)
    try:
        answer = await post()
    except NotFoundInCluster as error:
        if error.details.kind != NAMESPACES.plural:
            raise
        await ensure_namespace(cluster, name=namespace)
        answer = await post()
    return _lease(decode(answer, _Wire, request=f"POST {path}"))


async def ensure(
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
    """`create` for a whole device, repeated once after `OutcomeUnknown`: a Lease with the same holder is ours.

    Raises `AlreadyExists` when somebody else holds it.
    """
    place: dict[str, Any] = {"namespace": namespace, "name": name, "timeout": timeout}
    attempt = partial(create, cluster, **place, holder=holder, now=now, node=node, device_uuid=device_uuid)
    try:
        try:
            return await attempt()
        except OutcomeUnknown:
            return await attempt()
    except AlreadyExists:
        found = await find(cluster, **place)
        if found is not None and found.holder_identity == holder and holder != keys.SHARED_HOLDER:
            return found
        raise


async def find(cluster: Cluster, *, namespace: str, name: str, timeout: float | None = None) -> Lease | None:
    """The Lease, or None."""
    try:
        return _lease(await cluster.aget(LEASES.path(namespace=namespace, name=name), _Wire, timeout=timeout))
    except NotFoundInCluster:
        return None


def list_all(cluster: Cluster, *, namespace: str, ours_only: bool = False) -> list[Lease]:
    """Every Lease of the namespace, or with `ours_only` those that gpuplane created.

    One that cannot be read is somebody else's: it takes its device like any other, and is never deleted.
    """
    selector = f"{MANAGED_BY}={MANAGER}" if ours_only else None
    listing = cluster.list(LEASES.path(namespace=namespace), _Wire, label_selector=selector)
    found = [_lease(wire) for wire in listing.items]
    if ours_only:
        return found
    for one in listing.unreadable:
        log.warning("leases.unreadable", lease="/".join(one.key), why=one.why)
        found.append(
            Lease(namespace=namespace, name=one.key[1], holder_identity=UNNAMED_HOLDER, uid="", resource_version="")
        )
    return found


async def replace_sharers(
    cluster: Cluster, lease: Lease, sharers: Iterable[str], *, timeout: float | None = None
) -> Lease:
    """Replace the list of sharers under the resourceVersion that was read.

    Raises `ConflictInCluster` (it was written since, or created again), `NotFoundInCluster`, `OutcomeUnknown`.
    """
    meta = {
        "namespace": lease.namespace,
        "name": lease.name,
        "annotations": lease.annotations | {keys.SHARERS: sharers_text(sharers)},
        "labels": lease.labels,
        "uid": lease.uid,
        "resourceVersion": lease.resource_version,
    }
    path = LEASES.path(namespace=lease.namespace, name=lease.name)
    body = _body(meta, lease.holder_identity, lease.acquire_time)
    answer = await cluster.arequest("PUT", path, body=body, timeout=timeout)
    return _lease(decode(answer, _Wire, request=f"PUT {path}"))


async def delete(cluster: Cluster, *, namespace: str, name: str, uid: str, resource_version: str | None = None) -> bool:
    """Delete the Lease; False when it was gone already.

    Raises `ConflictInCluster` when the Lease has another uid, or (with `resource_version`) was written since.
    """
    path = LEASES.path(namespace=namespace, name=name)
    try:
        await cluster.adelete(path, uid=uid, resource_version=resource_version)
    except NotFoundInCluster:
        return False
    return True


async def ensure_namespace(cluster: Cluster, *, name: str) -> None:
    """Create the namespace if it is missing."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    try:
        await cluster.arequest("POST", NAMESPACES.path(), body=body, idempotent=True)
    except AlreadyExists:
        return


def micro_time(moment: datetime) -> str:
    """metav1.MicroTime: UTC with exactly six digits of fraction, the only form the API server reads."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _body(meta: Mapping[str, Any], holder: str, acquired: datetime | None) -> dict[str, object]:
    spec = {"holderIdentity": holder} | ({"acquireTime": micro_time(acquired)} if acquired else {})
    return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": meta, "spec": spec}


def _lease(wire: _Wire) -> Lease:
    meta, spec = wire.metadata, wire.spec or _Spec()
    return Lease(
        namespace=meta.namespace,
        name=meta.name,
        holder_identity=spec.holder_identity or UNNAMED_HOLDER,
        uid=meta.uid,
        resource_version=meta.resource_version,
        acquire_time=spec.acquire_time,
        annotations=wire.annotations,
        labels=wire.labels,
    )
