"""Periodic work of growth. Each task is idempotent and may run any number of times at once."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from celery import shared_task
from django.conf import settings

from allocations.backends import current_backends
from allocations.watch_runs import run_on_cluster
from autoscaling import loop, pod_events, watching
from autoscaling.choices import ENDED
from autoscaling.models import NodeClaim, ScalingRequest
from autoscaling.rounds.planning import WRITE_POD_EVENTS
from storage.clock import database_now
from storage.leader_lock import run_alone


@shared_task(name="autoscaling.tasks.watch_node_pools", ignore_result=True)
def watch_node_pools() -> None:
    """One run of the watch of NodePools; the next follows at once, or by the beat where this one ended badly."""
    run_on_cluster(watch_node_pools.name, "node pools", lambda cluster: watching.watch_node_pools(cluster=cluster))


@shared_task(name="autoscaling.tasks.watch_node_claims", ignore_result=True)
def watch_node_claims() -> None:
    """The same of NodeClaims."""
    run_on_cluster(watch_node_claims.name, "node claims", lambda cluster: watching.watch_node_claims(cluster=cluster))


@shared_task(name="autoscaling.tasks.run_growth", ignore_result=True)
def run_growth() -> None:
    """One run of the growth loop; the next follows as for the watches."""
    run_on_cluster(run_growth.name, "growth", lambda cluster: loop.run_growth(cluster=cluster))


@shared_task(name=WRITE_POD_EVENTS, ignore_result=True)
def write_pod_events() -> int:
    """Write events on pods that wait for a node (every 5 s, and after a new plan); one worker at a time."""
    cluster = current_backends().cluster
    if cluster is None:
        return 0
    write = partial(pod_events.write_pod_events, cluster, now=database_now())
    return run_alone(settings.GPUPLANE_REDIS_URL, "growth-events", write) or 0


@shared_task(name="autoscaling.tasks.prune", ignore_result=True)
def prune() -> int:
    """Delete ended requests, and NodeClaims that are gone, older than the audit trail."""
    limit = database_now() - timedelta(days=settings.GPUPLANE_AUDIT_DAYS)
    deleted = ScalingRequest.objects.filter(state__in=ENDED, ended_at__lt=limit).delete()[0]
    return deleted + NodeClaim.objects.filter(deleted_at__lt=limit).delete()[0]
