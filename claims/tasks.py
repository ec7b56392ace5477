"""Celery tasks of claims, scheduled in `gpuplane.beat`."""

from __future__ import annotations

import structlog
from celery import shared_task
from django.conf import settings

from claims import watching
from kube.errors import KubeError
from kube.shared import shared_cluster
from kube.watch_loop import Followed
from storage.enqueue import enqueue_next
from storage.redis_client import RedisError

log = structlog.get_logger(__name__)


@shared_task(name="claims.tasks.watch_claims", ignore_result=True)
def watch_claims() -> None:
    """One turn of the GpuClaim watch; the next one is sent at once, or by the beat after an error."""
    try:
        cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        if cluster is None:
            return
        followed = watching.watch_claims(cluster=cluster)
    except (KubeError, RedisError) as error:
        log.warning("watch.turn_failed", of="gpuclaims", error=str(error))
        return
    if followed is Followed.DONE:
        enqueue_next(watch_claims.name)
