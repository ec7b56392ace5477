"""Pods that are created, admitted, scheduled, run and end: kube-scheduler and users in one.

Started by `__main__`. Each pod passes both webhooks, filter, prioritize and bind; gpuplane's watch sees its end.
Invariants: pods are scheduled one after another and bound in the background, as by kube-scheduler; about a tenth of the
GPUs of each model stays free; after a restart of either side live allocations are adopted from REST and ended in time,
and no pod of before waits.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import structlog

from kube.keys import SCHEDULER_NAME
from simulator.admission import create
from simulator.api import Api, ApiFailure, Refused, ServerAway
from simulator.cluster.kinds import PODS
from simulator.cluster.store import Store
from simulator.default_scheduler import counted
from simulator.jsonpatch import BadPatch
from simulator.occupancy import Holding, Occupancy, holding_of
from simulator.pod_writes import is_waiting, pod_delete, pod_now, unschedulable_write
from simulator.pods import (
    DOOMED,
    TEAMS,
    TEMPLATES,
    SimPod,
    Template,
    choose,
    claim_manifests,
    is_of_template,
    make_pod,
)

PACE: Final = ((0.12, 0.08), (0.02, 0.4), (0.0, 0.9))
"""(part of the fleet with room, seconds between two pods while there is at least so much room)."""
MOST_WAITING_OF_A_KIND: Final = 1
DOOMED_AFTER_SECONDS: Final = 8.0
DOOMED_EVERY_SECONDS: Final = 10.0
DOOMED_LIFE_SECONDS: Final = 480.0
RETRY_SECONDS: Final = 25.0
GIVE_UP_SECONDS: Final = 120.0
"""After so long users delete a pod that finds no room."""
BIND_ATTEMPTS: Final = 3
SYNC_SECONDS: Final = 20.0
YOUNG_SECONDS: Final = 15.0
"""An allocation bound so recently may be missing from a list."""
MOST_BINDS: Final = 4

log = structlog.get_logger(__name__)


class Workload:
    """The users and the scheduler of the simulated cluster."""

    def __init__(
        self, api: Api, store: Store, occupancy: Occupancy, *, nodes: Sequence[str], rng: random.Random
    ) -> None:
        self._api = api
        self._store = store
        self._occupancy = occupancy
        self._nodes = list(nodes)
        self._rng = rng
        self._ends: dict[str, float] = {}  # allocation id → monotonic seconds
        self._bound_at: dict[str, float] = {}
        self._pending: dict[str, tuple[SimPod, float]] = {}  # uid → (pod, next try)
        self._binding: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(MOST_BINDS)

    async def run(self) -> None:
        """Create the claims, adopt what runs, then let pods come and go until cancelled."""
        for pod in self._store.list(PODS):
            if pod["metadata"]["namespace"] in TEAMS and is_waiting(pod):
                pod_delete(self._store, pod)
        await self._lasting(self.make_claims)
        await self._lasting(self.adopt_running)
        log.info("workload.started", running=len(self._occupancy.holdings), room=self._occupancy.room)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._arrive())
            group.create_task(self._end())
            group.create_task(self._sync())
            group.create_task(self._doom())

    async def make_claims(self) -> None:
        """Create the teams' claims that are missing."""
        made = 0
        present = await self._api.claim_names()
        for manifest in claim_manifests():
            if (manifest["metadata"]["namespace"], manifest["metadata"]["name"]) in present:
                continue
            try:
                made += await self._api.create_claim(manifest)
            except Refused as refused:
                log.warning("workload.claim_refused", claim=manifest["metadata"]["name"], why=str(refused))
        log.info("workload.claims", made=made)

    async def adopt_running(self) -> None:
        """Compare with the live allocations: forget those that are gone, adopt new ones.

        Pods of the teams' own templates get an end; others are left alone.
        """
        now = time.monotonic()
        rows = [holding_of(row) for row in await self._api.live_allocations()]
        live = {row.allocation_id: row for row in rows if row.state in ("reserved", "bound")}
        for allocation_id in list(self._occupancy.holdings):
            if allocation_id not in live and now - self._bound_at.get(allocation_id, now) > YOUNG_SECONDS:
                self._forget(allocation_id)
        for allocation_id, holding in live.items():
            if allocation_id not in self._occupancy.holdings:
                self._occupancy.add(holding)
                self._bound_at[allocation_id] = now
                template = _template_of(holding)
                if template is not None:
                    self._ends[allocation_id] = now + self._rng.uniform(0.05, 1) * template.minutes * 60

    async def schedule(self, pod: SimPod) -> None:
        """Try to schedule the pod; the bind goes on in the background."""
        pod.attempts += 1
        manifest = pod_now(self._store, pod.manifest)
        if manifest is None:
            return
        # as kube-scheduler's own filters do, leave out nodes: of models without room
        room = self._nodes if pod.doomed else self._nodes_for(pod.template)
        if not room:
            self._wait_for_room(pod, "the workload keeps a tenth of each model free")
            return
        answer = await self._api.extender_filter(manifest, room)
        names = answer.get("NodeNames") or []
        if answer.get("Error") or not names:
            refused = (answer.get("FailedNodes") or {}) | (answer.get("FailedAndUnresolvableNodes") or {})
            why = str(answer.get("Error") or counted(refused))
            unschedulable_write(self._store, manifest, why=why, by=SCHEDULER_NAME)
            self._wait_for_room(pod, why)
            return
        scores = await self._api.extender_prioritize(manifest, names)
        node = max(scores, key=lambda score: (score["Score"], score["Host"]))["Host"] if scores else names[0]
        self._occupancy.expect(pod.uid, str(node), pod.template.devices)
        await self._slots.acquire()
        task = asyncio.create_task(self._bind(pod, str(node)))
        self._binding.add(task)
        task.add_done_callback(self._bind_ended)

    async def admit(self, pod: SimPod) -> bool:
        """Send the pod through both webhooks, apply the patch, and store it; whether it was admitted."""
        manifest = await create(self._api, self._store, pod.manifest)
        pod.manifest = manifest or pod.manifest
        return manifest is not None

    async def _bind(self, pod: SimPod, node: str) -> None:
        """Bind the pod, and read its allocation from REST."""
        try:
            error = await self._api.extender_bind(pod.manifest, node)
            if error:
                if pod.attempts < BIND_ATTEMPTS:
                    self._wait_for_room(pod, error, soon=True)
                else:
                    log.warning("pod.given_up", pod=pod.label, node=node, why=error)
                    self._occupancy.arrived(pod.uid)
                    pod_delete(self._store, pod.manifest)
                return
            now = time.monotonic()
            for row in await self._api.allocations_of_pod(pod.uid):
                holding = holding_of(row)
                self._occupancy.add(holding)
                self._bound_at[holding.allocation_id] = now
                self._ends[holding.allocation_id] = now + pod.seconds
            self._occupancy.arrived(pod.uid)
        except ApiFailure as failure:  # the next comparison finds the outcome
            log.warning("pod.bind_unknown", pod=pod.label, why=str(failure))
            self._occupancy.arrived(pod.uid)

    def _bind_ended(self, task: asyncio.Task[None]) -> None:
        self._slots.release()
        self._binding.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("workload.bind_failed", exc_info=task.exception())

    def _wait_for_room(self, pod: SimPod, why: str, *, soon: bool = False) -> None:
        """Queue an unschedulable pod for another attempt, until its user gives up."""
        now = time.monotonic()
        self._occupancy.arrived(pod.uid)
        if pod.give_up_at is None:
            pod.give_up_at = now + (DOOMED_LIFE_SECONDS if pod.doomed else GIVE_UP_SECONDS)
        if now < pod.give_up_at:
            log.debug("pod.pending", pod=pod.label, why=why[:200])
            self._pending[pod.uid] = (pod, now + (1.0 if soon else RETRY_SECONDS))
        else:
            pod_delete(self._store, pod.manifest)

    async def _arrive(self) -> None:
        """Create pods while there is room, and retry pending ones."""
        while True:
            await self._lasting(self._arrive_once)
            part = self._occupancy.room / self._occupancy.size
            pause = next(seconds for least, seconds in PACE if part >= least)
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))

    async def _arrive_once(self) -> None:
        now = time.monotonic()
        due = next((pod for pod, again in self._pending.values() if again <= now), None)
        if due is not None:
            await self._try(due)
        waiting = Counter(pod.template.name for pod, _ in self._pending.values())
        template = choose(
            self._rng, fits=lambda each: waiting[each.name] < MOST_WAITING_OF_A_KIND and self._nodes_for(each)
        )
        if template is not None:
            await self._new_pod(template, doomed=False)

    async def _new_pod(self, template: Template, *, doomed: bool) -> None:
        pod = make_pod(template, self._rng, doomed=doomed)
        try:
            admitted = await self.admit(pod)
        except BadPatch as bad:
            log.error("pod.bad_patch", pod=pod.label, why=str(bad))  # noqa: TRY400 - no traceback needed
            return
        if admitted:
            await self._try(pod)

    async def _try(self, pod: SimPod) -> None:
        """Try to schedule the pod; one that the server refuses is dropped."""
        self._pending.pop(pod.uid, None)
        try:
            await self.schedule(pod)
        except Refused as refused:
            log.error("pod.refused", pod=pod.label, why=str(refused))  # noqa: TRY400 - no traceback needed
            pod_delete(self._store, pod.manifest)

    def _nodes_for(self, template: Template) -> list[str]:
        return self._occupancy.nodes_with_room(template.devices, template.models)

    async def _doom(self) -> None:
        """Keep one pod of each doomed kind pending."""
        await asyncio.sleep(DOOMED_AFTER_SECONDS)
        while True:
            waiting = {pod.template.name for pod, _ in self._pending.values() if pod.doomed}
            missing = [template for template in DOOMED if template.name not in waiting]
            if missing:
                await self._lasting(partial(self._new_pod, missing[0], doomed=True))
            await asyncio.sleep(DOOMED_EVERY_SECONDS)

    async def _end(self) -> None:
        """End pods whose time is over."""
        while True:
            now = time.monotonic()
            for allocation_id in [each for each, at in self._ends.items() if at <= now]:
                self._end_pod(allocation_id)
            await asyncio.sleep(0.5)

    def _end_pod(self, allocation_id: str) -> None:
        holding = self._occupancy.holdings.get(allocation_id)
        if holding is not None:
            meta = {"namespace": holding.namespace, "name": holding.pod_name, "uid": holding.pod_uid}
            pod_delete(self._store, {"metadata": meta})
        self._forget(allocation_id)

    async def _sync(self) -> None:
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            await self._lasting(self.adopt_running)
            log.debug("workload.state", busy=self._occupancy.busy, pending=len(self._pending))

    def _forget(self, allocation_id: str) -> None:
        self._occupancy.remove(allocation_id)
        self._ends.pop(allocation_id, None)
        self._bound_at.pop(allocation_id, None)

    async def _lasting(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do `work`, again after each time that the server was away. Refusals are logged."""
        while True:
            try:
                await work()
            except ServerAway as away:
                log.warning("workload.server_away", why=str(away))
                await self._api.until_alive()
            except Refused as refused:
                log.error("workload.refused", why=str(refused))  # noqa: TRY400 - no traceback needed
                return
            else:
                return


def _template_of(holding: Holding) -> Template | None:
    """The template of the pod; None for other pods."""
    if holding.namespace not in TEAMS:
        return None
    return next((t for t in TEMPLATES if t.team == holding.namespace and is_of_template(holding.pod_name, t)), None)
