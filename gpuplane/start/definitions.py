"""Installs the definitions of our own kinds in the cluster, and knows how far that got (readiness).

Run by `gpuplane.doors.lifespan` when `GPUPLANE_KUBECONFIG` names a cluster. Kept true: what exists is
left as it is; an API server that is down is reported and asked again, and never stops the start.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import structlog
from django.conf import settings

from kube import crds
from kube.client import Cluster
from kube.errors import KubeError

AGAIN_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class State:
    """`applied`, or the reason why not yet (empty while the first try runs)."""

    applied: bool = False
    problem: str = ""


STATE = State()
_stopping = threading.Event()


async def start() -> None:
    """Begin in a thread of its own; nothing without a cluster."""
    _stopping.clear()
    if settings.GPUPLANE_KUBECONFIG:
        threading.Thread(target=_apply, name="definitions", daemon=True).start()


async def stop() -> None:
    """Do not try again."""
    _stopping.set()


def _kubeconfig() -> Path | None:
    """The file, None for the cluster that this process runs in."""
    named: str = settings.GPUPLANE_KUBECONFIG
    return None if named == "in-cluster" else Path(named).expanduser()


def _apply() -> None:
    while not _stopping.is_set():
        try:
            with Cluster.from_settings(_kubeconfig(), pool_size=1) as cluster:
                created = crds.apply_missing(cluster)
        except (KubeError, OSError) as error:
            STATE.problem = str(error)
            log.warning("cluster.definitions_not_applied", error=str(error))
        else:
            STATE.applied, STATE.problem = True, ""
            log.info("cluster.definitions_applied", created=created)
            return
        _stopping.wait(AGAIN_SECONDS)
