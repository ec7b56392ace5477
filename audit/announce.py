"""Tells the cluster that something happened which it cannot see: capacity or a claim has appeared.

Called by services of every room inside the transaction that makes the change, as `audit.services.record`
is. Kept true: nothing goes out before the commit, nothing at all after a rollback or without a cluster,
and the caller never waits and never fails for it. A process that serves agents alone may not write to nodes: it has a
worker tell (`audit.tasks.announce_for_another`); while the broker is away the next comparison does.
"""

from __future__ import annotations

from typing import Final

import structlog
from celery import current_app
from django.conf import settings
from django.db import transaction
from kombu.exceptions import OperationalError

from kube.announce import announcer

TASK: Final = "audit.tasks.announce_for_another"
EXPIRES_SECONDS: Final = 60

log = structlog.get_logger(__name__)


def announce(*, node: str = "") -> None:
    """Wake kube-scheduler's refused pods after the commit; `node` is where capacity appeared, if that is known."""
    if settings.GPUPLANE_KUBECONFIG and settings.GPUPLANE_AGENTS_ONLY:
        transaction.on_commit(lambda: _have_told(node))
    elif settings.GPUPLANE_KUBECONFIG:
        ours = announcer(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_REDIS_URL)
        transaction.on_commit(lambda: ours.ask(node=node))


def _have_told(node: str) -> None:
    try:
        current_app.send_task(TASK, args=(node,), expires=EXPIRES_SECONDS, retry=False)
    except (OperationalError, OSError) as error:
        log.info("task.not_sent", task=TASK, error=str(error))


def announced(*, seconds: float) -> bool:
    """Wait until what this process asked for is told; False when that took longer. For commands, whose threads end with them."""
    if not settings.GPUPLANE_KUBECONFIG:
        return True
    return announcer(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_REDIS_URL).settled(seconds=seconds)
