"""The beat's work on the ledger. Each task is one call, idempotent, and safe beside any number of its like."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import msgspec
import redis
import structlog
from celery import shared_task
from django.conf import settings

from allocations import collection, making_way, node_statuses, scheduling_events, telling, waiting, watching
from allocations import reconcile as reconciling
from allocations.choices import LIVE
from allocations.claim_status import Publisher
from allocations.models import Allocation
from allocations.outside import outside
from allocations.reconcile.report import ACTOR
from allocations.sweep import sweep
from audit.clock import database_now
from kube.client import Cluster
from kube.errors import KubeError
from kube.following import Followed
from kube.turns import turn
from nodes import device_objects
from nodes.newcomers import TASK as NEWCOMERS

PRUNE_BATCH = 1000
PRUNE_BATCHES = 100

log = structlog.get_logger(__name__)
_publisher = Publisher()


@shared_task(name="allocations.tasks.expire_holds", ignore_result=True)
def expire_holds() -> int:
    """Drop holds past their time."""
    return collection.expire_holds(database_now())


@shared_task(name="allocations.tasks.tidy_making_way", ignore_result=True)
def tidy_making_way() -> int:
    """End what nodes make way for, where it is over."""
    return making_way.tidy(now=database_now(), world=outside())


@shared_task(name="allocations.tasks.collect", ignore_result=True)
def collect() -> dict[str, int]:
    """One turn of garbage collection."""
    found: dict[str, int] = msgspec.to_builtins(sweep(now=database_now(), world=outside()))
    return found


@shared_task(name="allocations.tasks.prune", ignore_result=True)
def prune() -> int:
    """Delete ended allocations older than the audit trail, in batches."""
    limit = database_now() - timedelta(days=settings.GPUPLANE_AUDIT_DAYS)
    deleted = 0
    for _ in range(PRUNE_BATCHES):
        ids = list(Allocation.objects.filter(ended_at__lt=limit).values_list("id", flat=True)[:PRUNE_BATCH])
        if not ids:
            break
        Allocation.objects.filter(id__in=ids).delete()
        deleted += len(ids)
    return deleted


@shared_task(name="allocations.tasks.reconcile", ignore_result=True)
def reconcile() -> None:
    """Compare the ledger with the cluster (every 25 s, and on start); one worker at a time."""
    with turn(settings.GPUPLANE_REDIS_URL, "reconcile") as ours:
        if ours is not None:
            reconciling.reconcile(world=outside(), now=database_now())


@shared_task(name=NEWCOMERS, ignore_result=True)
def read_newcomers() -> None:
    """Open the devices that an inventory has brought (soon after it did; reconciling does it too); one worker at a time."""
    world = outside()
    # Whoever comes while another is at it leaves the work to that one, which looks again when it has let go.
    while world.cluster is not None and reconciling.newcomers():
        with turn(settings.GPUPLANE_REDIS_URL, "newcomers") as ours:
            if ours is None:
                return
            try:
                if not reconciling.read_newcomers(world=world, now=database_now()):
                    return
            except KubeError as error:
                log.warning("newcomers.unread", error=str(error))
                return


@shared_task(name="allocations.tasks.watch_pods", ignore_result=True)
def watch_pods() -> None:
    """One turn of the pod watch; the next follows at once, or by the beat where this one ended badly."""
    if _watched("pods", watching.watch_pods):
        watch_pods.apply_async(queue="watch", expires=30)


@shared_task(name="allocations.tasks.watch_scheduling_events", ignore_result=True)
def watch_scheduling_events() -> None:
    """One turn of the watch of failed schedulings; as for the pods."""
    if _watched("scheduling events", scheduling_events.watch_scheduling_events):
        watch_scheduling_events.apply_async(queue="watch", expires=30)


def _watched(of: str, watch: Callable[..., Followed]) -> bool:
    """Whether the turn went well, so that the next is to follow."""
    cluster = outside().cluster
    if cluster is None:
        return False
    try:
        return watch(cluster=cluster) is Followed.DONE
    except (KubeError, redis.RedisError) as error:
        log.warning("watch.turn_failed", of=of, error=str(error))
        return False


@shared_task(name="allocations.tasks.publish_node_statuses", ignore_result=True)
def publish_node_statuses() -> None:
    """Keep the GpuNodeStatus of the nodes up to date (every 30 s); one worker at a time."""
    _publish("node-statuses", lambda cluster: node_statuses.publish(cluster=cluster))


@shared_task(name="allocations.tasks.tell_waiting", ignore_result=True)
def tell_waiting() -> int:
    """Tell pods that wait why, by an event (every 5 s); one worker at a time."""
    cluster = outside().cluster
    if cluster is None:
        return 0
    with turn(settings.GPUPLANE_REDIS_URL, "tell-waiting") as ours:
        return 0 if ours is None else telling.tell_waiting(cluster=cluster, now=database_now())


@shared_task(name="allocations.tasks.plan_waiting", ignore_result=True)
def plan_waiting() -> int:
    """Look, unasked, at pods that wait (every 5 s); one worker at a time."""
    with turn(settings.GPUPLANE_REDIS_URL, "plan-waiting") as ours:
        return 0 if ours is None else waiting.plan_waiting(now=database_now())


@shared_task(name="allocations.tasks.publish_devices", ignore_result=True)
def publish_devices() -> None:
    """Keep the Device objects of the nodes up to date (every 30 s); one worker at a time."""

    def publish(cluster: Cluster) -> list[str]:
        placed = Allocation.objects.filter(state__in=LIVE).exclude(created_by=ACTOR).values_list("pod_uid", flat=True)
        return device_objects.publish(cluster=cluster, placed=set(placed))

    _publish("device-objects", publish)


def _publish(of: str, publish: Callable[[Cluster], list[str]]) -> None:
    """A turn of one kind of object; `publish` returns the names of those written."""
    cluster = outside().cluster
    if cluster is None:
        return
    with turn(settings.GPUPLANE_REDIS_URL, of) as ours:
        if ours is None:
            return
        try:
            written = publish(cluster)
        except KubeError as error:
            log.warning("objects.unpublished", of=of, error=str(error))
            return
        if written:
            log.info("objects.published", of=of, nodes=len(written), first=written[0])


@shared_task(name="allocations.tasks.publish_claims", ignore_result=True)
def publish_claims() -> None:
    """Write the status of GpuClaims that changed (every 2 s); one worker at a time."""
    cluster = outside().cluster
    if cluster is None:
        return
    with turn(settings.GPUPLANE_REDIS_URL, "claim-status") as ours:
        if ours is None:
            return
        try:
            _publisher.publish(cluster=cluster)
        except KubeError as error:
            log.warning("claims.status_unwritten", error=str(error))
