"""Advisory mode over HTTP: filter returns every node that can serve, kube-scheduler's scores choose, bind detects a
lost race.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.functional.cluster_client import ClusterClient, cluster_client, pod_shape
from tests.ledger_truth import problems
from tests.servers import redis, web

NAMES = ["n1", "n2", "n3"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker) -> Iterator[ClusterClient]:
    try:
        redis_url = redis.server_url("advisory")
    except redis.NoRedis as missing:
        pytest.skip(str(missing))
    settings = {"GPUPLANE_EXTENDER_MODE": "advisory"}
    folder = tmp_path_factory.mktemp("advisory")
    with (
        django_db_blocker.unblock(),
        web.running(vendor="sqlite", folder=folder, redis_url=redis_url, settings=settings, is_forked=True) as app,
        cluster_client(app) as client,
    ):
        client.register("n1", gpus=2)
        client.register("n2", gpus=4)
        client.register("n3", gpus=1)
        client.claim("two", devices={"count": 2})
        yield client


def test_every_node_that_can_serve_is_returned(client: ClusterClient) -> None:
    """CLAIM-4 all feasible nodes pass, scores rank them in the engine's order, and nothing is held."""
    pod = pod_shape("a-1", claim="two")
    answer = client.filter(pod, NAMES)
    assert sorted(answer["NodeNames"]) == ["n1", "n2"]
    assert answer["FailedAndUnresolvableNodes"] == {"n3": "fewer than 2 gpu devices"}
    scores = client.prioritize(pod, NAMES)
    assert scores["n3"] == 0
    assert 0 < min(scores["n1"], scores["n2"]) < max(scores["n1"], scores["n2"]) == 10
    assert client.rest("GET", "allocations/?pod=a-1")["results"] == []
    assert client.filter(pod, NAMES) == answer


def test_a_race_lost_between_filter_and_bind_is_reported(client: ClusterClient) -> None:
    """LEASE-2 LEASE-3 of two pods sent to the same node one is bound; the other hears why and holds nothing."""
    pods = [pod_shape(f"race-{number}", claim="two") for number in range(4)]
    for pod in pods:
        assert "n1" in client.filter(pod, NAMES)["NodeNames"]
    with ThreadPoolExecutor(4) as threads:
        errors = list(threads.map(lambda pod: client.bind(pod, "n1"), pods))
    assert errors.count("") == 1
    told = {error for error in errors if error}
    assert told <= {"fewer than 2 whole gpu devices free", "other pods took the devices first"}, told
    assert client.used("n1") == [(100, 80 << 30)] * 2
    assert len(client.leases("n1")) == 2
    assert problems() == []
    loser = pods[errors.index(next(error for error in errors if error))]
    assert client.filter(loser, NAMES)["NodeNames"] == ["n2"]
    assert client.bind(loser, "n2") == ""
