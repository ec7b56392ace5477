"""Celery tasks of claims, scheduled in `gpuplane.beat`."""

from __future__ import annotations

from typing import Any

import structlog
from celery import shared_task
from django.conf import settings

from claims import watching
from claims.kinds import CLAIM, GANG, QUEUE, Kind
from kube.errors import KubeError
from kube.shared import shared_cluster
from kube.watch_loop import Followed
from storage.enqueue import enqueue_next
from storage.redis_client import RedisError

log = structlog.get_logger(__name__)


@shared_task(name="claims.tasks.watch_claims", ignore_result=True)
def watch_claims() -> None:
    """One run of the watch of GpuClaims; the next one is sent at once, or by the beat after an error."""
    _watch(CLAIM, watch_claims.name)


@shared_task(name="claims.tasks.watch_gangs", ignore_result=True)
def watch_gangs() -> None:
    """The same of GpuGangs."""
    _watch(GANG, watch_gangs.name)


@shared_task(name="claims.tasks.watch_queues", ignore_result=True)
def watch_queues() -> None:
    """The same of GpuQueues."""
    _watch(QUEUE, watch_queues.name)


def _watch(kind: Kind[Any], task: str) -> None:
    try:
        cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        if cluster is None:
            return
        followed = watching.watch(kind, cluster=cluster)
    except (KubeError, RedisError) as error:
        log.warning("watch.failed", of=kind.resource.plural, error=str(error))
        return
    if followed is Followed.DONE:
        enqueue_next(task)
