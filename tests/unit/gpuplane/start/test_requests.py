"""Which event loop carries the requests of threads while the web process runs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from pytest_django import Settings

from gpuplane.start import requests
from kube import event_loop
from kube.shared import shared_cluster
from tests.fakes.apiserver import ApiServer


async def carrying() -> str:
    """The thread that carries a request."""
    return threading.current_thread().name


@pytest.mark.parametrize("kubeconfig", ["", "/does/not/exist"])
def test_the_serving_loop_until_it_stops(settings: Settings, kubeconfig: str) -> None:
    settings.GPUPLANE_KUBECONFIG = kubeconfig

    async def life() -> tuple[str, str]:
        await requests.start()
        during = await asyncio.to_thread(lambda: event_loop.run(carrying()))
        await requests.stop()
        return during, await asyncio.to_thread(lambda: event_loop.run(carrying()))

    assert asyncio.run(life()) == ("MainThread", "kube-requests")


def test_its_connections_are_closed_when_it_stops(settings: Settings, tmp_path: Path) -> None:
    with ApiServer() as server:
        settings.GPUPLANE_KUBECONFIG = str(server.kubeconfig(tmp_path / "kubeconfig"))
        cluster = shared_cluster(settings.GPUPLANE_KUBECONFIG)
        assert cluster is not None

        async def life() -> None:
            await requests.start()
            await asyncio.to_thread(cluster.request, "GET", "/version")
            await requests.stop()

        asyncio.run(life())  # an open connection would be reported when its loop is gone
        assert b"v1.36.3-fake" in cluster.request("GET", "/version")
        cluster.close()
