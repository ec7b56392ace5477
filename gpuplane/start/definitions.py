"""Installs the definitions of our own kinds in the cluster, and knows how far that got (readiness).

Run by `gpuplane.doors.lifespan` when `GPUPLANE_KUBECONFIG` names a cluster, but in processes that serve agents alone,
which need none of them. Kept true: what exists is left as it is; an API server that is down is reported and asked
again, and never stops the start.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import structlog
from django.conf import settings

from kube import crds
from kube.errors import KubeError
from kube.shared import shared_cluster
from kube.watch import Stop

AGAIN_SECONDS = 10.0
SERVED_SECONDS = 30.0
"""How long the API server may take to serve what was created."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class State:
    """`applied`, or the reason why not yet (empty while the first try runs)."""

    applied: bool = False
    problem: str = ""


STATE = State()
_stopping = Stop()


async def start() -> None:
    """Begin in a thread of its own; nothing without a cluster, or where agents alone are served."""
    _stopping.clear()
    if settings.GPUPLANE_KUBECONFIG and not settings.GPUPLANE_AGENTS_ONLY:
        threading.Thread(target=_apply, name="definitions", daemon=True).start()


async def stop() -> None:
    """Do not try again."""
    _stopping.set()


def _apply() -> None:
    while not _stopping.is_set():
        try:
            missing = install(_stopping)
        except (KubeError, OSError) as error:
            STATE.problem = str(error)
            log.warning("cluster.definitions_not_applied", error=str(error))
        else:
            STATE.applied, STATE.problem = (
                not missing,
                f"not served yet: {', '.join(sorted(missing))}" if missing else "",
            )
            if not missing:
                return
        _stopping.wait(AGAIN_SECONDS)


def install(stop: Stop) -> set[str]:
    """Create what is missing and wait until it is served; the names that are not. Raises KubeError, OSError."""
    cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
    if cluster is None:
        return set()
    ours = crds.manifests()
    created = crds.apply_missing(cluster, definitions=ours)
    names = [str(definition["metadata"]["name"]) for definition in ours]
    missing = crds.wait_established(cluster, names=names, seconds=SERVED_SECONDS, stop=stop)
    log.info("cluster.definitions_applied", created=created, not_served=sorted(missing))
    return missing
