"""POSTs of an event loop to an API server: errors of the tree, credentials renewed meanwhile, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kube import leases, pods
from kube.client import Cluster
from kube.errors import AlreadyExists, NotConfigured, OutcomeUnknown, Throttled
from kube.posts import Posts
from tests.fakes.apiserver import ApiServer, Fault

NOW = datetime(2026, 11, 21, tzinfo=UTC)
Story = Callable[[Posts], Awaitable[Any]]


def told(cluster: Cluster, story: Story) -> Any:
    async def whole() -> Any:
        posts = Posts(cluster)
        try:
            return await story(posts)
        finally:
            posts.close()

    return asyncio.run(whole())


async def take(posts: Posts, number: int = 0) -> None:
    await leases.create_evented(
        posts,
        namespace="default",
        name=f"gpu-n1-{number}",
        holder="a/b/c",
        now=NOW,
        node="n1",
        device_uuid=f"GPU-{number}",
        seconds=5.0,
        before=float("inf"),
    )


async def bind(posts: Posts, uid: str) -> None:
    binding = pods.Binding(namespace="a", name="train", uid=uid, node="n1", annotations={"x": "y"})
    await pods.bind_evented(posts, binding, seconds=5.0, before=float("inf"))


def test_leases_are_made_as_by_a_thread(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-1 the same object, whichever way it went."""

    async def story(posts: Posts) -> None:
        await asyncio.gather(*(take(posts, number) for number in range(20)))

    told(cluster, story)
    made = leases.create(
        cluster, namespace="default", name="gpu-n1-99", holder="a/b/c", now=NOW, node="n1", device_uuid="GPU-99"
    )
    found = {lease.name: lease for lease in leases.list_all(cluster, namespace="default")}
    assert len(found) == 21
    assert found["gpu-n1-3"].holder_identity == made.holder_identity
    assert found["gpu-n1-3"].labels.keys() == made.labels.keys()
    assert found["gpu-n1-3"].annotations.keys() == made.annotations.keys()


def test_a_second_creator_is_refused(server: ApiServer, cluster: Cluster) -> None:
    """LEASE-1 create succeeds for exactly one caller."""

    async def story(posts: Posts) -> None:
        await take(posts)
        with pytest.raises(AlreadyExists):
            await take(posts)

    told(cluster, story)


def test_a_pod_is_bound_with_its_annotations(server: ApiServer, cluster: Cluster) -> None:
    pod = server.add_pod("train", namespace="a")
    told(cluster, lambda posts: bind(posts, pod["metadata"]["uid"]))
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
def test_it_is_sent_once_and_its_error_is_of_the_tree(
    server: ApiServer, cluster: Cluster, fault: Fault, error: type[Exception]
) -> None:
    pod = server.add_pod("train", namespace="a")
    server.faults.append(fault)

    async def story(posts: Posts) -> None:
        with pytest.raises(error):
            await bind(posts, pod["metadata"]["uid"])

    told(cluster, story)


def test_credentials_read_anew_are_used(tmp_path: Path) -> None:
    with ApiServer(token="old") as server:
        path = server.kubeconfig(tmp_path / "kubeconfig")
        cluster = Cluster.from_settings(path)

        async def story(posts: Posts) -> None:
            await take(posts, 1)
            path.write_text(path.read_text().replace("old", "new"))
            server.token = "new"
            await asyncio.to_thread(leases.find, cluster, namespace="default", name="gpu-n1-1")
            await take(posts, 2)

        told(cluster, story)
        assert {name for _, name in server.leases} == {"gpu-n1-1", "gpu-n1-2"}


def test_not_through_a_proxy(server: ApiServer, tmp_path: Path) -> None:
    cluster = Cluster.from_settings(
        server.kubeconfig(tmp_path / "kubeconfig", cluster={"proxy-url": "http://127.0.0.1:9"})
    )
    assert not cluster.connection.direct

    async def story() -> None:
        with pytest.raises(NotConfigured, match="through a proxy"):
            Posts(cluster)

    asyncio.run(story())
