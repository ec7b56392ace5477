"""Agents of nodes that come and go: each starts when its node is ready, as a pod of a DaemonSet does.

Started by `__main__`. Invariants: an agent has the token of a ServiceAccount, which gpuplane has reviewed; it ends with
its node.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from typing import Final

import structlog

from kube.keys import NODEPOOL_LABEL
from simulator.agents import Agent, Crowd
from simulator.cluster.kinds import NODES, Object
from simulator.cluster.store import Store
from simulator.cluster.tokens import Tokens
from simulator.fleet import SimNode, make_node
from simulator.karpenter.lifecycle import is_ready
from simulator.karpenter.pools import INSTANCES
from simulator.occupancy import Occupancy
from simulator.signals import Meters

START_SECONDS: Final = (1.0, 3.0)
"""From Ready until the agent connects."""

log = structlog.get_logger(__name__)


class GrownNodes:
    """The nodes of NodePools, with their agents."""

    def __init__(self, store: Store, tokens: Tokens, meters: Meters, occupancy: Occupancy, *, url: str) -> None:
        self._store = store
        self._tokens = tokens
        self._meters = meters
        self._occupancy = occupancy
        self._url = url
        self._agents: dict[str, tuple[str, SimNode, asyncio.Task[None]]] = {}
        """Node's name → its UID, what it has, its agent."""

    async def run(self) -> None:
        """Start and end agents until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                news = self._store.news
                self.compare(group)
                await news.wait()

    def compare(self, group: asyncio.TaskGroup) -> None:
        """Start what is missing, end what is left."""
        ready = {
            node["metadata"]["name"]: node for node in self._store.list(NODES) if is_grown(node) and is_ready(node)
        }
        for name, (uid, node, task) in list(self._agents.items()):
            if name not in ready or ready[name]["metadata"]["uid"] != uid:
                task.cancel()
                del self._agents[name]
                self._meters.remove(name)
                self._occupancy.node_went(node)
        for name, found in ready.items():
            if name not in self._agents:
                node = node_of(found)
                self._occupancy.node_came(node)
                self._agents[name] = found["metadata"]["uid"], node, group.create_task(self._agent(node))

    async def _agent(self, node: SimNode) -> None:
        signals = self._meters.add(node, seed=zlib.crc32(node.name.encode()))
        await asyncio.sleep(random.uniform(*START_SECONDS))  # noqa: S311 - no secret
        token = self._tokens.of_agent(node.name, now=time.time())
        log.info("agent.starts", node=node.name)
        await Agent(node, 0, signals=signals, crowd=Crowd(0), url=self._url, token=token, phase=0.0).run()


def is_grown(node: Object) -> bool:
    """Whether a NodePool has made it."""
    return (node["metadata"].get("labels") or {}).get(NODEPOOL_LABEL) in INSTANCES


def node_of(node: Object) -> SimNode:
    """What the node has."""
    labels = node["metadata"]["labels"]
    return make_node(INSTANCES[labels[NODEPOOL_LABEL]].machine, node["metadata"]["name"], labels[NODEPOOL_LABEL])
