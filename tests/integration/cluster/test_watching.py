"""The watches, against the stand-in API server: ends, refusals, lost places, two workers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest
import redis
from django.conf import settings

from allocations import ledger
from allocations.cluster_health import cluster_state
from allocations.counters import CollectionCause
from allocations.watching import watch_pods
from audit.models import Event
from claims.kinds import CLAIM
from claims.models import GpuClaim
from claims.watching import watch
from kube.client import Cluster
from kube.errors import KubeError
from kube.watch_loop import Followed
from nodes.models import Node
from nodes.watching import watch_nodes
from storage import leader_lock
from storage.clock import database_now
from storage.leader_lock import PREFIX
from tests.fakes.apikinds import NODES
from tests.integration.cluster.conftest import MERGE, NAMESPACE, World
from tests.measured import growth

LONG = 60.0
COLLECTED = "gpuplane_collected_total"


@contextlib.contextmanager
def watching(world: World, watch: Callable[..., Followed], name: str) -> Iterator[list[object]]:
    """A watch that runs beside the test; leaves once it has its place. Its result, or error, is in the list."""
    cluster = world.backends.cluster
    assert cluster is not None
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(watch(cluster=cluster, seconds=LONG))
        except KubeError as error:
            ended.append(error)

    asked = len(world.server.requests)
    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: any(name in one.path and "watch" in one.query for one in world.server.requests[asked:]))
    try:
        yield ended
    finally:
        leader_lock.stop_all()
        thread.join(LONG)
        assert not thread.is_alive()


def wait_for(condition: Callable[[], bool], *, seconds: float = 30.0) -> None:
    """Until it holds; a test that waits that long has failed."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it never came to be"
        time.sleep(0.01)  # the state of another thread's work


def test_a_pod_that_ends_before_its_bind_is_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-4 the API server has applied the Binding, the pod is deleted, and then the bind is confirmed."""
    world.node("n1", gpus=8)
    world.claim()
    world.place("other")
    confirmed = ledger.all_bound

    def late(*args: Any, **about: Any) -> set[UUID]:
        """The watch hears of both ends before the ledger says bound."""
        if not about.get("ended"):
            world.remove("early")
            world.remove("other")
            wait_for(lambda: world.states("other") == ["released"])
        return confirmed(*args, **about)

    with watching(world, watch_pods, "pods"):
        monkeypatch.setattr(ledger, "all_bound", late)
        world.place("early")
        wait_for(lambda: world.live() == 0)
    assert world.states("early") == ["released"]
    assert world.used("n1") == [0] * 8
    assert world.leases() == {}
    kinds = Event.objects.filter(name="early").order_by("pk").values_list("kind", flat=True)
    assert [kind for kind in kinds if kind.startswith("allocation.")][-3:] == [
        "allocation.bound",
        "allocation.releasing",
        "allocation.released",
    ]


def test_the_events_of_a_run_that_failed_come_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-4 a release that fails in a way that nobody foresaw ends the run, which stores no newer place."""
    cluster = world.backends.cluster
    assert cluster is not None
    world.node("n1", gpus=8)
    world.claim()
    world.place("early")
    assert watch_pods(cluster=cluster, seconds=0.2) is Followed.DONE
    world.remove("early")

    def fail(**_: object) -> bool:
        raise ValueError("nobody foresaw this")

    with monkeypatch.context() as broken:
        broken.setattr("allocations.watching.release_now", fail)
        with pytest.raises(ValueError, match="nobody foresaw this"):
            watch_pods(cluster=cluster, seconds=0.2)
    assert world.states("early") == ["bound"]
    assert watch_pods(cluster=cluster, seconds=0.2) is Followed.DONE
    assert world.states("early") == ["released"]
    assert world.used("n1") == [0] * 8


def test_a_pod_that_ends(world: World) -> None:
    """LEASE-4 deleted, finished and replaced pods are released by the watch, without any comparison."""
    world.node("n1", gpus=8)
    world.claim()
    for name in ("deleted", "finished", "replaced"):
        world.place(name)
    with growth(COLLECTED) as grown, watching(world, watch_pods, "pods"):
        world.remove("deleted")
        world.finish("finished")
        world.remove("replaced")
        world.pod("replaced")
        wait_for(lambda: world.live() == 0)
    assert grown == {(COLLECTED, CollectionCause.POD_ENDED): 3}
    assert world.used("n1") == [0] * 8
    assert world.leases() == {}
    actors = set(Event.objects.filter(kind="allocation.released").values_list("actor", flat=True))
    assert actors == {"watch"}
    seen = cluster_state()
    assert seen is not None
    assert not seen.stale(database_now())


def test_holds(world: World) -> None:
    """LEASE-3 the hold of a pod that is deleted, or that kube-scheduler gave up after it was made, goes at once."""
    world.node("n1", gpus=8)
    world.claim()
    for name in ("gone", "given-up", "waits"):
        world.pod(name)
        assert world.filter(name) == "n1"
    with growth(COLLECTED) as grown, watching(world, watch_pods, "pods"):
        world.remove("gone")
        world.refuse("given-up", at=database_now().replace(year=2100))
        wait_for(lambda: world.live() == 1)
    assert grown == {(COLLECTED, CollectionCause.HOLD_OVER): 2}
    assert world.states("gone") == ["released"]
    assert world.states("given-up") == ["failed"]
    assert world.states("waits") == ["held"]


@pytest.mark.parametrize("gone_as_http", [False, True])
def test_a_watch_that_lost_its_place(world: World, gone_as_http: bool) -> None:
    """LEASE-4 410 Gone: everything is listed again and compared, so nothing that happened meanwhile is missed."""
    world.server.gone_as_http = gone_as_http
    world.node("n1")
    world.claim()
    world.place("train")
    with watching(world, watch_pods, "pods"):
        pass
    carried = redis.Redis.from_url(settings.GPUPLANE_REDIS_URL).get(f"{PREFIX}pods:carried")
    assert carried
    world.remove("train")
    world.server.compact()
    with watching(world, watch_pods, "pods"):
        wait_for(lambda: world.live() == 0)


def test_what_happened_between_two_turns(world: World) -> None:
    """LEASE-4 the next turn goes on where the last one ended, without listing."""
    world.node("n1")
    world.claim()
    world.place("train")
    with watching(world, watch_pods, "pods"):
        pass
    world.remove("train")
    asked = len(world.server.requests)
    with watching(world, watch_pods, "pods"):
        wait_for(lambda: world.live() == 0)
    lists = [one for one in world.server.requests[asked:] if one.path == "/api/v1/pods" and "watch" not in one.query]
    assert lists == []


def test_broken_connections(world: World) -> None:
    """LEASE-4 a connection that breaks is made again, from the place where it broke."""
    world.node("n1")
    world.claim()
    world.place("train")
    with watching(world, watch_pods, "pods"):
        asked = len(world.server.requests)
        world.server.drop_connections()
        wait_for(lambda: any("watch" in one.query for one in world.server.requests[asked:]))
        world.remove("train")
        wait_for(lambda: world.live() == 0)


def test_two_workers(world: World) -> None:
    """One worker a resource: a second one is sent away while the first follows."""
    cluster = world.backends.cluster
    assert isinstance(cluster, Cluster)
    with watching(world, watch_pods, "pods") as ended:
        assert watch_pods(cluster=cluster, seconds=LONG) is Followed.ELSEWHERE
    assert ended == [Followed.STOPPED]


def test_api_server_away(world: World) -> None:
    """LEASE-6 a watch that cannot reach the API server says so, and frees nobody."""
    world.node("n1")
    world.claim()
    world.place("train")
    world.server.stop()
    cluster = world.backends.cluster
    assert cluster is not None
    with pytest.raises(KubeError):
        watch_pods(cluster=cluster, seconds=0.5)
    seen = cluster_state()
    assert seen is not None
    assert seen.stale(database_now())
    assert world.states("train") == ["bound"]
    world.server.start()


def test_nodes(world: World) -> None:
    """LEASE-5 labels, mode, readiness and end of nodes are followed; a Node object alone registers nothing."""
    world.node("n1")

    def node() -> Node:
        return Node.objects.get(name="n1")

    with watching(world, watch_nodes, "nodes"):
        wait_for(lambda: node().cluster_uid != "")
        patch = {"metadata": {"labels": {"gpu.scheduling/mode": "device-plugin", "zone": "a"}}}
        world.server.store.patch(NODES, "", "n1", patch, content_type=MERGE)
        wait_for(lambda: node().mode == "device-plugin")
        assert node().labels == {"gpu.scheduling/mode": "device-plugin", "zone": "a"}
        world.server.add_node("unknown")
        world.server.remove_node("n1")
        wait_for(lambda: node().state == "gone")
    assert not Node.objects.filter(name="unknown").exists()


def test_claims(world: World) -> None:
    """CLAIM-1 what kubectl writes reaches our rows: created, edited, deleted, and what was there before."""
    world.claim("before")
    kind = world.server.store.kind_of("gpu.scheduling", "v1", "gpuclaims")

    def spec(name: str) -> Any:
        return GpuClaim.objects.filter(name=name).values_list("spec", flat=True).first()

    with watching(world, partial(watch, CLAIM), "gpuclaims"):
        wait_for(lambda: spec("before") is not None)
        world.claim("fresh", count=3)
        wait_for(lambda: spec("fresh") is not None)
        world.server.store.patch(kind, NAMESPACE, "fresh", {"spec": {"devices": {"count": 4}}}, content_type=MERGE)
        wait_for(lambda: (spec("fresh") or {}).get("devices", {}).get("count") == 4)
        world.server.store.delete(kind, NAMESPACE, "before", {})
        wait_for(lambda: spec("before") is None)
    assert world.told("claim.deleted") == [f"GpuClaim {NAMESPACE}/before deleted"]
    world.server.store.delete(kind, NAMESPACE, "fresh", {})
    world.server.compact()
    with watching(world, partial(watch, CLAIM), "gpuclaims"):
        wait_for(lambda: spec("fresh") is None)
