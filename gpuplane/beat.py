"""When which task runs: the schedule, and the scheduler of the process `beat` that reads it.

Invariants: each task is idempotent and expires soon, so a worker that was away finds a short backlog. Two beats may
run, on one data folder too: a beat keeps nothing, and sends every task as it starts. A clock that is set delays none.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from celery import Task
from celery import beat as celery_beat
from django.conf import settings

from access import tasks as access_tasks
from allocations import tasks as allocation_tasks
from audit import tasks as audit_tasks
from autoscaling import tasks as growth_tasks
from claims import tasks as claim_tasks
from gpuplane import tasks
from gpuplane.celery import DEFAULT_QUEUE
from inference import tasks as slot_tasks
from nodes import tasks as node_tasks
from storage.enqueue import WATCH_QUEUE

CANARY_SECONDS = 10
EXPIRES_SECONDS: Final = 30.0
"""The shortest expiry. A worker whose clock is further ahead discards every task."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """A task, its period, its queue; `cluster`: only with `GPUPLANE_KUBECONFIG`."""

    task: Task
    seconds: float
    queue: str = DEFAULT_QUEUE
    cluster: bool = False


PERIODIC = (
    Periodic(allocation_tasks.collect, settings.GPUPLANE_COLLECT_SECONDS),
    Periodic(allocation_tasks.reconcile, 25),  # with its own time within the 30 s of LEASE-4
    Periodic(allocation_tasks.expire_holds, 5),
    Periodic(allocation_tasks.end_stale_reservations, 5, cluster=True),
    Periodic(node_tasks.notice_silent_agents, 5),
    Periodic(node_tasks.settle, 5),
    Periodic(node_tasks.roll_up, 20),
    Periodic(allocation_tasks.resize_claims, 5),
    Periodic(allocation_tasks.record_queue_usage, 20),
    Periodic(node_tasks.prune_history, 3600),
    Periodic(allocation_tasks.prune, 3600),
    Periodic(audit_tasks.prune, 3600),
    Periodic(access_tasks.prune_idempotency, 3600),
    Periodic(access_tasks.prune_sessions, 3600),
    Periodic(access_tasks.close_sign_in_counts, 60),
    Periodic(allocation_tasks.publish_claims, 2, cluster=True),
    Periodic(allocation_tasks.publish_devices, 30, cluster=True),
    Periodic(allocation_tasks.publish_node_statuses, 30, cluster=True),
    Periodic(allocation_tasks.write_pending_events, 5, cluster=True),
    Periodic(allocation_tasks.plan_waiting, 5, cluster=True),
    Periodic(allocation_tasks.watch_pods, 5, WATCH_QUEUE, cluster=True),
    Periodic(allocation_tasks.watch_scheduling_events, 5, WATCH_QUEUE, cluster=True),
    Periodic(allocation_tasks.run_queues, 5, WATCH_QUEUE),
    Periodic(node_tasks.watch_nodes, 5, WATCH_QUEUE, cluster=True),
    Periodic(claim_tasks.watch_claims, 5, WATCH_QUEUE, cluster=True),
    Periodic(claim_tasks.watch_gangs, 5, WATCH_QUEUE, cluster=True),
    Periodic(claim_tasks.watch_queues, 5, WATCH_QUEUE, cluster=True),
    Periodic(growth_tasks.watch_node_pools, 5, WATCH_QUEUE, cluster=True),
    Periodic(growth_tasks.watch_node_claims, 5, WATCH_QUEUE, cluster=True),
    Periodic(growth_tasks.run_growth, 5, WATCH_QUEUE, cluster=True),
    Periodic(growth_tasks.write_pod_events, 5, cluster=True),
    Periodic(growth_tasks.prune, 3600),
    Periodic(slot_tasks.run_slots, 5, WATCH_QUEUE),
    Periodic(slot_tasks.notice_silent_runners, 5),
    Periodic(slot_tasks.recount_active, 5),
    Periodic(slot_tasks.dispatch_requests, 5),
    Periodic(slot_tasks.prune, 3600),
    Periodic(tasks.canary, CANARY_SECONDS),
)


def schedule(*, with_cluster: bool) -> dict[str, dict[str, Any]]:
    """Celery's beat schedule, by the tasks' names."""
    return {
        entry.task.name: {
            "task": entry.task.name,
            "schedule": float(entry.seconds),
            "options": {"queue": entry.queue, "expires": max(entry.seconds, EXPIRES_SECONDS)},
        }
        for entry in PERIODIC
        if with_cluster or not entry.cluster
    }


class Scheduler(celery_beat.Scheduler):  # type: ignore[misc]  # celery carries no types
    """Celery's own in memory, with this schedule, by the monotonic clock.

    Not its PersistentScheduler, whose file a second beat breaks for the first: either then ends, or sends no more. Nor
    its `tick`, which goes by the wall clock: once that is set back by an hour, nothing is sent for an hour.
    """

    clock = staticmethod(time.monotonic)

    def setup_schedule(self) -> None:
        """Set the schedule, each of its tasks due."""
        self.merge_inplace(schedule(with_cluster=bool(settings.GPUPLANE_KUBECONFIG)))
        self._due = dict.fromkeys(self.schedule, float("-inf"))
        self._closed = False

    def tick(self) -> float:
        """Send what is due; returns seconds until it is to be called again."""
        for name, entry in self.schedule.items():
            if self._due[name] <= self.clock():
                self.apply_entry(entry, producer=self.producer)
                if self._closed:
                    raise SystemExit
                self._due[name] = self.clock() + entry.schedule.run_every.total_seconds()
        wait: float = min(min(self._due.values()) - self.clock(), self.max_interval)
        return max(wait, 0.0)

    def close(self) -> None:
        """End. Celery calls it when a signal comes, and a send under way may take its SystemExit for an error."""
        self._closed = True
        super().close()
