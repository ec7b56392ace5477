"""The node watch: labels, mode, readiness and end of nodes that have an inventory (LEASE-5).

Called by `nodes.tasks.watch_nodes`, one turn at a time. Kept true: what an event says is compared with the row
and written only where it differs; where the watch has lost its place every node is compared.
"""

from __future__ import annotations

from datetime import datetime

import structlog
from django.conf import settings

from audit.clock import database_now
from kube import nodes as kube_nodes
from kube.client import Cluster
from kube.following import TURN_SECONDS, Followed, follow
from kube.resources import NODES
from kube.watch import Changed, Event, Relisted
from nodes.cluster import follow_all, follow_end, follow_one

log = structlog.get_logger(__name__)

NAME = "nodes"


def watch_nodes(*, cluster: Cluster, seconds: float = TURN_SECONDS) -> Followed:
    """One turn. Raises `kube.errors`, Redis' and database errors."""
    return follow(
        cluster,
        redis_url=settings.GPUPLANE_REDIS_URL,
        name=NAME,
        resource=NODES,
        kind=kube_nodes.Node,
        handle=lambda event: handle(event, now=database_now()),
        seconds=seconds,
    )


def handle(event: Event[kube_nodes.Node], *, now: datetime) -> None:
    """One event, which may be late or come twice."""
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
