"""Teams whose pods are in queues: gangs of 2 to 8 pods, lone pods, borrowing and reclaim.

Started by `__main__`. Three queues share one limit. Research and batch begin at once and borrow what product deserves;
product comes later, and takes it back. Invariants: a gang's pods are filtered again and again until all are bound, or
its users give up; whatever is left of it is deleted in the end; an installation where the queues exist keeps them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

import structlog

from kube.keys import API_VERSION, GANG_LABEL, QUEUE_LABEL, SCHEDULER_NAME
from simulator.admission import create
from simulator.api import Api, Refused, ServerAway
from simulator.cluster.kinds import PODS
from simulator.cluster.store import Store
from simulator.default_scheduler import counted
from simulator.fleet import FOR_PODS, USE_LABEL
from simulator.pod_writes import pod_delete, pod_now, unschedulable_write

QUEUES: Final[tuple[dict[str, Any], ...]] = (
    {"name": "labs", "spec": {"quotas": [{"deserved": 40, "limit": 40}]}},
    {"name": "research", "spec": {"parent": "labs", "quotas": [{"deserved": 16}]}},
    {"name": "product", "spec": {"parent": "labs", "priority": 200, "quotas": [{"deserved": 24}]}},
    {"name": "batch", "spec": {"parent": "labs", "quotas": [{"deserved": 0, "limit": 16}]}},
)
RETRY_SECONDS: Final = 1.0
GIVE_UP_SECONDS: Final = 90.0
"""After so long users delete a gang that is not whole."""
PAUSE_SECONDS: Final = 15.0
FORGOTTEN_SECONDS: Final = 65.0
"""From giving up to the next run: so long gpuplane takes pods that nobody asks for any more for members of the gang."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """Pods that come again and again. `pods` 1: without a gang; `begin`: seconds after the start."""

    name: str
    namespace: str
    queue: str
    pods: int
    gpus: int
    seconds: float
    begin: float = 0.0


JOBS: Final = (
    Job("ring", "llm-research", "research", 8, 1, 70),
    Job("sweep", "llm-research", "research", 4, 2, 50),
    Job("pair", "llm-research", "research", 2, 4, 60),
    Job("render", "nightly", "batch", 4, 2, 60),
    Job("index", "nightly", "batch", 1, 1, 40),
    Job("assistant", "llm-product", "product", 4, 4, 80, begin=45),
    Job("ranking", "llm-product", "product", 3, 2, 60, begin=55),
)


class QueuedTeams:
    """The users of the queues, and the scheduler of their pods."""

    def __init__(self, api: Api, store: Store, *, nodes: Sequence[str], rng: random.Random) -> None:
        self._api = api
        self._store = store
        self._nodes = list(nodes)
        self._rng = rng

    async def run(self) -> None:
        """Make queues and gangs that are missing, then let jobs come and go until cancelled."""
        for pod in self._store.list(PODS):
            if pod["metadata"]["namespace"] in {job.namespace for job in JOBS}:
                pod_delete(self._store, pod)
        await self._lasting(self.make_objects)
        async with asyncio.TaskGroup() as group:
            for job in JOBS:
                group.create_task(self._job(job))

    async def make_objects(self) -> None:
        """Create what is missing."""
        for queue in QUEUES:
            manifest = {"apiVersion": API_VERSION, "kind": "GpuQueue", "metadata": {"name": queue["name"]}}
            await self._api.create_queue({**manifest, "spec": queue["spec"]})
        for job in JOBS:
            if job.pods > 1:
                meta = {"name": job.name, "namespace": job.namespace}
                spec = {"minMember": job.pods, "timeoutSeconds": int(GIVE_UP_SECONDS)}
                await self._api.create_gang(
                    {"apiVersion": API_VERSION, "kind": "GpuGang", "metadata": meta, "spec": spec}
                )

    async def _job(self, job: Job) -> None:
        await asyncio.sleep(job.begin)
        while True:
            await self._lasting(partial(self.run_once, job))
            await asyncio.sleep(PAUSE_SECONDS * self._rng.uniform(0.5, 1.5))

    async def run_once(self, job: Job) -> None:
        """One run of the job: its pods wait, run, and end."""
        made = [await create(self._api, self._store, self._pod(job)) for _ in range(job.pods)]
        waiting = {pod["metadata"]["uid"]: pod for pod in made if pod is not None}
        started, given_up = list(waiting.values()), False
        try:
            async with asyncio.timeout(GIVE_UP_SECONDS):
                while waiting:
                    for uid, pod in list(waiting.items()):
                        if await self._placed(pod):
                            del waiting[uid]
                    await asyncio.sleep(RETRY_SECONDS)
            await asyncio.sleep(job.seconds * self._rng.uniform(0.7, 1.3))
        except TimeoutError:
            log.debug("queued.given_up", job=job.name, waiting=len(waiting))
            given_up = True
        finally:
            for pod in started:
                pod_delete(self._store, pod)
        if given_up:
            await asyncio.sleep(FORGOTTEN_SECONDS)

    async def _placed(self, pod: dict[str, Any]) -> bool:
        """Whether it is bound, or gone; pods that queues have not admitted are gated."""
        now = pod_now(self._store, pod)
        if now is None or now["spec"].get("nodeName"):
            return True
        if now["spec"].get("schedulingGates"):
            return False
        answer = await self._api.extender_filter(now, self._nodes)
        names = answer.get("NodeNames") or []
        if not names:
            refused = (answer.get("FailedNodes") or {}) | (answer.get("FailedAndUnresolvableNodes") or {})
            unschedulable_write(self._store, now, why=counted(refused), by=SCHEDULER_NAME)
            return False
        return not await self._api.extender_bind(now, names[0])

    def _pod(self, job: Job) -> dict[str, Any]:
        tail = "".join(self._rng.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
        amounts = {"nvidia.com/gpu": str(job.gpus)}
        gang = {GANG_LABEL: job.name} if job.pods > 1 else {}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{job.name}-{tail}",
                "namespace": job.namespace,
                "uid": str(UUID(int=self._rng.getrandbits(128), version=4)),
                "labels": {QUEUE_LABEL: job.queue, **gang},
            },
            "spec": {
                "schedulerName": SCHEDULER_NAME,
                "nodeSelector": {USE_LABEL: FOR_PODS},
                "containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}],
            },
            "status": {"phase": "Pending"},
        }

    async def _lasting(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do the work, again after each time that the server was away. Refusals are logged."""
        while True:
            try:
                await work()
            except ServerAway as away:
                log.warning("queued.server_away", why=str(away))
                await self._api.until_alive()
            except Refused as refused:
                log.error("queued.refused", why=str(refused))  # noqa: TRY400 - no traceback needed
                return
            else:
                return
