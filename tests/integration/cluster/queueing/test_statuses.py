"""Statuses of queues and gangs at the API server, where some cannot be written."""

from __future__ import annotations

import pytest

from access.actors import SYSTEM
from allocations import tasks
from allocations.publish import queue_status
from allocations.publish.claim_status import Publisher
from claims.kinds import GANG
from claims.models import GpuGang, GpuQueue
from claims.services import manifest_create
from storage.clock import database_now
from tests.fakes.apiserver import Fault
from tests.integration.cluster.conftest import NAMESPACE
from tests.integration.cluster.queueing.conftest import Queues


@pytest.fixture
def here(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> Queues:
    """The task writes to the cluster of the test."""
    monkeypatch.setattr(tasks, "current_backends", lambda: queues.world.backends)
    monkeypatch.setattr(tasks, "_alone", lambda _name, work: work())
    monkeypatch.setattr(tasks, "_publisher", Publisher())
    monkeypatch.setattr(tasks, "_queue_publisher", queue_status.Publisher())
    return queues


def fails(queues: Queues, path: str) -> None:
    """The API server answers writes there with 503."""
    queues.world.server.faults.append(Fault("PATCH", path, status=503, times=10_000))


def test_claims_that_cannot_be_written_delay_no_queue(here: Queues) -> None:
    """CLAIM-1 each kind of object has its status."""
    here.world.node("n1", gpus=4)
    here.queue("research", quotas=[{"deserved": 2}])
    here.world.claim("first")
    here.world.place("train", claim="first")
    fails(here, rf"/namespaces/{NAMESPACE}/gpuclaims/")
    tasks.publish_claims()
    assert GpuQueue.objects.get().published_status


def test_gangs_that_cannot_be_written_delay_no_others(here: Queues) -> None:
    """CLAIM-8 those of other namespaces, and their own once they can be written."""
    here.world.server.add_namespace("zeta")
    here.gang("mine", 2)
    manifest = {"metadata": {"name": "theirs", "namespace": "zeta"}, "spec": {"minMember": 2}}
    manifest_create(GANG, manifest=manifest, actor=SYSTEM, now=database_now())
    fails(here, rf"/namespaces/{NAMESPACE}/gpugangs/")
    tasks.publish_claims()
    assert [gang.name for gang in GpuGang.objects.all() if gang.published_status] == ["theirs"]
    here.world.server.faults.clear()
    tasks.publish_claims()
    assert [gang.name for gang in GpuGang.objects.all() if gang.published_status] == ["mine", "theirs"]


def test_a_queue_that_cannot_be_written_delays_no_other(here: Queues) -> None:
    """QUEUE-1"""
    for name in ("a", "b"):
        here.queue(name, quotas=[{"deserved": 2}])
    fails(here, "/gpuqueues/a")
    tasks.publish_claims()
    assert [queue.name for queue in GpuQueue.objects.all() if queue.published_status] == ["b"]


def test_statuses_that_are_refused_delay_no_others(here: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLAIM-8 however many there are: a run goes on behind the last one that was tried."""
    monkeypatch.setattr(queue_status, "TRIES_A_TURN", 2)
    for name in ("a", "b", "c"):
        here.gang(name, 2)
    here.world.server.faults.append(Fault("PATCH", r"/gpugangs/[ab]/", status=403, times=10_000))
    for _ in range(2):
        tasks.publish_claims()
    assert [gang.name for gang in GpuGang.objects.all() if gang.published_status] == ["c"]
