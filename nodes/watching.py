"""The node watch: labels, mode, readiness and end of nodes that have an inventory (LEASE-5).

Called by `nodes.tasks.watch_nodes`. Invariants: only differences are written; after a relist every node is compared.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

import structlog
from django.conf import settings

from kube import nodes as kube_nodes
from kube.client import Cluster
from kube.resources import NODES
from kube.watch import Changed, Event, Relisted
from kube.watch_loop import RUN_SECONDS, Followed, follow
from nodes.cluster import follow_all, follow_end, follow_one
from storage.clock import database_now
from storage.leader_lock import leader_lock

log = structlog.get_logger(__name__)

NAME = "nodes"


def watch_nodes(*, cluster: Cluster, seconds: float = RUN_SECONDS) -> Followed:
    """One run. Raises `kube.errors`, Redis' and database errors."""
    return follow(
        cluster,
        lock=partial(leader_lock, settings.GPUPLANE_REDIS_URL),
        name=NAME,
        resource=NODES,
        kind=kube_nodes.Node,
        handle=lambda event: handle(event, now=database_now()),
        seconds=seconds,
    )


def handle(event: Event[kube_nodes.Node], *, now: datetime) -> None:
    """Handle one event, which may be late or repeated."""
    changed: list[str] = []
    if isinstance(event, Relisted):
        unreadable = {item.key[1] for item in event.unreadable}
        changed = follow_all(machines=event.objects.values(), unreadable=unreadable, now=now)
    elif isinstance(event, Changed) and event.type == "DELETED":
        changed = follow_end(name=event.key[1], uid=event.object.uid, now=now)
    elif isinstance(event, Changed):
        changed = follow_one(machine=event.object, now=now)
    for sentence in changed:
        log.info("nodes.followed", change=sentence)
