"""What runs in the simulated cluster beside its API server: kubelets, the default scheduler, Karpenter.

Started by `__main__`. Invariants: they look at everything after each write, `LEAST_SECONDS` apart, and every
`MOST_SECONDS`; each of them is level-based.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable
from typing import Final

from simulator.cluster.kinds import NODES
from simulator.cluster.store import Store
from simulator.default_scheduler import run_default_scheduler
from simulator.fleet import SimNode
from simulator.karpenter.controller import Karpenter
from simulator.karpenter.pools import POOLS
from simulator.kubelets import run_kubelets

LEAST_SECONDS: Final = 0.3
MOST_SECONDS: Final = 0.5
CAPACITY: Final = {"cpu": "192", "memory": "2Ti", "pods": "110", "ephemeral-storage": "2Ti"}


def nodes_make(store: Store, fleet: Iterable[SimNode]) -> None:
    """Make the fleet's nodes that are missing, and delete those of a larger fleet of before."""
    own = {node.name: node for node in fleet}
    for found in store.list(NODES):
        name = found["metadata"]["name"]
        if name.startswith("gpu-") and name not in own:
            store.delete(NODES, "", name)
    for node in own.values():
        if store.find(NODES, "", node.name) is None:
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": store.moment()}
            status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [ready]}
            body = {"metadata": {"name": node.name, "labels": node.labels}, "spec": {}, "status": status}
            store.create(NODES, "", body)


async def run_controllers(store: Store, rng: random.Random) -> None:
    """All of them, until cancelled."""
    karpenter = Karpenter(store, rng=rng)
    karpenter.install(POOLS)
    while True:
        news = store.news
        run_kubelets(store)
        run_default_scheduler(store)
        karpenter.run()
        await asyncio.sleep(LEAST_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MOST_SECONDS - LEAST_SECONDS):
                await news.wait()
