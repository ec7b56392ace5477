"""The GpuClaim watch: what kubectl and others write to the API server reaches our rows (CLAIM-1).

Called by `claims.tasks.watch_claims`, one turn at a time. Kept true: an event says where to look; before a row
is made or taken away on its word, the API server is asked, since REST may have been quicker than the watch.
"""

from __future__ import annotations

from datetime import datetime

import structlog
from django.conf import settings

from audit.clock import database_now
from claims.mirror import claim_mirror, claim_unmirror, is_older
from claims.models import GpuClaim
from kube import crds
from kube.client import Cluster
from kube.crds import CustomObject
from kube.errors import NotFoundInCluster
from kube.following import TURN_SECONDS, Followed, follow
from kube.listing import Unreadable
from kube.resources import GPU_CLAIMS
from kube.watch import Changed, Event, Relisted

log = structlog.get_logger(__name__)

NAME = "gpuclaims"


def watch_claims(*, cluster: Cluster, seconds: float = TURN_SECONDS) -> Followed:
    """One turn. Raises `kube.errors`, Redis' and database errors."""
    return follow(
        cluster,
        redis_url=settings.GPUPLANE_REDIS_URL,
        name=NAME,
        resource=GPU_CLAIMS,
        kind=CustomObject,
        handle=lambda event: handle(event, cluster=cluster, now=database_now()),
        seconds=seconds,
    )


def handle(event: Event[CustomObject], *, cluster: Cluster, now: datetime) -> None:
    """One event, which may be late or come twice."""
    if isinstance(event, Relisted):
        relisted(event, cluster=cluster, now=now)
    elif isinstance(event, Unreadable):
        log.error("claims.unreadable", claim="/".join(event.key), why=event.why)
    elif isinstance(event, Changed):
        namespace, name = event.key
        known = GpuClaim.objects.filter(namespace=namespace, name=name).exists()
        if event.type == "DELETED":
            claim_unmirror(namespace=namespace, name=name, uid=event.object.metadata.uid, now=now)
        elif known:
            claim_mirror(stored=event.object, now=now)
        else:
            look(cluster, namespace=namespace, name=name, now=now)


def relisted(event: Relisted[CustomObject], *, cluster: Cluster, now: datetime) -> None:
    """All that exists: rows of what does not exist any more go, once a look has confirmed it."""
    rows = {
        (namespace, name): version
        for namespace, name, version in GpuClaim.objects.values_list("namespace", "name", "resource_version")
    }
    for key, stored in event.objects.items():
        if key in rows and is_older(stored.metadata.resource_version, rows[key]):
            look(cluster, namespace=key[0], name=key[1], now=now)
        else:
            claim_mirror(stored=stored, now=now)
    for namespace, name in rows.keys() - event.keys:
        look(cluster, namespace=namespace, name=name, now=now)
    for unreadable in event.unreadable:
        log.error("claims.unreadable", claim="/".join(unreadable.key), why=unreadable.why)


def look(cluster: Cluster, *, namespace: str, name: str, now: datetime) -> None:
    """Ask the API server for one claim and follow its answer. Raises `kube.errors`."""
    try:
        stored = crds.get(cluster, namespace=namespace, name=name)
    except NotFoundInCluster as error:
        if not error.details.kind:
            raise  # no such kind at all: that says nothing about the claim
        row = GpuClaim.objects.filter(namespace=namespace, name=name).first()
        if row is not None:
            claim_unmirror(namespace=namespace, name=name, uid=str(row.uid), now=now)
    else:
        claim_mirror(stored=stored, now=now, fresh=True)
