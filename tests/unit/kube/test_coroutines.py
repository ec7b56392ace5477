"""Writes of an event loop to an API server: errors, credentials read anew, many at once, by way of a proxy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kube import leases, pods
from kube.client import Cluster
from kube.errors import AlreadyExists, OutcomeUnknown, Throttled, Unreachable
from kube.resources import NAMESPACES
from tests.fakes.apiserver import ApiServer, Fault
from tests.unit.kube.conftest import CLUSTERS, namespace

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def told(cluster: Cluster, story: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        try:
            return await story()
        finally:
            cluster.close_here()

    return asyncio.run(whole())


async def take(cluster: Cluster, number: int = 0, where: str = "default") -> None:
    name, uuid = f"gpu-n1-{number}", f"GPU-{number}"
    await leases.create(cluster, namespace=where, name=name, holder="a/b/c", now=NOW, node="n1", device_uuid=uuid)


async def bind(cluster: Cluster, uid: str) -> None:
    binding = pods.Binding(namespace="a", name="train", uid=uid, node="n1", annotations={"x": "y"})
    await pods.bind(cluster, binding, retry=False)


def test_leases_are_made_at_once_on_any_loop(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-1 the same object, whichever way it went."""

    async def story() -> None:
        await asyncio.gather(*(take(cluster, number) for number in range(20)))

    told(cluster, story)
    made = cluster.run(
        leases.create(
            cluster, namespace="default", name="gpu-n1-99", holder="a/b/c", now=NOW, node="n1", device_uuid="GPU-99"
        )
    )
    found = {lease.name: lease for lease in leases.list_all(cluster, namespace="default")}
    assert len(found) == 21
    assert found["gpu-n1-3"].holder_identity == made.holder_identity
    assert found["gpu-n1-3"].labels.keys() == made.labels.keys()
    assert found["gpu-n1-3"].annotations.keys() == made.annotations.keys()


def test_a_second_creator_is_refused(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-1 create succeeds for exactly one caller."""

    async def story() -> None:
        await take(cluster)
        with pytest.raises(AlreadyExists):
            await take(cluster)

    told(cluster, story)


def test_a_namespace_that_is_missing_is_made(server: ApiServer, cluster: Cluster) -> None:
    told(cluster, lambda: take(cluster, where="gpuplane-system"))
    assert set(server.leases) == {("gpuplane-system", "gpu-n1-0")}


def test_a_pod_is_bound_with_its_annotations(server: ApiServer, cluster: Cluster) -> None:
    pod = server.add_pod("train", namespace="a")
    told(cluster, lambda: bind(cluster, pod["metadata"]["uid"]))
    stored = server.pods["a", "train"]
    assert stored["spec"]["nodeName"] == "n1"
    assert stored["metadata"]["annotations"]["x"] == "y"


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        pytest.param(Fault("POST", "/binding$", status=429), Throttled, id="throttled"),
        pytest.param(Fault("POST", "/binding$", status=503), OutcomeUnknown, id="failed inside"),
        pytest.param(Fault("POST", "/binding$", drop="after"), OutcomeUnknown, id="answer lost"),
    ],
)
def test_without_retries_it_is_sent_once_and_its_error_is_of_the_tree(
    server: ApiServer, cluster: Cluster, pauses: list[float], fault: Fault, error: type[Exception]
) -> None:
    pod = server.add_pod("train", namespace="a")
    server.faults.append(fault)

    async def story() -> None:
        with pytest.raises(error):
            await bind(cluster, pod["metadata"]["uid"])

    told(cluster, story)
    assert pauses == []
    assert len([seen for seen in server.requests if seen.path.endswith("/binding")]) == 1


def test_what_surely_failed_is_repeated(server: ApiServer, cluster: Cluster, pauses: list[float]) -> None:
    server.faults.append(Fault("POST", "namespaces", status=429, headers={"Retry-After": "1"}))
    told(cluster, lambda: cluster.arequest("POST", NAMESPACES.path(), body=namespace("x")))
    assert "x" in server.namespaces
    assert pauses == [pytest.approx(1.05)]


def test_a_cluster_that_closes_ends_the_waits_between_attempts(
    server: ApiServer, tmp_path: Path, cluster_of: CLUSTERS
) -> None:
    waits = asyncio.Event()

    async def pause(seconds: float) -> bool:
        waits.set()
        return await cluster._transport.closed_within(seconds)

    cluster = cluster_of(server.kubeconfig(tmp_path / "k"), pause=pause)
    server.faults.append(Fault("POST", "namespaces", status=429, headers={"Retry-After": "2"}, times=99))

    async def story() -> None:
        asking = asyncio.create_task(cluster.arequest("POST", NAMESPACES.path(), body=namespace("x")))
        await waits.wait()
        cluster.close()
        with pytest.raises(Throttled):
            await asking

    told(cluster, story)
    assert len(server.requests) == 1


def test_refused_credentials_are_read_anew(tmp_path: Path, cluster_of: CLUSTERS) -> None:
    with ApiServer(token="old") as server:
        cluster = cluster_of(server.kubeconfig(tmp_path / "k"))

        async def story() -> None:
            await take(cluster, 1)
            server.token = "new"
            server.kubeconfig(tmp_path / "k")
            await asyncio.gather(*(take(cluster, number) for number in (2, 3, 4)))

        told(cluster, story)
        assert len(server.leases) == 4


def test_a_plugin_is_asked_once_for_all_who_wait_for_it(tmp_path: Path, cluster_of: CLUSTERS) -> None:
    plugin, asked = tmp_path / "plugin", tmp_path / "asked"
    status = {"token": "good", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    plugin.write_text(f"#!/bin/sh\necho >> {asked}\necho '{json.dumps(answer)}'\n")
    plugin.chmod(0o755)
    config = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    with ApiServer(token="good") as server:
        cluster = cluster_of(server.kubeconfig(tmp_path / "k", token="", user={"exec": config}))

        async def story() -> None:
            await asyncio.gather(*(take(cluster, number) for number in range(20)))

        before = len(asked.read_text())
        told(cluster, story)
        assert len(server.leases) == 20
        assert len(asked.read_text()) - before == 1


def test_by_way_of_a_proxy(server: ApiServer, tmp_path: Path, cluster_of: CLUSTERS) -> None:
    hidden = {"server": "http://api.invalid", "proxy-url": server.url}
    cluster = cluster_of(server.kubeconfig(tmp_path / "k", cluster=hidden))
    pod = server.add_pod("train", namespace="a")

    async def story() -> None:
        await asyncio.gather(*(take(cluster, number) for number in range(20)))
        await bind(cluster, pod["metadata"]["uid"])

        with pytest.raises(Unreachable, match="its time was over"):
            await cluster.arequest("GET", "/version", retry=False, before=asyncio.get_running_loop().time() - 1)

    told(cluster, story)
    assert len(server.leases) == 20
    assert server.pods["a", "train"]["spec"]["nodeName"] == "n1"
    assert not [seen for seen in server.requests if seen.path.endswith("/version")]
    assert {seen.headers["host"] for seen in server.requests} == {"api.invalid"}
