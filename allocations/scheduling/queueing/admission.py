"""Carries admissions out: holds for all pods of a workload in one transaction, then their gates are removed.

Invariants: a workload whose holds lose a race holds nothing, and the next round decides about it again; a gate is
removed only where the ledger has a hold; one that could not be removed is tried again by every round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
import structlog
from msgspec.structs import replace

from allocations import ledger
from allocations.engine.queueing.rounds import Admission
from allocations.ledger.hold import NewHold, extend_holds
from allocations.ledger.queue_fence import Fence
from allocations.models import PodRefusal
from allocations.scheduling.placement import hold_workloads
from allocations.scheduling.queueing.round_input import RoundInput
from allocations.scheduling.queueing.waiting_rows import WaitingRow
from audit.requeue_notify import announce
from kube import pods
from kube.client import Cluster
from kube.errors import KubeError, NotFoundInCluster
from storage.cursors import write_rows
from storage.transactions import atomic_retry

ACTOR: Final = "queues"
GATED_SECONDS: Final = 60
"""A hold lasts so long while the gate is on."""
UNGATED: Final = timedelta(seconds=30)
"""And so long from the removal of the gate."""
PATCHES_AT_ONCE: Final = 64

log = structlog.get_logger(__name__)

Admitted = tuple[WaitingRow, UUID]
"""A pod, and its allocation."""


def admit(inputs: RoundInput, workloads: Sequence[Sequence[Admission]], *, fence: Fence) -> list[Admitted]:
    """Hold the devices of these workloads, in this order; the pods of those that were admitted.

    Raises NewerDecision when others have decided meanwhile.
    """
    rows = [[inputs.waiting[one.pod] for one in workload] for workload in workloads]
    holds = [
        [_new_hold(row, one) for row, one in zip(some, workload, strict=True)]
        for some, workload in zip(rows, workloads, strict=True)
    ]
    held = hold_workloads(holds, fence=fence, now=inputs.now)
    admitted = [pair for some, ids in zip(rows, held, strict=True) if ids for pair in zip(some, ids, strict=True)]
    if any(not row.pod.gated for row, _ in admitted):
        announce()  # kube-scheduler refused them before
    return admitted


def _new_hold(row: WaitingRow, admission: Admission) -> NewHold:
    pod_request, decision = row.pod.pod_request, admission.decision
    holder = ledger.pod_holder(row.namespace, row.pod_name, row.pod_uid)
    terms = pod_request.terms(holder, by_kubelet=decision.by_kubelet, actor=ACTOR)
    # filter prolongs it where kube-scheduler waits for volumes: nothing is read from the API server within a round
    return NewHold(terms, decision, max(pod_request.hold_seconds, GATED_SECONDS))


def remove_gates(cluster: Cluster, rows: Sequence[Admitted], *, now: datetime) -> None:
    """Remove our gate from these admitted pods, and note it: the watch may see them with their gate for some time."""
    removed = cluster.run(_ungate_all(cluster, [row for row, _ in rows]))
    ungated = [one for one, done in zip(rows, removed, strict=True) if done]
    extend_holds([allocation_id for _, allocation_id in ungated], until=now + UNGATED, now=now)
    _note_ungated([row for row, _ in ungated])


@atomic_retry
def _note_ungated(rows: Sequence[WaitingRow]) -> None:
    ungated = [PodRefusal(pk=row.pk, member=msgspec.to_builtins(replace(row.pod, gated=False))) for row in rows]
    write_rows(ungated, ["member"])


def remove_stale_gates(cluster: Cluster, rows: Sequence[WaitingRow]) -> int:
    """Remove our gate from pods that the queues do not admit (any more); how many gates were removed."""
    return sum(cluster.run(_ungate_all(cluster, rows))) if rows else 0


async def _ungate_all(cluster: Cluster, rows: Sequence[WaitingRow]) -> list[bool]:
    limit = asyncio.Semaphore(PATCHES_AT_ONCE)

    async def ungated(row: WaitingRow) -> bool:
        async with limit:
            try:
                await pods.ungate(cluster, namespace=row.namespace, name=row.pod_name, uid=row.pod_uid)
            except NotFoundInCluster:
                return False
            except KubeError as error:
                log.warning("queues.gate_not_removed", pod=row.pod_name, error=str(error))
                return False
            return True

    return await asyncio.gather(*map(ungated, rows))
