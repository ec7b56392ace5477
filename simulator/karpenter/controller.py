"""Runs the parts of the make-believe Karpenter, and adds up what its pools have."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Final

from simulator.cluster.kinds import NODE_POOLS, Object, Refusal
from simulator.cluster.store import Store
from simulator.karpenter.disruption import Disruption
from simulator.karpenter.lifecycle import Lifecycle
from simulator.karpenter.pools import INSTANCES, Instance
from simulator.karpenter.provisioner import NODES_LIMIT, Provisioner

CONFLICT: Final = 409


class Karpenter:
    """One round: `run`. Needs no other state than the store's for a restart."""

    def __init__(self, store: Store, *, rng: random.Random, instances: Mapping[str, Instance] = INSTANCES) -> None:
        self._store = store
        self._provisioner = Provisioner(store, instances, rng)
        self._lifecycle = Lifecycle(store, instances, self._provisioner.no_capacity)
        self._disruption = Disruption(store)

    def install(self, pools: Iterable[Object]) -> None:
        """Make the NodePools that are missing."""
        for pool in pools:
            try:
                self._store.create(NODE_POOLS, "", pool)
            except Refusal as refusal:
                if refusal.code != CONFLICT:
                    raise

    def run(self) -> None:
        """One round."""
        self._provisioner.run()
        self._lifecycle.run()
        self._disruption.run(nominated=self._provisioner.nominated)
        for pool in self._store.list(NODE_POOLS):
            self._count(pool)

    def _count(self, pool: Object) -> None:
        """What its NodeClaims have together, in its status; nothing of a resource that is gone."""
        name = pool["metadata"]["name"]
        used = self._provisioner.used(name)
        old = (pool.get("status") or {}).get("resources") or {}
        new = {key: str(used[key] // 1000) for key in sorted({*used, *old, NODES_LIMIT})}
        if new != old:
            self._store.set_status(NODE_POOLS, "", name, resources=new)
