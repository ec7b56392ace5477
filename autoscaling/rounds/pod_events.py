"""Events on pods that wait for a node: which pool, which NodeClaim, how far; or why none is made for them.

Invariants: an event is written when what it says has changed; a namespace that takes none delays no other.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import structlog

from autoscaling.models import PodGrowth
from autoscaling.selectors import growth_texts
from kube import pods
from kube.client import Cluster
from kube.errors import AlreadyExists, KubeError, PermanentKubeError

REASON: Final = "GpuScaling"
MOST: Final = 50

log = structlog.get_logger(__name__)


def write_pod_events(cluster: Cluster, *, now: datetime) -> int:
    """Write an event for every pod of which something else is said than before, `MOST` at most."""
    rows = list(PodGrowth.objects.all())
    texts = growth_texts(rows)
    done, failing = 0, set[str]()
    for row in rows:
        text = texts[row.pod_uid]
        if text == row.told or row.namespace in failing or done >= MOST:
            continue
        try:
            pods.event_record(
                cluster,
                namespace=row.namespace,
                name=row.pod_name,
                uid=row.pod_uid,
                reason=REASON,
                message=text,
                now=now,
                kind="Normal" if row.pool else "Warning",
            )
        except AlreadyExists:
            log.debug("growth.told_already", pod=f"{row.namespace}/{row.pod_name}")
        except PermanentKubeError as error:  # the namespace is being deleted, say
            log.info("growth.not_told", pod=f"{row.namespace}/{row.pod_name}", error=str(error))
        except KubeError as error:
            log.warning("growth.events_interrupted", namespace=row.namespace, error=str(error))
            failing.add(row.namespace)
            continue
        else:
            done += 1
        PodGrowth.objects.filter(pk=row.pk).update(told=text)
    return done
