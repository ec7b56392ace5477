"""The Lease of a shared device: each sharer adds itself, the last one to leave deletes it.

Invariants: the list of sharers changes only under the resourceVersion it was read at, and an empty Lease is deleted
only under its uid and resourceVersion, so that no sharer is lost in a race. Both verbs may be repeated after any error.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from kube import leases
from kube.client import Cluster
from kube.errors import AlreadyExists, ConflictInCluster, NotFoundInCluster
from kube.keys import SHARED_HOLDER
from kube.leases import Lease

ROUNDS: Final = 32
"""Every lost round means that another sharer won one, so this many in a row do not happen by accident."""


async def join(
    cluster: Cluster,
    *,
    namespace: str,
    name: str,
    sharer: str,
    now: datetime,
    node: str = "",
    device_uuid: str = "",
    timeout: float | None = None,
) -> Lease:
    """Add the sharer, a holder identity; a missing Lease is created.

    Raises `AlreadyExists` when somebody holds the device whole (or the list of sharers is damaged), `OutcomeUnknown`
    (join again, or leave), `ConflictInCluster` after too many lost rounds.
    """
    place: dict[str, Any] = {"namespace": namespace, "name": name, "timeout": timeout}
    about: dict[str, Any] = {"now": now, "node": node, "device_uuid": device_uuid}
    for _ in range(ROUNDS):
        found = await leases.find(cluster, **place)
        if found is not None and (not found.shared or found.damaged):
            raise AlreadyExists(f"lease {name} is held by {found.holder_identity}, not to be shared", code=409)
        try:
            if found is None:
                return await leases.create(cluster, **place, **about, holder=SHARED_HOLDER, sharers=(sharer,))
            if sharer in found.sharers:
                return found
            return await leases.replace_sharers(cluster, found, (*found.sharers, sharer), timeout=timeout)
        except AlreadyExists:
            if found is not None:
                raise
        except (ConflictInCluster, NotFoundInCluster):
            continue
    raise ConflictInCluster(f"lease {name} changed {ROUNDS} times while {sharer} joined", code=409)


async def leave(cluster: Cluster, *, namespace: str, name: str, sharer: str) -> Lease | None:
    """Remove the sharer: the Lease that the others keep, or None where none is left or it is not shared.

    Raises `OutcomeUnknown` (leave again), `ConflictInCluster` after too many lost rounds.
    """
    for _ in range(ROUNDS):
        found = await leases.find(cluster, namespace=namespace, name=name)
        if found is None or not found.shared:
            return None
        if sharer not in found.sharers:
            return found
        left = [other for other in found.sharers if other != sharer]
        try:
            if left:
                return await leases.replace_sharers(cluster, found, left)
            await leases.delete(
                cluster, namespace=namespace, name=name, uid=found.uid, resource_version=found.resource_version
            )
        except (ConflictInCluster, NotFoundInCluster):
            continue
        return None
    raise ConflictInCluster(f"lease {name} changed {ROUNDS} times while {sharer} left", code=409)
