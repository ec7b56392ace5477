"""Lets threads of the web process send requests to the API server on the serving loop, over its connections.

Started first and stopped last.
"""

from __future__ import annotations

import asyncio

from django.conf import settings

from kube import event_loop
from kube.client import Cluster
from kube.errors import NotConfigured
from kube.shared import shared_cluster


async def start() -> None:
    """Lend the loop to threads."""
    event_loop.lend(asyncio.get_running_loop())


def end_waits() -> None:
    """End the waits between two attempts of a request, as soon as the process is told to stop: who asked is answered.
    Requests go out as before.
    """
    if (cluster := _cluster()) is not None:
        cluster.close()


async def stop() -> None:
    """Take it back; threads that send requests later get another loop. Close the loop's connections."""
    event_loop.lend(None)
    if (cluster := _cluster()) is not None:
        cluster.close_here()


def _cluster() -> Cluster | None:
    try:
        return shared_cluster(settings.GPUPLANE_KUBECONFIG)
    except NotConfigured:
        return None  # then nothing was sent
