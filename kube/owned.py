"""Objects that gpuplane keeps for each node, cluster-scoped and named after it: Device (DEV-6), GpuNodeStatus (NODE-3).

Invariants: an object is owned by its node and deleted with it; one that was changed meanwhile is left to the next run;
a failure of one does not stop the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import structlog

from kube.client import Cluster
from kube.crds import CustomObject
from kube.errors import AlreadyExists, ConflictInCluster, NotFoundInCluster, PermanentKubeError
from kube.resources import Resource

T = TypeVar("T")

log = structlog.get_logger(__name__)


def owned_by_node(name: str, uid: str) -> dict[str, Any]:
    """The metadata of an object that this node owns."""
    return {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]}


def delete(cluster: Cluster, resource: Resource, found: CustomObject) -> None:
    """Delete it if it still exists. Raises `ConflictInCluster` where it was created again."""
    try:
        cluster.delete(resource.path(name=found.metadata.name), uid=found.metadata.uid)
    except NotFoundInCluster:
        return


def bring_all(
    cluster: Cluster,
    resource: Resource,
    *,
    wanted: Callable[[], Mapping[str, T]],
    bring: Callable[[str, CustomObject | None, T | None], bool],
) -> list[str]:
    """Bring all objects of the kind up to date; the names of those written or deleted.

    `wanted`, called after the objects were read: node → content. `bring(name, object or None, content or None)` returns
    whether it wrote. Without the kind's definition nothing is done. Raises TemporaryKubeError.
    """
    try:
        listed = cluster.list(resource.path(), CustomObject)
    except NotFoundInCluster:
        log.warning("owned.no_definition", kind=resource.kind)
        return []
    stored = {one.metadata.name: one for one in listed.items}
    unreadable = {one.key[1] for one in listed.unreadable}
    contents = wanted()
    written = []
    for name in sorted((stored.keys() | contents.keys()) - unreadable):
        try:
            if bring(name, stored.get(name), contents.get(name)):
                written.append(name)
        except (AlreadyExists, ConflictInCluster, NotFoundInCluster) as error:
            log.info("owned.changed_meanwhile", kind=resource.kind, name=name, error=str(error))
        except PermanentKubeError as error:
            log.error(  # noqa: TRY400 - no traceback: the answer says it all
                "owned.refused", kind=resource.kind, name=name, error=str(error)
            )
    return written
