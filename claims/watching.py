"""The watches of our kinds, which mirror what others write to the API server (CLAIM-1).

Invariants: before an event creates a row, or a list deletes one, the object is read from the API server, since REST may
have been faster than the watch.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import structlog
from django.conf import settings

from claims.kinds import Kind
from claims.mirror import is_older, mirror, refresh, unmirror
from kube.client import Cluster
from kube.crds import CustomObject
from kube.listing import Unreadable
from kube.watch import Changed, Event, Relisted
from kube.watch_loop import RUN_SECONDS, Followed, follow
from storage.clock import database_now
from storage.leader_lock import leader_lock

log = structlog.get_logger(__name__)


def watch(kind: Kind[Any], *, cluster: Cluster, seconds: float = RUN_SECONDS) -> Followed:
    """One run. Raises `kube.errors`, Redis' and database errors."""
    return follow(
        cluster,
        lock=partial(leader_lock, settings.GPUPLANE_REDIS_URL),
        name=kind.resource.plural,
        resource=kind.resource,
        kind=CustomObject,
        handle=lambda event: handle(kind, event, cluster=cluster, now=database_now()),
        seconds=seconds,
    )


def handle(kind: Kind[Any], event: Event[CustomObject], *, cluster: Cluster, now: datetime) -> None:
    """Handle an event, which may be late or repeated."""
    if isinstance(event, Relisted):
        relisted(kind, event, cluster=cluster, now=now)
    elif isinstance(event, Unreadable):
        _note_unreadable(kind, event)
    elif isinstance(event, Changed):
        namespace, name = event.key
        exists = kind.rows.filter(namespace=namespace, name=name).exists()
        if event.type == "DELETED":
            unmirror(kind, namespace=namespace, name=name, uid=event.object.metadata.uid, now=now)
        elif exists:
            mirror(kind, stored=event.object, now=now)
        else:
            refresh(kind, cluster, namespace=namespace, name=name, now=now)


def relisted(kind: Kind[Any], event: Relisted[CustomObject], *, cluster: Cluster, now: datetime) -> None:
    """Mirror all objects, and delete rows of objects that do not exist any more."""
    rows = {
        (namespace, name): version
        for namespace, name, version in kind.rows.values_list("namespace", "name", "resource_version")
    }
    for key, stored in event.objects.items():
        if key in rows and is_older(stored.metadata.resource_version, rows[key]):
            refresh(kind, cluster, namespace=key[0], name=key[1], now=now)
        else:
            mirror(kind, stored=stored, now=now)
    for namespace, name in rows.keys() - event.keys:
        refresh(kind, cluster, namespace=namespace, name=name, now=now)
    for unreadable in event.unreadable:
        _note_unreadable(kind, unreadable)


def _note_unreadable(kind: Kind[Any], event: Unreadable) -> None:
    log.error("manifests.unreadable", kind=kind.name, object="/".join(event.key), why=event.why)
