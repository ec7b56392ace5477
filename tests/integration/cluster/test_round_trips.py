"""Round trips to PostgreSQL on the path of a pod, counted by a proxy in front of it: across a network each costs more
than its statements.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction

from allocations import ledger
from allocations.choices import State
from allocations.extender import views
from allocations.models import Allocation
from claims import membership
from gpuplane.listeners.threads import Lane
from kube.keys import NATIVE_GPU
from storage.clock import database_now
from tests.database_proxy import DatabaseProxy
from tests.databases import TestDatabase
from tests.extender import pod_manifest
from tests.integration.cluster.conftest import NAMESPACE, World, bound_by_the_door
from tests.ledger_truth import problems

FILTER = 2
"""One pipeline that reads the fleet, what the pod has and its claim; one statement that holds. The aim is three."""
BIND = 2
"""Reserve, and confirm: one each for all binds of a batch."""
WARM = 8
"""Filters before any is counted: the snapshot is loaded, and every connection has prepared its statements."""

pytestmark = pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)


@pytest.fixture
def proxy(world: World, ledger_db: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[DatabaseProxy]:
    """The database, with all connections of the pool open, and eight GPUs on each of four nodes.

    Queues stay as they were read: in a web process `gpuplane.start.queue_reader` reads them, beside the filters.
    """
    monkeypatch.setattr(membership, "FRESH_SECONDS", 3600.0)
    for name in ("n1", "n2", "n3", "n4"):
        world.node(name, gpus=8)
    world.claim("train")
    world.claim("brief", ttl=3600)
    with DatabaseProxy(ledger_db.url) as between, ledger_db.through(between.url):
        connections["default"].ensure_connection()
        pool: Any = connections["default"]
        pool.pool.wait()
        for number in range(WARM):
            filtered(world, f"warm-{number}", claim="train")
        yield between


def in_lane(function: Callable[..., Any], *arguments: object) -> Any:
    """What the function returns in a thread of the listeners, which gives its connection back afterwards."""

    async def run() -> Any:
        lane = Lane("filter", threads=1, waiting=1)
        try:
            return await lane.run(function, *arguments)
        finally:
            lane.shutdown()

    return asyncio.run(run())


def filtered(world: World, name: str, **asks: Any) -> tuple[str, str, str]:
    """Make a pod and filter it: (name, UID, node)."""
    uid = world.pod(name, **asks)
    return name, uid, answered(world, world.server.pods[NAMESPACE, name])


def answered(world: World, pod: Mapping[str, Any]) -> str:
    """The node that filter answers with."""
    body = json.dumps({"Pod": pod, "NodeNames": sorted(world.server.nodes)}).encode()
    (node,) = json.loads(in_lane(views.filter, body))["NodeNames"]
    return str(node)


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param({"claim": "train"}, id="by a claim"),
        pytest.param({"resources": {NATIVE_GPU: "2"}}, id="by a resource"),
        pytest.param({"resources": {"koordinator.sh/gpu-core": "30", "koordinator.sh/gpu-memory": "16Gi"}}, id="share"),
    ],
)
def test_a_filter_with_its_hold(world: World, proxy: DatabaseProxy, asks: dict[str, Any]) -> None:
    """CLAIM-4 LEASE-2 two round trips, and two when the pod is filtered again and its hold prolonged."""
    costs = []
    for number in range(3):
        pod = pod_manifest(f"pod-{number}", namespace=NAMESPACE, **asks)
        for _ in range(2):
            before = proxy.round_trips
            node = answered(world, pod)
            costs.append(proxy.round_trips - before)
            assert Allocation.objects.get(pod_name=f"pod-{number}", state=State.HELD).node.name == node
    assert costs == [FILTER] * 6
    assert problems(leases=False) == []


def test_a_bind(world: World, proxy: DatabaseProxy) -> None:
    """LEASE-3 the steps of the ledger cost one round trip each."""
    for number in range(3):
        pod = filtered(world, f"pod-{number}", claim="train" if number else "brief")
        name, uid, node = pod
        before = proxy.round_trips
        assert bound_by_the_door([(name, uid, node)]) == [""]
        assert proxy.round_trips - before == BIND
        assert Allocation.objects.get(pod_uid=uid).state == State.BOUND
    assert problems(leases=False) == []


def test_the_steps_of_many_binds(world: World, proxy: DatabaseProxy) -> None:
    """LEASE-3 a step of a batch is one round trip, also where their claims end at different times."""
    pods = [filtered(world, f"pod-{number}", claim="brief" if number % 2 else "train") for number in range(6)]
    nodes = {uid: node for _, uid, node in pods}
    before = proxy.round_trips
    found, clock = ledger.reserve_held(nodes, read_clock=database_now)
    assert proxy.round_trips - before == 1
    assert set(found) == set(nodes)
    attempts = {live.id: live.bind_attempt for live in found.values()}
    before = proxy.round_trips
    assert ledger.current(attempts) == attempts.keys()
    assert proxy.round_trips - before == 1
    *rest, last = attempts
    end = clock.now + timedelta(hours=1)
    before = proxy.round_trips
    assert ledger.all_bound({None: rest, end: [last]}, now=clock.now) == attempts.keys()
    assert proxy.round_trips - before == 1
    assert Allocation.objects.get(expires_at__isnull=False).pk == last
    assert problems(leases=False) == []


def test_an_attempt_is_taken_up(world: World, proxy: DatabaseProxy) -> None:
    """LEASE-3 one round trip to go on with what another process left, and one to note that the pod has ended."""
    _, uid, node = filtered(world, "pod", claim="train")
    found, clock = ledger.reserve_held({uid: node}, read_clock=database_now)
    before = proxy.round_trips
    assert ledger.take_up(allocation_id=found[uid].id, attempt=1, now=clock.now) == 2
    assert proxy.round_trips - before == 1
    before = proxy.round_trips
    assert ledger.note_ended(allocation_id=found[uid].id, reason="gone")
    assert proxy.round_trips - before == 1


def test_the_proxy_counts(proxy: DatabaseProxy) -> None:
    """CLAIM-4 a statement is one round trip, a transaction of one three: the figures above are no artefact."""
    before = proxy.round_trips
    database_now()
    assert proxy.round_trips - before == 1
    before = proxy.round_trips
    with transaction.atomic(), connections["default"].cursor() as cursor:
        cursor.execute("SELECT 1")
    assert proxy.round_trips - before == 3
