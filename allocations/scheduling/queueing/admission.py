"""Carries admissions out: holds for all pods of a workload in one transaction, then their gates are taken off.

Invariants: a workload whose holds lose a race holds nothing, and is decided about again; a gate is taken off only where
the ledger has a hold; one that could not be taken off is tried again by every round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
import structlog
from msgspec.structs import replace

from allocations import ledger
from allocations.engine.queueing.rounds import Admission
from allocations.errors import LostRace, PodHasOne
from allocations.ledger.hold import NewHold, extend_holds, hold_together
from allocations.ledger.queue_turns import Fence
from allocations.models import PodRefusal
from allocations.scheduling.queueing.picture import Picture
from allocations.scheduling.queueing.waiting_rows import WaitingRow
from allocations.scheduling.unbound import hold_seconds
from audit.requeue_notify import announce
from kube import pods
from kube.client import Cluster
from kube.errors import KubeError, NotFoundInCluster
from storage.cursors import write_rows
from storage.transactions import atomic_retry

ACTOR: Final = "queues"
GATED_SECONDS: Final = 60
"""A hold lasts so long while the gate is on."""
CHANCE: Final = timedelta(seconds=30)
"""And so long from the gate's going."""
PODS_A_TRANSACTION: Final = 64
PATCHES_AT_ONCE: Final = 64

log = structlog.get_logger(__name__)

Part = tuple[WaitingRow, Admission]
Admitted = tuple[WaitingRow, UUID]
"""A pod, and its allocation."""


def admit(picture: Picture, workloads: Sequence[Sequence[Admission]], *, fence: Fence) -> list[Admitted]:
    """Hold the devices of these workloads, in this order; the pods of those that were admitted.

    Raises MovedOn when others have decided meanwhile.
    """
    admitted: list[Admitted] = []
    for batch in _batches([[(picture.waiting[one.pod], one) for one in workload] for workload in workloads]):
        try:
            admitted += _hold([part for workload in batch for part in workload], picture.now, fence)
            continue
        except (LostRace, PodHasOne) as error:
            log.info("queues.race_lost", pods=sum(map(len, batch)), error=str(error))
        for workload in batch if len(batch) > 1 else ():
            try:
                admitted += _hold(workload, picture.now, fence)
            except (LostRace, PodHasOne) as error:
                log.info("queues.race_lost", pod=workload[0][0].pod_name, error=str(error))
    if any(not row.pod.gated for row, _ in admitted):
        announce()  # kube-scheduler refused them before
    return admitted


def _batches(workloads: Sequence[list[Part]]) -> Iterator[list[list[Part]]]:
    """Workloads that share a transaction, which costs the same for one pod as for many."""
    batch: list[list[Part]] = []
    for workload in workloads:
        if batch and sum(map(len, batch)) + len(workload) > PODS_A_TRANSACTION:
            yield batch
            batch = []
        batch.append(workload)
    if batch:
        yield batch


def _hold(parts: Sequence[Part], now: datetime, fence: Fence) -> list[Admitted]:
    holds = []
    for row, admission in parts:
        asks, decision = row.pod.asks, admission.decision
        holder = ledger.pod_holder(row.namespace, row.pod_name, row.pod_uid)
        seconds = max(hold_seconds(asks), GATED_SECONDS)
        holds.append(NewHold(asks.terms(holder, by_kubelet=decision.by_kubelet, actor=ACTOR), decision, seconds))
    made = hold_together(holds, fence=fence, now=now)
    fence.admissions += 1
    return [(row, allocation_id) for (row, _), allocation_id in zip(parts, made, strict=True)]


def take_gates_off(cluster: Cluster, rows: Sequence[Admitted], *, now: datetime) -> None:
    """Take our gate off these pods, and note it: the watch may see them with their gate for some time."""
    gone = cluster.run(_patch_all(cluster, [row for row, _ in rows]))
    went = [one for one, did in zip(rows, gone, strict=True) if did]
    extend_holds([allocation_id for _, allocation_id in went], until=now + CHANCE, now=now)
    _note_free([row for row, _ in went])


@atomic_retry
def _note_free(rows: Sequence[WaitingRow]) -> None:
    free = [PodRefusal(pk=row.pk, member=msgspec.to_builtins(replace(row.pod, gated=False))) for row in rows]
    write_rows(free, ["member"])


def free_of_gates(cluster: Cluster, rows: Sequence[WaitingRow]) -> int:
    """Take our gate off pods that the queues do not admit (any more); how many gates went."""
    return sum(cluster.run(_patch_all(cluster, rows))) if rows else 0


async def _patch_all(cluster: Cluster, rows: Sequence[WaitingRow]) -> list[bool]:
    limit = asyncio.Semaphore(PATCHES_AT_ONCE)

    async def patched(row: WaitingRow) -> bool:
        async with limit:
            try:
                await pods.ungate(cluster, namespace=row.namespace, name=row.pod_name, uid=row.pod_uid)
            except NotFoundInCluster:
                return False
            except KubeError as error:
                log.warning("queues.gate_left_on", pod=row.pod_name, error=str(error))
                return False
            return True

    return await asyncio.gather(*map(patched, rows))
