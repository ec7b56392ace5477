"""Nodes: the fields we read, and the annotations, labels and resource amounts we write (DEV-5).

Invariants: a patch names only our own keys, so that nothing of the kubelet or of other controllers is overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kube.client import Cluster
from kube.errors import NotFoundInCluster
from kube.listing import Listing
from kube.objects import Condition, Named, Taint
from kube.resources import NODES


class NodeSpec(msgspec.Struct, rename="camel", omit_defaults=True):
    """spec of a node."""

    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeStatus(msgspec.Struct, omit_defaults=True):
    """status of a node; quantities are not parsed."""

    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: list[Condition] | None = None


class Node(Named):
    """A node."""

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def name(self) -> str:
        """metadata.name."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """metadata.uid; a node that is registered anew has another one."""
        return self.metadata.uid

    @property
    def ready(self) -> bool:
        """Whether the Ready condition is True."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())


def find(cluster: Cluster, *, name: str) -> Node | None:
    """The node, or None."""
    try:
        return cluster.get(NODES.path(name=name), Node)
    except NotFoundInCluster:
        return None


def list_all(cluster: Cluster) -> Listing[Node]:
    """Every node."""
    return cluster.list(NODES.path(), Node)


def annotate(cluster: Cluster, *, name: str, annotations: Mapping[str, str | None]) -> Node:
    """Set annotations, and remove those that are None. Any change makes kube-scheduler retry refused pods."""
    return cluster.patch(NODES.path(name=name), {"metadata": {"annotations": annotations}}, Node)


def label(cluster: Cluster, *, name: str, labels: Mapping[str, str | None]) -> Node:
    """Set labels, and remove those that are None."""
    return cluster.patch(NODES.path(name=name), {"metadata": {"labels": labels}}, Node)


def advertise(
    cluster: Cluster, *, name: str, amounts: Mapping[str, int | str | None], timeout: float | None = None
) -> Node:
    """Set these resources in status.capacity and status.allocatable, and remove those that are None.

    A merge patch: names with a slash need no escaping, and all names go in one write.
    """
    quantities = {key: None if amount is None else str(amount) for key, amount in amounts.items()}
    body = {"status": {"capacity": quantities, "allocatable": quantities}}
    return cluster.patch(NODES.path(name=name, subresource="status"), body, Node, timeout=timeout)
