"""All kubelets and the collection of pods: what is bound runs, what is deleted ends, pods of nodes that went go."""

from __future__ import annotations

from simulator.cluster.kinds import NODES, PODS
from simulator.cluster.store import Store


def run_kubelets(store: Store) -> None:
    """One round."""
    for pod in store.list(PODS):
        meta, node = pod["metadata"], pod["spec"].get("nodeName")
        if not node:
            continue
        if "deletionTimestamp" in meta or store.find(NODES, "", node) is None:
            store.delete(PODS, meta["namespace"], meta["name"])
        elif pod["status"].get("phase") == "Pending":
            store.set_status(PODS, meta["namespace"], meta["name"], phase="Running", startTime=store.moment())
