"""A stand-in API server and a `Cluster` on it whose pauses are noted instead of waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kube.client import Cluster
from kube.configured import configuration_source
from tests.fakes.apiserver import ApiServer

CLUSTERS = Callable[..., Cluster]


def namespace(name: str) -> dict[str, object]:
    return {"metadata": {"name": name}}


def version(cluster: Cluster) -> str:
    """The server's version: the simplest request."""
    return str(msgspec.json.decode(cluster.request("GET", "/version", retry=False))["gitVersion"])


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def pauses() -> list[float]:
    """Seconds that the cluster would have waited between attempts."""
    return []


@pytest.fixture
def cluster_of(tmp_path: Path, pauses: list[float]) -> Iterator[CLUSTERS]:
    """Makes clusters from a kubeconfig, with a die that always shows one half."""
    made: list[Cluster] = []

    async def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    def make(kubeconfig: Path, **options: Any) -> Cluster:
        settings: dict[str, Any] = {"pause": pause, "chance": lambda: 0.5, "timeout_seconds": 5.0}
        made.append(Cluster(configuration_source(kubeconfig), **(settings | options)))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path, cluster_of: CLUSTERS) -> Cluster:
    return cluster_of(server.kubeconfig(tmp_path / "kubeconfig"))
