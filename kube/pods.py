"""Pods: read, bind, evict, delete, and events on them.

Called by the ledger's saga, by collection and by reconciliation. Kept true: every write names the uid of the pod
it means, so a pod made anew under the same name is never hit; nothing here decides, and a lost answer is always told.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from kube.client import Cluster
from kube.errors import NotFoundInCluster
from kube.listing import Listing
from kube.objects import Pod
from kube.posts import Posts
from kube.resources import EVENTS, PODS

COMPONENT: Final = "gpuplane"
MESSAGE_LONGEST: Final = 1024
NOT_FOUND: Final = "NotFound"
"""Reason of an API server's own 404 about an object."""


def get(cluster: Cluster, *, namespace: str, name: str, timeout: float | None = None, retry: bool = True) -> Pod:
    """Raises `NotFoundInCluster`."""
    return cluster.get(PODS.path(namespace=namespace, name=name), Pod, timeout=timeout, retry=retry)


def find(
    cluster: Cluster, *, namespace: str, name: str, timeout: float | None = None, retry: bool = True
) -> Pod | None:
    """The pod, or None where there is none. `retry=False`: asked for once. Raises `NotFoundInCluster` where something else than an API server says 404."""
    try:
        return get(cluster, namespace=namespace, name=name, timeout=timeout, retry=retry)
    except NotFoundInCluster as error:
        if error.reason != NOT_FOUND:  # a proxy in front of it, say
            raise
        return None


def list_all(
    cluster: Cluster,
    *,
    namespace: str | None = None,
    label_selector: str | None = None,
    field_selector: str | None = None,
    timeout: float | None = None,
) -> Listing[Pod]:
    """The pods of a namespace, or of all, at one moment."""
    return cluster.list(
        PODS.path(namespace=namespace),
        Pod,
        label_selector=label_selector,
        field_selector=field_selector,
        timeout=timeout,
    )


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The pod of that uid goes to that node, and gets these annotations in the same write (CLUSTER: a Binding carries metadata)."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str] = {}
    version: str = ""
    """The pod's resourceVersion: a precondition, if given."""

    @property
    def path(self) -> str:
        """Where it is posted."""
        return PODS.path(namespace=self.namespace, name=self.name, subresource="binding")

    @property
    def body(self) -> dict[str, object]:
        """As the API server reads it."""
        meta: dict[str, object] = {"namespace": self.namespace, "name": self.name, "uid": self.uid}
        meta |= {"annotations": self.annotations} if self.annotations else {}
        meta |= {"resourceVersion": self.version} if self.version else {}
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}


def bind(cluster: Cluster, binding: Binding, *, timeout: float | None = None, retry: bool = True) -> None:
    """Send it. `retry=False`: once, also where it surely was not applied.

    Raises `OutcomeUnknown` when the answer is lost (send it again, then read and compare), `ConflictInCluster` when
    the pod is bound already, is being deleted, or has another uid or resourceVersion, `NotFoundInCluster` when it is gone.
    """
    cluster.request("POST", binding.path, body=binding.body, timeout=timeout, retry=retry)


async def bind_evented(posts: Posts, binding: Binding, *, seconds: float, before: float) -> None:
    """Like `bind`, on the event loop (`Posts.post`)."""
    await posts.post(binding.path, binding.body, seconds=seconds, before=before)


def annotate(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    uid: str,
    annotations: Mapping[str, str],
    version: str = "",
    timeout: float | None = None,
) -> Pod:
    """Set annotations of the pod; the pod as it is then. `version`: its resourceVersion, a precondition, if given.

    Raises `ConflictInCluster` for another uid or resourceVersion, also where a write of which the answer was lost made it so; `NotFoundInCluster`.
    """
    meta: dict[str, object] = {"uid": uid, "annotations": annotations}
    meta |= {"resourceVersion": version} if version else {}
    body = {"metadata": meta}
    return cluster.patch(PODS.path(namespace=namespace, name=name), body, Pod, timeout=timeout)


def evict(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    uid: str,
    grace_seconds: int | None = None,
    timeout: float | None = None,
) -> bool:
    """Ask for eviction through the policy API: True when granted, False when the pod was gone already.

    Granted is not gone: the pod holds its devices until it has ended. Raises `Throttled` (`by_disruption_budget`) when a
    budget forbids it now, `ConflictInCluster` when the pod of that name is another one.
    """
    options: dict[str, object] = {"preconditions": {"uid": uid}}
    options |= {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": options,
    }
    path = PODS.path(namespace=namespace, name=name, subresource="eviction")
    try:
        cluster.request("POST", path, body=body, idempotent=True, timeout=timeout)
    except NotFoundInCluster:
        return False
    return True


def delete(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    uid: str,
    grace_seconds: int | None = None,
    timeout: float | None = None,
) -> bool:
    """Delete the pod: True when asked for now, False when it was gone already. Raises `ConflictInCluster` for another uid."""
    path = PODS.path(namespace=namespace, name=name)
    try:
        cluster.delete(path, uid=uid, grace_seconds=grace_seconds, timeout=timeout)
    except NotFoundInCluster:
        return False
    return True


def event_record(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    uid: str,
    reason: str,
    message: str,
    now: datetime,
    kind: Literal["Normal", "Warning"] = "Normal",
    timeout: float | None = None,
) -> None:
    """Write an event that `kubectl describe pod` shows. `reason` is one CamelCase word; a long message is cut.

    The name is made of pod, uid, reason and `now`, so that telling the same twice is refused as `AlreadyExists`.
    """
    moment = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    suffix = f"{uid[-12:].lower()}-{int(now.timestamp() * 1_000_000):x}-{reason.lower()}".strip("-.")
    body = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": f"{name[: 252 - len(suffix)].rstrip('.-')}.{suffix}"},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
        "reason": reason,
        "message": message[:MESSAGE_LONGEST],
        "type": kind,
        "count": 1,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": "",
    }
    cluster.request("POST", EVENTS.path(namespace=namespace), body=body, timeout=timeout)
