"""Objects that gpuplane keeps for the nodes, one each, cluster-scoped and named after its node: Device (DEV-6) and GpuNodeStatus (NODE-3).

Called by the rooms that know what the objects are to say. Kept true: an object is owned by its node, so that it goes when that goes; one that
somebody changed meanwhile waits for the next turn; a refusal of one hides no other.
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
    """The metadata of an object of this node."""
    return {"name": name, "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]}


def delete(cluster: Cluster, resource: Resource, found: CustomObject) -> None:
    """Delete it; one that is gone already is passed over. Raises `ConflictInCluster` where it was made anew."""
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

    `wanted`: node → what its object is to say, asked for when the objects have been read. `bring` is given name, object (None where there is none) and
    what it is to say (None: nothing), and says whether it wrote. Raises TemporaryKubeError. Without the definition nothing is done.
    """
    try:
        listed = cluster.list(resource.path(), CustomObject)
    except NotFoundInCluster:
        log.warning("owned.no_definition", kind=resource.kind)
        return []
    stored = {one.metadata.name: one for one in listed.items}
    unreadable = {one.key[1] for one in listed.unreadable}
    says = wanted()
    written = []
    for name in sorted((stored.keys() | says.keys()) - unreadable):
        try:
            if bring(name, stored.get(name), says.get(name)):
                written.append(name)
        except (AlreadyExists, ConflictInCluster, NotFoundInCluster) as error:
            # the next turn sees it as it is then
            log.info("owned.changed_meanwhile", kind=resource.kind, name=name, error=str(error))
        except PermanentKubeError as error:
            log.error("owned.refused", kind=resource.kind, name=name, error=str(error))  # noqa: TRY400 - the answer says it all
    return written
