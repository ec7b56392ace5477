"""Creates gpuplane's CustomResourceDefinitions in the cluster; readiness waits for it.

Not in processes that serve agents alone, which need none. Invariants: definitions that exist are left as they are.
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
    """`applied`, or the reason why not yet; empty while the first attempt runs."""

    applied: bool = False
    problem: str = ""


STATE = State()
_stopping = Stop()


async def start() -> None:
    """Start the thread, where there is a cluster and more than agents are served."""
    _stopping.clear()
    if settings.GPUPLANE_KUBECONFIG and not settings.GPUPLANE_AGENTS_ONLY:
        threading.Thread(target=_apply, name="definitions", daemon=True).start()


async def stop() -> None:
    """Stop trying."""
    _stopping.set()


def _apply() -> None:
    while not _stopping.is_set():
        try:
            missing = install(_stopping)
        except (KubeError, OSError) as error:
            STATE.problem = str(error)
            log.warning("cluster.definitions_not_applied", error=str(error))
        else:
            STATE.applied = not missing
            STATE.problem = f"not served yet: {', '.join(sorted(missing))}" if missing else ""
            if STATE.applied:
                return
        _stopping.wait(AGAIN_SECONDS)


def install(stop: Stop) -> set[str]:
    """Create what is missing. Returns the names that are not served in time. Raises KubeError, OSError."""
    cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
    if cluster is None:
        return set()
    manifests = crds.manifests()
    created = crds.apply_missing(cluster, definitions=manifests)
    names = [str(definition["metadata"]["name"]) for definition in manifests]
    missing = crds.wait_established(cluster, names=names, seconds=SERVED_SECONDS, stop=stop)
    log.info("cluster.definitions_applied", created=created, not_served=sorted(missing))
    return missing
