"""Tells the cluster that something happened which it cannot see: capacity or a claim has appeared.

Called by services of every room inside the transaction that makes the change, as `audit.services.record`
is. Kept true: nothing goes out before the commit, nothing at all after a rollback or without a cluster,
and the caller never waits and never fails for it.
"""

from __future__ import annotations

from django.conf import settings
from django.db import transaction

from kube.announce import announcer


def announce(*, node: str = "") -> None:
    """Wake kube-scheduler's refused pods after the commit; `node` is where capacity appeared, if that is known."""
    if settings.GPUPLANE_KUBECONFIG:
        ours = announcer(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_REDIS_URL)
        transaction.on_commit(lambda: ours.ask(node=node))


def announced(*, seconds: float) -> bool:
    """Wait until what this process asked for is told; False when that took longer. For commands, whose threads end with them."""
    if not settings.GPUPLANE_KUBECONFIG:
        return True
    return announcer(settings.GPUPLANE_KUBECONFIG, settings.GPUPLANE_REDIS_URL).settled(seconds=seconds)
