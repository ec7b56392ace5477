"""Periodic work on the ledger. Each task is idempotent and may run any number of times at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TypeVar

import msgspec
import structlog
from celery import shared_task
from django.conf import settings

from allocations import reconcile as reconciling
from allocations import waiting, watching
from allocations.backends import current_backends
from allocations.choices import LIVE
from allocations.models import Allocation, QueueUsage
from allocations.publish import node_statuses, pending_events, queue_status
from allocations.publish.claim_status import Publisher
from allocations.queue_usage.recording import record_usage
from allocations.reconcile.garbage_collection import collect_garbage
from allocations.reconcile.report import ACTOR
from allocations.scheduling import expired_holds, preemption
from allocations.scheduling.queueing import loop
from allocations.scheduling.queueing.rounds import WRITE_EVENTS
from allocations.scheduling.resizing import resize_claims as follow_claims
from allocations.watch_runs import run_and_continue, run_on_cluster
from kube.client import Cluster
from kube.errors import KubeError
from nodes import device_objects
from nodes.unverified_devices import TASK as NEWCOMERS
from storage.clock import database_now
from storage.leader_lock import leader_lock, run_alone

PRUNE_BATCH = 1000
PRUNE_BATCHES = 100

Result = TypeVar("Result")

log = structlog.get_logger(__name__)
_publisher = Publisher()
_queue_publisher = queue_status.Publisher()


@shared_task(name="allocations.tasks.expire_holds", ignore_result=True)
def expire_holds() -> int:
    """Drop holds past their time, and those on nodes that are gone."""
    return expired_holds.drop_useless_holds(database_now())


@shared_task(name="allocations.tasks.end_stale_reservations", ignore_result=True)
def end_stale_reservations() -> int:
    """End the reservations of preemptors that are over."""
    return preemption.end_stale(now=database_now(), backends=current_backends())


@shared_task(name="allocations.tasks.collect", ignore_result=True)
def collect() -> dict[str, int]:
    """One run of garbage collection."""
    found: dict[str, int] = msgspec.to_builtins(collect_garbage(now=database_now(), backends=current_backends()))
    return found


@shared_task(name="allocations.tasks.resize_claims", ignore_result=True)
def resize_claims() -> int:
    """Resize the shares of claims that were edited and say so (every 5 s); one worker at a time."""
    return _alone("resize-claims", lambda: follow_claims(backends=current_backends(), now=database_now())) or 0


@shared_task(name="allocations.tasks.prune", ignore_result=True)
def prune() -> int:
    """Delete ended allocations older than the audit trail, in batches, and expired hours of the queues' usage."""
    limit = database_now() - timedelta(days=settings.GPUPLANE_AUDIT_DAYS)
    deleted = 0
    for _ in range(PRUNE_BATCHES):
        ids = list(Allocation.objects.filter(ended_at__lt=limit).values_list("id", flat=True)[:PRUNE_BATCH])
        if not ids:
            break
        Allocation.objects.filter(id__in=ids).delete()
        deleted += len(ids)
    QueueUsage.objects.filter(start__lt=database_now() - timedelta(days=settings.GPUPLANE_HOURS_KEPT_DAYS)).delete()
    return deleted


@shared_task(name="allocations.tasks.record_queue_usage", ignore_result=True)
def record_queue_usage() -> int:
    """Add what queues held and used in the minutes that are over (every 20 s); one worker at a time."""
    return _alone("queue-usage", lambda: record_usage(now=database_now())) or 0


@shared_task(name="allocations.tasks.reconcile", ignore_result=True)
def reconcile() -> None:
    """Compare the ledger with the cluster (every 25 s, and on start); one worker at a time."""
    _alone("reconcile", lambda: reconciling.reconcile(backends=current_backends(), now=database_now()))


def _alone(name: str, work: Callable[[], Result]) -> Result | None:
    return run_alone(settings.GPUPLANE_REDIS_URL, name, work)


@shared_task(name=NEWCOMERS, ignore_result=True)
def read_newcomers() -> None:
    """Open the devices that an inventory has brought (as reconciling does, but sooner); one worker at a time."""
    backends = current_backends()
    # Devices that come while another worker is at it are left to that one, which looks again afterwards.
    while backends.cluster is not None and reconciling.unverified():
        with leader_lock(settings.GPUPLANE_REDIS_URL, "newcomers") as ours:
            if ours is None:
                return
            try:
                if not reconciling.verify_devices(backends=backends, now=database_now()):
                    return
            except KubeError as error:
                log.warning("unverified_devices.unread", error=str(error))
                return


@shared_task(name="allocations.tasks.watch_pods", ignore_result=True)
def watch_pods() -> None:
    """One run of the pod watch; the next follows at once, or by the beat where this one ended badly."""
    run_on_cluster(watch_pods.name, "pods", lambda cluster: watching.watch_pods(cluster=cluster))


@shared_task(name="allocations.tasks.watch_scheduling_events", ignore_result=True)
def watch_scheduling_events() -> None:
    """One run of the watch of failed schedulings; the next follows as for pods."""
    run_on_cluster(
        watch_scheduling_events.name,
        "scheduling events",
        lambda cluster: watching.watch_scheduling_events(cluster=cluster),
    )


@shared_task(name="allocations.tasks.run_queues", ignore_result=True)
def run_queues() -> None:
    """One run of the queues' loop; the next follows as for pods."""
    run_and_continue(run_queues.name, "queues", lambda: loop.run_queues(cluster=current_backends().cluster))


@shared_task(name="allocations.tasks.publish_node_statuses", ignore_result=True)
def publish_node_statuses() -> None:
    """Keep the GpuNodeStatus of the nodes up to date (every 30 s); one worker at a time."""
    _publish("node-statuses", lambda cluster: node_statuses.publish(cluster=cluster))


@shared_task(name=WRITE_EVENTS, ignore_result=True)
def write_pending_events() -> int:
    """Write events on waiting pods that say why they wait (every 5 s); one worker at a time."""
    cluster = current_backends().cluster
    if cluster is None:
        return 0
    return _alone("pending-events", lambda: pending_events.write(cluster=cluster, now=database_now())) or 0


@shared_task(name="allocations.tasks.plan_waiting", ignore_result=True)
def plan_waiting() -> int:
    """Plan for waiting pods that the extender was not asked about (every 5 s); one worker at a time."""
    return _alone("plan-waiting", lambda: waiting.plan_waiting(now=database_now())) or 0


@shared_task(name="allocations.tasks.publish_devices", ignore_result=True)
def publish_devices() -> None:
    """Keep the Device objects of the nodes up to date (every 30 s); one worker at a time."""

    def publish(cluster: Cluster) -> list[str]:
        placed = Allocation.objects.filter(state__in=LIVE).exclude(created_by=ACTOR).values_list("pod_uid", flat=True)
        return device_objects.publish(cluster=cluster, placed=set(placed))

    _publish("device-objects", publish)


def _publish(of: str, publish: Callable[[Cluster], list[str]]) -> None:
    """Publish one kind of object; `publish` returns the names of those written."""
    cluster = current_backends().cluster
    if cluster is None:
        return
    try:
        written = _alone(of, lambda: publish(cluster))
    except KubeError as error:
        log.warning("objects.unpublished", of=of, error=str(error))
        return
    if written:
        log.info("objects.published", of=of, nodes=len(written), first=written[0])


@shared_task(name="allocations.tasks.publish_claims", ignore_result=True)
def publish_claims() -> None:
    """Write the status of claims, queues and gangs that changed (every 2 s); one worker at a time."""
    cluster = current_backends().cluster
    if cluster is None:
        return
    for name, publish in (("claim-status", _publisher.publish), ("queue-status", _queue_publisher.publish)):
        try:
            _alone(name, partial(publish, cluster=cluster, now=database_now()))
        except KubeError as error:
            log.warning("claims.status_unwritten", of=name, error=str(error))
