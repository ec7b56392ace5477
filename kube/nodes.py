"""Nodes: the few fields we read, and the three things we write on them (annotations, labels, advertised amounts).

Called by the node room's reconciliation, by the reporter of DEV-5 and by whoever announces capacity. Kept true:
a patch names only our own keys, so the kubelet and other controllers are never overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kube.client import Cluster
from kube.errors import NotFoundInCluster
from kube.listing import Listing
from kube.objects import ObjectMeta, Taint
from kube.resources import NODES


class NodeCondition(msgspec.Struct, rename="camel", omit_defaults=True):
    """One condition, such as Ready."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None


class NodeSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """spec of a node."""

    unschedulable: bool = False
    taints: list[Taint] | None = None
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeStatus(msgspec.Struct, omit_defaults=True):
    """status of a node; amounts stay as written (quantities)."""

    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: list[NodeCondition] | None = None


class Node(msgspec.Struct, omit_defaults=True):
    """A node as the API server has it."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def name(self) -> str:
        """metadata.name."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """metadata.uid: another one is another machine under the same name."""
        return self.metadata.uid

    @property
    def labels(self) -> dict[str, str]:
        """The labels, an empty dict where there are none."""
        return self.metadata.labels or {}

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations, an empty dict where there are none."""
        return self.metadata.annotations or {}

    @property
    def ready(self) -> bool:
        """Whether the Ready condition is True; a node that never told is not ready."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())


def get(cluster: Cluster, *, name: str, timeout: float | None = None) -> Node:
    """Raises `NotFoundInCluster`."""
    return cluster.get(NODES.path(name=name), Node, timeout=timeout)


def find(cluster: Cluster, *, name: str, timeout: float | None = None) -> Node | None:
    """The node, or None where there is none."""
    try:
        return get(cluster, name=name, timeout=timeout)
    except NotFoundInCluster:
        return None


def list_all(cluster: Cluster, *, label_selector: str | None = None, timeout: float | None = None) -> Listing[Node]:
    """Every node at one moment."""
    return cluster.list(NODES.path(), Node, label_selector=label_selector, timeout=timeout)


def annotate(
    cluster: Cluster, *, name: str, annotations: Mapping[str, str | None], timeout: float | None = None
) -> Node:
    """Set annotations, or take away those that are None. Any change wakes kube-scheduler's refused pods (DESIGN §3, Announcing)."""
    body = {"metadata": {"annotations": annotations}}
    return cluster.patch(NODES.path(name=name), body, Node, timeout=timeout)


def label(cluster: Cluster, *, name: str, labels: Mapping[str, str | None], timeout: float | None = None) -> Node:
    """Set labels, or take away those that are None."""
    return cluster.patch(NODES.path(name=name), {"metadata": {"labels": labels}}, Node, timeout=timeout)


def advertise(
    cluster: Cluster, *, name: str, amounts: Mapping[str, int | str | None], timeout: float | None = None
) -> Node:
    """Set these resource names in status.capacity and status.allocatable (quantities, or counts), or take away those that are None.

    A merge patch: names with a slash need no escaping, and all names go in one write.
    """
    told = {key: None if amount is None else str(amount) for key, amount in amounts.items()}
    body = {"status": {"capacity": told, "allocatable": told}}
    return cluster.patch(NODES.path(name=name, subresource="status"), body, Node, timeout=timeout)
