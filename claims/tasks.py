"""Work on claims beside the requests. The beat's schedule is in `gpuplane.beat`."""

from __future__ import annotations

import redis
import structlog
from celery import shared_task
from django.conf import settings

from claims import watching
from kube.errors import KubeError
from kube.following import Followed
from kube.shared import shared_cluster

log = structlog.get_logger(__name__)


@shared_task(name="claims.tasks.watch_claims", ignore_result=True)
def watch_claims() -> None:
    """One turn of the GpuClaim watch; the next follows at once, or by the beat where this one ended badly."""
    try:
        cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        if cluster is None:
            return
        followed = watching.watch_claims(cluster=cluster)
    except (KubeError, redis.RedisError) as error:
        log.warning("watch.turn_failed", of="gpuclaims", error=str(error))
        return
    if followed is Followed.DONE:
        watch_claims.apply_async(queue="watch", expires=30)
