"""Teams whose pods come in waves, and for which there is no GPU until Karpenter makes a node.

Started by `__main__`. Each crew makes pods, waits until they are bound, lets them run for a while and deletes them;
then their nodes are empty, and go. Invariants: nothing waits longer than `GIVE_UP_SECONDS`; pods are asked for again
when a node has changed, as kube-scheduler does, and every `RETRY_SECONDS`; pods of an earlier run are deleted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import structlog

from kube.keys import API_VERSION, CLAIM, SCHEDULER_NAME
from simulator.admission import create
from simulator.api import Api, ApiFailure, Refused, ServerAway
from simulator.cluster.kinds import NODES, PODS, Object
from simulator.cluster.store import Store
from simulator.default_scheduler import counted, feasible
from simulator.karpenter.pools import taint_of
from simulator.node_agents import is_grown
from simulator.node_info import node_infos
from simulator.occupancy import Occupancy, holding_of
from simulator.pod_writes import pod_delete, pod_now, unschedulable_write

GIVE_UP_SECONDS: Final = 240.0
RETRY_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.5

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Wave:
    """So many pods at once. `claim`: the spec of its GpuClaim; else `resources`. `seconds`: how long they run.

    `selected`: they select the label of their crew's pools.
    """

    name: str
    pods: int
    seconds: float
    claim: Mapping[str, Any] | None = None
    resources: Mapping[str, str] | None = None
    selected: bool = False


@dataclass(frozen=True, slots=True)
class Crew:
    """Waves one after another, over and over. `label`: of the pools whose taint its pods tolerate; `begin`: seconds
    after the start; `pause`: between two waves.
    """

    namespace: str
    label: str
    begin: float
    pause: float
    waves: tuple[Wave, ...]


def _claim(count: int, **amounts: Any) -> dict[str, Any]:
    return {"devices": {"count": count, "model": ["B200"], "policy": "none", **amounts}}


CREWS: Final = (
    Crew(
        "burst",
        "burst",
        4,
        35,
        (
            Wave("rush", 16, 40, claim=_claim(1, core=50, memoryRatio=50)),
            Wave("tune", 3, 45, claim=_claim(4, policy="contiguous")),
        ),
    ),
    Crew(
        "live-video",
        "video",
        25,
        45,
        (Wave("stream", 10, 35, resources={"koordinator.sh/gpu": "50"}, selected=True),),
    ),
)


class Waves:
    """The users of one crew, and the scheduler of their pods."""

    def __init__(self, api: Api, store: Store, occupancy: Occupancy, *, crew: Crew, rng: random.Random) -> None:
        self._api = api
        self._store = store
        self._occupancy = occupancy
        self._crew = crew
        self._rng = rng

    async def run(self) -> None:
        """Waves, until cancelled."""
        for pod in self._store.list(PODS, self._crew.namespace):
            pod_delete(self._store, pod)
        await asyncio.sleep(self._crew.begin)
        while True:
            for wave in self._crew.waves:
                try:
                    await self.run_once(wave)
                except ServerAway as away:
                    log.warning("waves.server_away", why=str(away))
                    await self._api.until_alive()
                except Refused as refused:
                    log.error("waves.refused", wave=wave.name, why=str(refused))  # noqa: TRY400 - no traceback needed
                await asyncio.sleep(self._crew.pause * self._rng.uniform(0.8, 1.2))

    async def run_once(self, wave: Wave) -> None:
        """One wave: its pods are made, bound, run and deleted."""
        if wave.claim is not None:
            meta = {"name": wave.name, "namespace": self._crew.namespace}
            claim = {"apiVersion": API_VERSION, "kind": "GpuClaim", "metadata": meta, "spec": dict(wave.claim)}
            await self._api.create_claim(claim)
        pods: list[Object] = []
        try:
            for _ in range(wave.pods):
                pod = await create(self._api, self._store, self._pod(wave))
                pods += [] if pod is None else [pod]
            async with asyncio.timeout(GIVE_UP_SECONDS):
                await self._until_bound(pods)
            await asyncio.sleep(wave.seconds * self._rng.uniform(0.8, 1.2))
        except TimeoutError:
            log.warning("waves.given_up", wave=wave.name)
        finally:
            for pod in pods:
                pod_delete(self._store, pod)
                self._forget(pod)

    async def _until_bound(self, pods: Sequence[Object]) -> None:
        waiting = list(pods)
        seen, again = "", 0.0
        loop = asyncio.get_running_loop()
        while waiting:
            nodes = self._nodes()
            if nodes != seen or loop.time() >= again:
                seen, again = nodes, loop.time() + RETRY_SECONDS
                waiting = [pod for pod in waiting if not await self._placed(pod)]
            await asyncio.sleep(LOOK_SECONDS)

    def _nodes(self) -> str:
        """Changes when a node of a NodePool comes, changes or goes."""
        return " ".join(node["metadata"]["resourceVersion"] for node in self._store.list(NODES) if is_grown(node))

    async def _placed(self, pod: Object) -> bool:
        """Whether it is bound, or gone."""
        now = pod_now(self._store, pod)
        if now is None or now["spec"].get("nodeName"):
            return True
        names, why = feasible(now, node_infos(self._store))
        if names:
            answer = await self._api.extender_filter(now, names)
            refused = (answer.get("FailedNodes") or {}) | (answer.get("FailedAndUnresolvableNodes") or {})
            names, why = answer.get("NodeNames") or [], counted(refused)
        if not names:
            unschedulable_write(self._store, now, why=why, by=SCHEDULER_NAME)
            return False
        error = await self._api.extender_bind(now, names[0])
        if error:
            log.info("waves.not_bound", pod=now["metadata"]["name"], why=error)
            return False
        await self._hold(now)
        return True

    async def _hold(self, pod: Object) -> None:
        """Set the loads of its GPUs."""
        try:
            for row in await self._api.allocations_of_pod(pod["metadata"]["uid"]):
                self._occupancy.add(holding_of(row))
        except ApiFailure as failure:  # the next comparison of the workload finds it
            log.info("waves.unread", pod=pod["metadata"]["name"], why=str(failure))

    def _forget(self, pod: Object) -> None:
        holdings = self._occupancy.holdings.values()
        for allocation_id in [one.allocation_id for one in holdings if one.pod_uid == pod["metadata"]["uid"]]:
            self._occupancy.remove(allocation_id)

    def _pod(self, wave: Wave) -> dict[str, Any]:
        tail = "".join(self._rng.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
        container: dict[str, Any] = {"name": "main", "image": "registry.example/burst/worker:3"}
        amounts = {"cpu": "2", "memory": "8Gi", **(wave.resources or {})}
        container["resources"] = {"requests": amounts, "limits": dict(wave.resources or {})}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{wave.name}-{tail}",
                "namespace": self._crew.namespace,
                "uid": str(UUID(int=self._rng.getrandbits(128), version=4)),
                "labels": {"app": wave.name},
                "annotations": {CLAIM: wave.name} if wave.claim is not None else {},
            },
            "spec": {
                "schedulerName": SCHEDULER_NAME,
                "restartPolicy": "Never",
                "nodeSelector": {"pool": self._crew.label} if wave.selected else {},
                "tolerations": [{**taint_of(self._crew.label), "operator": "Equal"}],
                "containers": [container],
            },
            "status": {"phase": "Pending"},
        }
