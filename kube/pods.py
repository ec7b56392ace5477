"""Pods: read, bind, annotate, evict, and events on them.

Invariants: every write names the pod's uid, so that a new pod of the same name is never changed; a lost answer is
raised as `OutcomeUnknown`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from kube.client import Cluster
from kube.errors import NotFoundInCluster
from kube.listing import Listing
from kube.objects import Pod
from kube.resources import EVENTS, PODS

COMPONENT: Final = "gpuplane"
MESSAGE_LONGEST: Final = 1024
NOT_FOUND: Final = "NotFound"
"""Reason of an API server's own 404 about an object."""


def find(
    cluster: Cluster, *, namespace: str, name: str, timeout: float | None = None, retry: bool = True
) -> Pod | None:
    """`afind` for a thread."""
    return cluster.run(afind(cluster, namespace=namespace, name=name, timeout=timeout, retry=retry))


async def afind(
    cluster: Cluster, *, namespace: str, name: str, timeout: float | None = None, retry: bool = True
) -> Pod | None:
    """The pod, or None. Raises `NotFoundInCluster` where the 404 is not the API server's own."""
    try:
        return await cluster.aget(PODS.path(namespace=namespace, name=name), Pod, timeout=timeout, retry=retry)
    except NotFoundInCluster as error:
        if error.reason != NOT_FOUND:  # e.g. a proxy's
            raise
        return None


def list_all(cluster: Cluster, *, field_selector: str | None = None, timeout: float | None = None) -> Listing[Pod]:
    """The pods of all namespaces."""
    return cluster.list(PODS.path(), Pod, field_selector=field_selector, timeout=timeout)


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """Binds the pod of that uid to the node, and sets these annotations and labels in the same write."""

    namespace: str
    name: str
    uid: str
    node: str
    annotations: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    version: str = ""
    """The pod's resourceVersion as a precondition."""

    @property
    def path(self) -> str:
        """The path of the POST."""
        return PODS.path(namespace=self.namespace, name=self.name, subresource="binding")

    @property
    def body(self) -> dict[str, object]:
        """The body of the POST."""
        meta: dict[str, object] = {"namespace": self.namespace, "name": self.name, "uid": self.uid}
        meta |= {"annotations": self.annotations} if self.annotations else {}
        meta |= {"labels": self.labels} if self.labels else {}
        meta |= {"resourceVersion": self.version} if self.version else {}
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}


async def bind(
    cluster: Cluster,
    binding: Binding,
    *,
    timeout: float | None = None,
    retry: bool = True,
    before: float = math.inf,
) -> None:
    """Send the Binding; options as of `Cluster.arequest`.

    Raises `OutcomeUnknown` when the answer is lost (send it again, then read and compare), `ConflictInCluster` when the
    pod is bound already, is being deleted, or has another uid or resourceVersion, `NotFoundInCluster` when it is gone.
    """
    await cluster.arequest("POST", binding.path, body=binding.body, timeout=timeout, retry=retry, before=before)


async def annotate(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    uid: str,
    annotations: Mapping[str, str],
    version: str = "",
    timeout: float | None = None,
) -> Pod:
    """Set annotations; the pod as stored. `version`: the pod's resourceVersion as a precondition.

    Raises `NotFoundInCluster`; `ConflictInCluster` for another uid or resourceVersion, also where our own first write,
    of which the answer was lost, changed it.
    """
    meta: dict[str, object] = {"uid": uid, "annotations": annotations}
    meta |= {"resourceVersion": version} if version else {}
    path = PODS.path(namespace=namespace, name=name)
    return await cluster.apatch(path, {"metadata": meta}, Pod, timeout=timeout)


async def ungate(cluster: Cluster, *, namespace: str, name: str, uid: str) -> None:
    """Take all scheduling gates off the pod. Raises `NotFoundInCluster`, and `ConflictInCluster` for another uid.

    Call it where ours is the only one: a gate that is put on when a pod is made can only be taken off later.
    """
    path = PODS.path(namespace=namespace, name=name)
    await cluster.apatch(path, {"metadata": {"uid": uid}, "spec": {"schedulingGates": None}}, Pod)


def evict(cluster: Cluster, *, namespace: str, name: str, uid: str, trial: bool = False) -> bool:
    """Evict the pod through the policy API; False when it was gone already. It holds its devices until it has ended.

    `trial`: only ask whether it would be evicted.

    Raises `Throttled` (`by_disruption_budget`) when a budget forbids it now, `ConflictInCluster` for another uid.
    """
    options: dict[str, object] = {"preconditions": {"uid": uid}}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": namespace, "name": name},
        "deleteOptions": options | {"dryRun": ["All"]} if trial else options,
    }
    path = PODS.path(namespace=namespace, name=name, subresource="eviction")
    try:
        cluster.request("POST", path, body=body, idempotent=True)
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
) -> None:
    """Write an event that `kubectl describe pod` shows; a long message is cut. Raises `AlreadyExists` for a repeat.

    The name is made of pod, uid, reason and `now`.
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
    cluster.request("POST", EVENTS.path(namespace=namespace), body=body)
