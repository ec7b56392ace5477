"""Which node a pod that waits gets: one there, one that is coming, or a new one of a NodePool.

Called by `controller`. Invariants: pods are taken in order of their age; a pod is nominated once for each node; a pool
is used up to its limits, those that are heavier first.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from kube.keys import NODEPOOL_LABEL
from kube.quantities import parse_milli
from simulator.cluster.kinds import NODE_CLAIMS, NODE_POOLS, NODES, PODS, Object
from simulator.cluster.store import Store
from simulator.karpenter.lifecycle import is_ready
from simulator.karpenter.pools import Instance, labels_of
from simulator.node_info import NodeInfo, node_info, node_infos
from simulator.pod_writes import event_write, is_unschedulable, is_waiting

KARPENTER: Final = "karpenter"
NODES_LIMIT: Final = "nodes"
CAPACITY_BACK: Final = timedelta(seconds=20)
"""After that an instance that was not to be had is asked for again."""
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


class Provisioner:
    """Memory: what pods were told, and which pools' instances are not to be had till when."""

    def __init__(self, store: Store, instances: Mapping[str, Instance], rng: random.Random) -> None:
        self._store = store
        self._instances = instances
        self._rng = rng
        self._told: dict[str, str] = {}
        self._scarce_until: dict[str, datetime] = {}
        self.nominated: set[str] = set()
        """Nodes, there or coming, that pods which wait should be scheduled on."""

    def run(self) -> None:
        """Nominate every pod that waits and can be helped; say why others cannot."""
        waiting = [pod for pod in self._store.list(PODS) if is_waiting(pod) and is_unschedulable(pod)]
        there_are = {pod["metadata"]["uid"] for pod in waiting}
        self._told = {uid: text for uid, text in self._told.items() if uid in there_are}
        self.nominated = set()
        if not waiting:
            return
        there, coming = self._infos()
        for pod in sorted(waiting, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"])):
            self._place(pod, there, coming)

    def no_capacity(self, pool: str) -> None:
        """Note that the pool's instance is not to be had."""
        self._scarce_until[pool] = self._store.clock() + CAPACITY_BACK

    def _infos(self) -> tuple[dict[str, NodeInfo], dict[str, NodeInfo]]:
        """(nodes that are there, NodeClaims without a node that is ready), with pods nominated before in them."""
        there = node_infos(self._store)
        coming = {}
        for claim in self._store.list(NODE_CLAIMS):
            if "deletionTimestamp" in claim["metadata"]:
                continue
            name = claim["metadata"]["name"]
            node = self._store.find(NODES, "", name)
            if node is None or not is_ready(node):
                labels, taints = claim["metadata"]["labels"], claim["spec"].get("taints") or ()
                coming[name] = node_info(name, labels, taints, claim["status"]["capacity"])
                there.pop(name, None)
        return there, coming

    def _place(self, pod: Object, there: dict[str, NodeInfo], coming: dict[str, NodeInfo]) -> None:
        for kind, infos in (("node", there), ("nodeclaim", coming)):
            info = next((info for _, info in sorted(infos.items()) if not info.refusal(pod)), None)
            if info is not None:
                info.take(pod)
                self._nominate(pod, kind, info.name)
                return
        made, reasons = None, []
        pools = sorted(self._store.list(NODE_POOLS), key=lambda pool: (-pool["spec"].get("weight", 0), _name(pool)))
        for pool in pools:
            instance = self._instances.get(_name(pool))
            if instance is None:
                continue
            why = self._refusal(pod, pool, instance)
            if not why:
                made = self._make(pool, instance)
                break
            reasons.append(f'{why} (NodePool="{_name(pool)}")')
        if made is None:
            self._say(pod, "FailedScheduling", f"Failed to schedule pod, {'; '.join(reasons) or 'no nodepools found'}")
            return
        coming[made.name] = made
        made.take(pod)
        self._nominate(pod, "nodeclaim", made.name)

    def _refusal(self, pod: Object, pool: Object, instance: Instance) -> str:
        """Why the pool makes no node for the pod; empty if it does."""
        taints = pool["spec"]["template"]["spec"].get("taints") or ()
        why = node_info("", labels_of(pool), taints, instance.resources).refusal(pod)
        if why:
            return f"incompatible with nodepool: {why}"
        used = self.used(_name(pool))
        after = {key: used[key] + parse_milli(amount) for key, amount in instance.resources.items()}
        after[NODES_LIMIT] = used[NODES_LIMIT] + 1000
        limits = (pool["spec"].get("limits") or {}).items()
        if any(after.get(key, 0) > parse_milli(most) for key, most in limits):
            return "all available instance types exceed limits for nodepool"
        until = self._scarce_until.get(_name(pool))
        if until is not None and self._store.clock() < until:
            return "no instance type has the required offering"
        return ""

    def used(self, pool: str) -> Counter[str]:
        """What the pool's NodeClaims have together, in thousandths."""
        found: Counter[str] = Counter()
        for claim in self._store.list(NODE_CLAIMS):
            if claim["metadata"]["labels"].get(NODEPOOL_LABEL) == pool:
                found[NODES_LIMIT] += 1000
                found.update({key: parse_milli(amount) for key, amount in claim["status"]["capacity"].items()})
        return found

    def _make(self, pool: Object, instance: Instance) -> NodeInfo:
        """A NodeClaim; what its node will be."""
        name = f"{_name(pool)}-{''.join(self._rng.choices(_LETTERS, k=5))}"
        labels, template = labels_of(pool), pool["spec"]["template"]["spec"]
        taints = template.get("taints") or []
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "requirements": template.get("requirements") or [],
                "taints": taints,
                "resources": {"requests": dict(instance.resources)},
            },
            "status": {"capacity": dict(instance.resources), "conditions": []},
        }
        self._store.create(NODE_CLAIMS, "", body)
        return node_info(name, labels, taints, instance.resources)

    def _nominate(self, pod: Object, kind: str, name: str) -> None:
        self.nominated.add(name)
        self._say(pod, "Nominated", f"Pod should schedule on: {kind}/{name}")

    def _say(self, pod: Object, reason: str, message: str) -> None:
        """Write an event on the pod, where it was told something else before."""
        uid = pod["metadata"]["uid"]
        if self._told.get(uid) != message:
            self._told[uid] = message
            event_write(
                self._store,
                pod,
                reason=reason,
                message=message,
                by=KARPENTER,
                kind="Normal" if reason == "Nominated" else "Warning",
            )


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])
