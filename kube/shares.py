"""The Lease of a shared device: each sharer adds itself, the last one out deletes it (DESIGN §3, Leases).

Called by the ledger's Kubernetes port. Kept true: the list of sharers changes only under the resourceVersion it
was read at, and an emptied Lease is deleted only under uid and resourceVersion, so no sharer is ever lost
to a race. Both verbs may be repeated after any error.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from kube import leases
from kube.client import Cluster
from kube.errors import AlreadyExists, ConflictInCluster, NotFoundInCluster
from kube.keys import SHARED_HOLDER
from kube.leases import Lease

ROUNDS: Final = 32
"""Every lost round means that another sharer won one, so this many in a row do not happen by accident."""


def join(
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
    """Be among the sharers, with the Lease made if missing. `sharer` is a holder identity.

    Raises `AlreadyExists` when somebody holds the device whole (or the list of sharers is damaged), `OutcomeUnknown` (join again, or leave), `ConflictInCluster`
    after too many lost rounds.
    """
    for _ in range(ROUNDS):
        found = leases.find(cluster, namespace=namespace, name=name, timeout=timeout)
        if found is not None and (not found.shared or found.damaged):
            raise AlreadyExists(f"lease {name} is held by {found.holder_identity}, not to be shared", code=409)
        try:
            if found is None:
                return leases.create(
                    cluster,
                    namespace=namespace,
                    name=name,
                    holder=SHARED_HOLDER,
                    now=now,
                    node=node,
                    device_uuid=device_uuid,
                    sharers=(sharer,),
                    timeout=timeout,
                )
            if sharer in found.sharers:
                return found
            return leases.replace(cluster, found, sharers=(*found.sharers, sharer), timeout=timeout)
        except AlreadyExists:
            if found is not None:
                raise
        except (ConflictInCluster, NotFoundInCluster):
            continue
    raise ConflictInCluster(f"lease {name} changed {ROUNDS} times while {sharer} joined", code=409)


def leave(cluster: Cluster, *, namespace: str, name: str, sharer: str, timeout: float | None = None) -> Lease | None:
    """Be among the sharers no more: the Lease that the others keep, or None where none is left or it was never ours.

    Raises `OutcomeUnknown` (leave again), `ConflictInCluster` after too many lost rounds.
    """
    for _ in range(ROUNDS):
        found = leases.find(cluster, namespace=namespace, name=name, timeout=timeout)
        if found is None or not found.shared:
            return None
        if sharer not in found.sharers:
            return found
        left = [other for other in found.sharers if other != sharer]
        try:
            if left:
                return leases.replace(cluster, found, sharers=left, timeout=timeout)
            leases.delete(
                cluster,
                namespace=namespace,
                name=name,
                uid=found.uid,
                resource_version=found.resource_version,
                timeout=timeout,
            )
        except (ConflictInCluster, NotFoundInCluster):
            continue
        return None
    raise ConflictInCluster(f"lease {name} changed {ROUNDS} times while {sharer} left", code=409)
