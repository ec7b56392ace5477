"""When which task runs: the schedule, and the scheduler of the process `beat` that reads it.

Kept true: each task is idempotent (two beats may run) and expires before it is sent again, so a worker that
was away finds no backlog to work off.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import structlog
from celery import Task
from celery.beat import PersistentScheduler
from django.conf import settings

from gpuplane.celery import DEFAULT_QUEUE, WATCH_QUEUE

CANARY_SECONDS = 10

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Periodic:
    """One entry: a task's function by name, its period, its queue; `cluster`: only with `GPUPLANE_KUBECONFIG`."""

    task: str
    seconds: float
    queue: str = DEFAULT_QUEUE
    cluster: bool = False


PERIODIC = (
    Periodic("allocations.tasks.collect", settings.GPUPLANE_COLLECT_SECONDS),
    Periodic("allocations.tasks.reconcile", 25),  # with its own time within the 30 s of LEASE-4
    Periodic("allocations.tasks.expire_holds", 5),
    Periodic("allocations.tasks.tidy_making_way", 5, cluster=True),
    Periodic("nodes.tasks.notice_silent_agents", 5),
    Periodic("nodes.tasks.settle", 5),
    Periodic("nodes.tasks.roll_up", 20),
    Periodic("nodes.tasks.prune_history", 3600),
    Periodic("allocations.tasks.prune", 3600),
    Periodic("audit.tasks.prune", 3600),
    Periodic("access.tasks.prune_idempotency", 3600),
    Periodic("access.tasks.close_sign_in_counts", 60),
    Periodic("allocations.tasks.publish_claims", 2, cluster=True),
    Periodic("allocations.tasks.publish_devices", 30, cluster=True),
    Periodic("allocations.tasks.publish_node_statuses", 30, cluster=True),
    Periodic("allocations.tasks.tell_waiting", 5, cluster=True),
    Periodic("allocations.tasks.plan_waiting", 5, cluster=True),
    Periodic("allocations.tasks.watch_pods", 5, WATCH_QUEUE, cluster=True),
    Periodic("allocations.tasks.watch_scheduling_events", 5, WATCH_QUEUE, cluster=True),
    Periodic("nodes.tasks.watch_nodes", 5, WATCH_QUEUE, cluster=True),
    Periodic("claims.tasks.watch_claims", 5, WATCH_QUEUE, cluster=True),
    Periodic("gpuplane.tasks.canary", CANARY_SECONDS),
)


def find_task(path: str) -> Task | None:
    """The task that the function of this name is, None where this build has none."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None
    return found if isinstance(found, Task) else None


def schedule(*, with_cluster: bool) -> dict[str, dict[str, Any]]:
    """Celery's beat schedule from PERIODIC, without what this build or set-up does not have."""
    entries: dict[str, dict[str, Any]] = {}
    for entry in PERIODIC:
        if entry.cluster and not with_cluster:
            continue
        task = find_task(entry.task)
        if task is None:
            log.warning("beat.task_missing", task=entry.task)
            continue
        entries[entry.task] = {
            "task": task.name,
            "schedule": float(entry.seconds),
            "options": {"queue": entry.queue, "expires": entry.seconds},
        }
    return entries


class Scheduler(PersistentScheduler):  # type: ignore[misc]  # celery carries no types
    """Celery's own, reading our schedule; it remembers last runs in the data folder, for the hourly ones."""

    def setup_schedule(self) -> None:
        """Read the schedule when every room can be imported."""
        self.app.conf.beat_schedule = schedule(with_cluster=bool(settings.GPUPLANE_KUBECONFIG))
        super().setup_schedule()
