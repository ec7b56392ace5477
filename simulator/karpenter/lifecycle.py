"""NodeClaims from created to ready: conditions with their times, and the node on the way.

Called by `controller`. Invariants: how long each step takes, and whether there is capacity, follows from the
NodeClaim's UID, so a restart goes on where it was; a NodeClaim without capacity says so before it goes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from kube.keys import NATIVE_GPU, NODEPOOL_LABEL
from simulator.cluster.kinds import NODE_CLAIMS, NODES, Object
from simulator.cluster.store import Store
from simulator.karpenter.pools import Instance

NOT_READY: Final = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
SAID_SECONDS: Final = 2.0
"""How long a NodeClaim without capacity says so."""


class Lifecycle:
    """`no_capacity` is called with the pool whose instance is not to be had."""

    def __init__(self, store: Store, instances: Mapping[str, Instance], no_capacity: Callable[[str], None]) -> None:
        self._store = store
        self._instances = instances
        self._no_capacity = no_capacity

    def run(self) -> None:
        """Take every NodeClaim as far as its age allows."""
        for claim in self._store.list(NODE_CLAIMS):
            instance = self._instances.get(claim["metadata"]["labels"].get(NODEPOOL_LABEL, ""))
            if instance is not None and "deletionTimestamp" not in claim["metadata"]:
                self._along(claim, instance)

    def _along(self, claim: Object, instance: Instance) -> None:
        meta = claim["metadata"]
        rng = random.Random(meta["uid"])  # noqa: S311 - no secret
        launched = rng.uniform(*instance.launch)
        registered = launched + rng.uniform(*instance.register)
        ready = registered + rng.uniform(*instance.ready)
        scarce = rng.randrange(10) < instance.scarce
        age = (self._store.clock() - _moment(meta["creationTimestamp"])).total_seconds()
        if scarce and age >= launched:
            self._refused(claim, instance, gone=age >= launched + SAID_SECONDS)
            return
        if age >= launched:
            self._reached(claim, "Launched")
        if age >= registered and not _has(claim, "Registered"):
            self._register(claim, instance)
        if age >= ready and not _has(claim, "Ready"):
            self._ready(meta["name"], instance)

    def _refused(self, claim: Object, instance: Instance, *, gone: bool) -> None:
        name = claim["metadata"]["name"]
        if gone:
            self._no_capacity(claim["metadata"]["labels"][NODEPOOL_LABEL])
            self._store.delete(NODE_CLAIMS, "", name)
            return
        message = f"no spot capacity of {instance.name} in zone hall-2"
        self._write(
            claim, {"type": "Launched", "status": "False", "reason": "InsufficientCapacity", "message": message}
        )

    def _register(self, claim: Object, instance: Instance) -> None:
        meta = claim["metadata"]
        name = meta["name"]
        if self._store.find(NODES, "", name) is None:
            without = {key: amount for key, amount in instance.resources.items() if key != NATIVE_GPU}
            body = {
                "metadata": {"name": name, "labels": {**meta["labels"], "kubernetes.io/hostname": name}},
                "spec": {"providerID": f"simulated://{name}", "taints": [*claim["spec"].get("taints", ()), NOT_READY]},
                "status": {
                    "capacity": without,
                    "allocatable": without,
                    "conditions": [self._condition("False")],
                },
            }
            self._store.create(NODES, "", body)
        self._store.set_status(NODE_CLAIMS, "", name, nodeName=name)
        self._reached(self._store.get(NODE_CLAIMS, "", name), "Registered")

    def _ready(self, name: str, instance: Instance) -> None:
        """The device plugin is there, the kubelet is ready."""
        node = self._store.find(NODES, "", name)
        if node is None:
            self._store.delete(NODE_CLAIMS, "", name)
            return
        amounts = {"capacity": dict(instance.resources), "allocatable": dict(instance.resources)}
        self._store.set_status(NODES, "", name, **amounts, conditions=[self._condition("True")])
        taints = [one for one in node["spec"].get("taints", ()) if one != NOT_READY]
        self._store.merge(NODES, "", name, {"spec": {"taints": taints or None}})
        for step in ("Initialized", "Ready"):
            self._reached(self._store.get(NODE_CLAIMS, "", name), step)

    def _reached(self, claim: Object, step: str) -> None:
        if not _has(claim, step):
            self._write(claim, {"type": step, "status": "True", "reason": step, "message": ""})

    def _write(self, claim: Object, condition: dict[str, Any]) -> None:
        old = claim["status"].get("conditions") or []
        if any({**one, "lastTransitionTime": ""} == {**condition, "lastTransitionTime": ""} for one in old):
            return
        others = [one for one in old if one["type"] != condition["type"]]
        new = [*others, {**condition, "lastTransitionTime": self._store.moment()}]
        self._store.set_status(NODE_CLAIMS, "", claim["metadata"]["name"], conditions=new)

    def _condition(self, status: str) -> dict[str, str]:
        reason = "KubeletReady" if status == "True" else "KubeletNotReady"
        return {"type": "Ready", "status": status, "reason": reason, "lastTransitionTime": self._store.moment()}


def is_ready(node: Object) -> bool:
    """Whether the kubelet says so."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions") or ())


def _has(claim: Object, step: str) -> bool:
    return any(one["type"] == step and one["status"] == "True" for one in claim["status"].get("conditions") or ())


def _moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
