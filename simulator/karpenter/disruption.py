"""Nodes that nobody uses go, with their NodeClaims; so do those of a NodePool that is deleted.

Called by `controller`. Invariants: a node is tainted before it is deleted, and stays if a pod came meanwhile; the
annotation `karpenter.sh/do-not-disrupt` of a node or of a pod on it keeps an empty or used node.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from kube.karpenter import DO_NOT_DISRUPT
from kube.keys import NODEPOOL_LABEL
from simulator.cluster.kinds import NODE_CLAIMS, NODE_POOLS, NODES, PODS, Object
from simulator.cluster.store import Store
from simulator.karpenter.lifecycle import is_ready
from simulator.node_info import FINISHED

DISRUPTED: Final = {"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}
TAINTED: Final = timedelta(seconds=2)
_SECONDS: Final = re.compile(r"(\d+)s")


class Disruption:
    """Memory: since when each node is empty."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._empty_since: dict[str, datetime] = {}

    def run(self, *, nominated: Collection[str] = ()) -> None:
        """Take away what has been empty for as long as its pool says. `nominated`: nodes that pods are to come to."""
        now = self._store.clock()
        pools = {pool["metadata"]["name"]: pool for pool in self._store.list(NODE_POOLS)}
        used = {
            pod["spec"]["nodeName"]
            for pod in self._store.list(PODS)
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in FINISHED
        }
        empty = {}
        for claim in self._store.list(NODE_CLAIMS):
            name = claim["metadata"]["name"]
            pool = pools.get(claim["metadata"]["labels"].get(NODEPOOL_LABEL, ""))
            if pool is None:
                self._end(name)
                continue
            node = self._store.find(NODES, "", name)
            if node is None or not is_ready(node):
                continue
            kept = (node["metadata"].get("annotations") or {}).get(DO_NOT_DISRUPT) == "true"
            if kept or name in used or name in nominated:
                self._taint(node, disrupted=False)
                continue
            empty[name] = self._empty_since.get(name, now)
            due = empty[name] + _empty_for(pool)
            if now >= due + TAINTED:
                self._end(name)
            elif now >= due:
                self._taint(node, disrupted=True)
        self._empty_since = empty

    def _taint(self, node: Object, *, disrupted: bool) -> None:
        taints = (node.get("spec") or {}).get("taints") or []
        if (DISRUPTED in taints) != disrupted:
            new = [*taints, DISRUPTED] if disrupted else [one for one in taints if one != DISRUPTED]
            self._store.merge(NODES, "", node["metadata"]["name"], {"spec": {"taints": new or None}})

    def _end(self, name: str) -> None:
        if self._store.find(NODES, "", name) is not None:
            self._store.delete(NODES, "", name)
        self._store.delete(NODE_CLAIMS, "", name)


def _empty_for(pool: Object) -> timedelta:
    found = _SECONDS.fullmatch(str((pool["spec"].get("disruption") or {}).get("consolidateAfter", "0s")))
    return timedelta(seconds=int(found[1]) if found else 0)
