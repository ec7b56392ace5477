"""A web process that stops while an API server takes nothing: what waits to be sent again is answered at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.conf import settings

from allocations.choices import State
from allocations.models import Allocation
from tests.databases import TestDatabase
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE, World
from tests.integration.cluster.test_slow_server import until
from tests.servers import web


@pytest.fixture
def app(world: World, ledger_db: TestDatabase, redis_url: str) -> Iterator[web.LiveApp]:
    """A process of its own on the world's database and API server."""
    own = {"GPUPLANE_KUBECONFIG": settings.GPUPLANE_KUBECONFIG}
    with web.on_database(ledger_db, redis_url, settings=own, is_forked=True) as running:
        yield running


def test_a_bind_that_is_sent_again_and_again(world: World, app: web.LiveApp) -> None:
    """LEASE-3 kube-scheduler is answered what is known, nothing is cut off, and the reservation stays for
    collection.
    """
    world.node("n1")
    world.claim("two", count=2)
    world.pod("waits", claim="two", spec={"schedulerName": "gpu-scheduler"})
    world.server.add_namespace("gpuplane-system")
    pod = dict(world.server.pods[NAMESPACE, "waits"])
    world.server.faults.append(Fault("POST", "waits/binding", status=503, times=1000))

    def sent() -> int:
        return sum(seen.path.endswith("waits/binding") for seen in list(world.server.requests))

    with app.cluster() as client, ThreadPoolExecutor(1) as threads:
        found = client.post("/extender/filter", json={"Pod": pod, "NodeNames": ["n1"]}).json()
        assert found["NodeNames"] == ["n1"], found
        about = pod["metadata"]
        body = {"PodName": "waits", "PodNamespace": NAMESPACE, "PodUID": about["uid"], "Node": "n1"}
        asked = threads.submit(client.post, "/extender/bind", json=body)
        until(lambda: sent() >= 2)
        app.stop()
        answer = asked.result(30)
    assert answer.json()["Error"] == "the answers to the Binding were lost, and the pod is not bound yet"
    assert Allocation.objects.get().state == State.RESERVED
