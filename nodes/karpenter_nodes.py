"""Nodes that Karpenter made and has taken away: removed, since they seldom come back under their name.

Called by `nodes.tasks.settle`. Invariants: nothing that anybody holds is removed, nor a node that is back under its
name; a node that no NodePool made stays known as gone until an admin removes it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import structlog
from django.db.models import Exists, OuterRef

from access.actors import SYSTEM
from access.errors import Conflict
from kube.keys import NODEPOOL_LABEL
from nodes.choices import NodeState, Presence
from nodes.models import Device, Node
from nodes.services import node_remove

GONE_FOR: Final = timedelta(seconds=60)
"""So long it is shown as gone."""
MOST: Final = 100
"""Nodes a call."""

log = structlog.get_logger(__name__)


def grown_nodes_remove(*, now: datetime) -> int:
    """Remove nodes of NodePools that have been gone for a while, with their devices; how many. Idempotent."""
    there = Device.objects.filter(node=OuterRef("pk")).exclude(presence=Presence.REMOVED)
    gone = Node.objects.filter(Exists(there), state=NodeState.GONE, changed_at__lt=now - GONE_FOR)
    removed = 0
    for node in gone.filter(labels__has_key=NODEPOOL_LABEL).exclude(cluster_uid="").order_by("pk")[:MOST]:
        try:
            removed += node_remove(node=node, actor=SYSTEM, now=now, only_gone=True)
        except Conflict as error:
            log.debug("nodes.grown_held", node=node.name, why=str(error))
    return removed
