"""The GpuClaim watch, which mirrors what others write to the API server (CLAIM-1).

Invariants: before an event creates a row, or a list deletes one, the claim is read from the API server, since REST may
have been faster than the watch.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

import structlog
from django.conf import settings

from claims.mirror import claim_mirror, claim_unmirror, is_older
from claims.models import GpuClaim
from kube import crds
from kube.client import Cluster
from kube.crds import CustomObject
from kube.errors import NotFoundInCluster
from kube.listing import Unreadable
from kube.resources import GPU_CLAIMS
from kube.watch import Changed, Event, Relisted
from kube.watch_loop import TURN_SECONDS, Followed, follow
from storage.clock import database_now
from storage.leader_lock import leader_lock

log = structlog.get_logger(__name__)

NAME = "gpuclaims"


def watch_claims(*, cluster: Cluster, seconds: float = TURN_SECONDS) -> Followed:
    """One turn. Raises `kube.errors`, Redis' and database errors."""
    return follow(
        cluster,
        lock=partial(leader_lock, settings.GPUPLANE_REDIS_URL),
        name=NAME,
        resource=GPU_CLAIMS,
        kind=CustomObject,
        handle=lambda event: handle(event, cluster=cluster, now=database_now()),
        seconds=seconds,
    )


def handle(event: Event[CustomObject], *, cluster: Cluster, now: datetime) -> None:
    """Handle an event, which may be late or repeated."""
    if isinstance(event, Relisted):
        relisted(event, cluster=cluster, now=now)
    elif isinstance(event, Unreadable):
        log.error("claims.unreadable", claim="/".join(event.key), why=event.why)
    elif isinstance(event, Changed):
        namespace, name = event.key
        exists = GpuClaim.objects.filter(namespace=namespace, name=name).exists()
        if event.type == "DELETED":
            claim_unmirror(namespace=namespace, name=name, uid=event.object.metadata.uid, now=now)
        elif exists:
            claim_mirror(stored=event.object, now=now)
        else:
            claim_refresh(cluster, namespace=namespace, name=name, now=now)


def relisted(event: Relisted[CustomObject], *, cluster: Cluster, now: datetime) -> None:
    """Mirror all claims, and delete rows of claims that do not exist any more."""
    rows = {
        (namespace, name): version
        for namespace, name, version in GpuClaim.objects.values_list("namespace", "name", "resource_version")
    }
    for key, stored in event.objects.items():
        if key in rows and is_older(stored.metadata.resource_version, rows[key]):
            claim_refresh(cluster, namespace=key[0], name=key[1], now=now)
        else:
            claim_mirror(stored=stored, now=now)
    for namespace, name in rows.keys() - event.keys:
        claim_refresh(cluster, namespace=namespace, name=name, now=now)
    for unreadable in event.unreadable:
        log.error("claims.unreadable", claim="/".join(unreadable.key), why=unreadable.why)


def claim_refresh(cluster: Cluster, *, namespace: str, name: str, now: datetime) -> None:
    """Read a claim from the API server and mirror it. Raises `kube.errors`."""
    try:
        stored = crds.get(cluster, namespace=namespace, name=name)
    except NotFoundInCluster as error:
        if not error.details.kind:
            raise  # the kind is unknown, which says nothing about the claim
        row = GpuClaim.objects.filter(namespace=namespace, name=name).first()
        if row is not None:
            claim_unmirror(namespace=namespace, name=name, uid=str(row.uid), now=now)
    else:
        claim_mirror(stored=stored, now=now, fresh=True)
