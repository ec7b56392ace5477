"""GPUs that their holders leave idle are lent to pods that say so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from allocations.models import Allocation
from nodes.models import Device, FleetRollup
from storage.clock import database_now
from tests.integration.cluster.queueing.conftest import Queues
from tests.integration.cluster.queueing.test_reclaim import leaving, two_queues

IDLE_MINUTES = 10


@pytest.fixture
def idle(queues: Queues, settings: Settings) -> Callable[..., None]:
    """Both queues hold what they deserve; `idle(pod)` has that pod's GPUs idle for so many minutes."""
    settings.GPUPLANE_IDLE_MINUTES = IDLE_MINUTES
    two_queues(queues)
    queues.run("r0", queue="research")
    queues.run("r1", queue="research")
    queues.run("p", queue="product", gpus=2)
    now = database_now()
    FleetRollup.objects.create(seconds=60, start=now - timedelta(minutes=1), groups={})
    Allocation.objects.update(created_at=now - timedelta(hours=2))

    def set_idle(pod: str, *, minutes: float = IDLE_MINUTES + 1, gpus: int = 9) -> None:
        held = Device.objects.filter(grants__allocation__pod_name=pod, grants__live=True).values_list("pk", flat=True)
        since = database_now() - timedelta(minutes=minutes)
        Device.objects.filter(pk__in=list(held)[:gpus]).update(idle_since=since)

    return set_idle


def test_an_idle_gpu_is_lent(queues: Queues, idle: Callable[..., None]) -> None:
    """QUEUE-6 across queues although both stay within what they deserve, and the event says why."""
    idle("p")
    queues.pod("b", queue="research", borrows_idle=True)
    queues.round()
    assert leaving(queues) == ["p"]
    (event,) = queues.world.told("allocation.evicted")
    assert "its GPUs were idle" in event


def test_in_the_same_queue(queues: Queues, idle: Callable[..., None]) -> None:
    """QUEUE-6 whatever the priorities."""
    idle("r0")
    queues.pod("b", queue="research", borrows_idle=True, priority=-5)
    queues.round()
    assert leaving(queues) == ["r0"]


@pytest.mark.parametrize(
    ("about", "idle_for"),
    [
        ({}, {}),
        ({"borrows_idle": True}, {"minutes": IDLE_MINUTES - 1}),
        ({"borrows_idle": True}, {"gpus": 1}),
        ({"borrows_idle": True, "gpus": 4}, {}),
    ],
    ids=["does not say so", "not long enough", "one of two works", "would not suffice"],
)
def test_nobody_goes(
    queues: Queues, idle: Callable[..., None], about: dict[str, Any], idle_for: dict[str, Any]
) -> None:
    """QUEUE-6 only what the rules lend."""
    idle("p", **idle_for)
    queues.pod("b", queue="research", **about)
    queues.round()
    assert leaving(queues) == []


def test_lending_is_off_by_default(queues: Queues, idle: Callable[..., None], settings: Settings) -> None:
    """QUEUE-6 0 minutes."""
    settings.GPUPLANE_IDLE_MINUTES = 0
    idle("p")
    queues.pod("b", queue="research", borrows_idle=True)
    queues.round()
    assert leaving(queues) == []


def test_where_nothing_measures_nobody_is_idle(queues: Queues, idle: Callable[..., None]) -> None:
    """QUEUE-6 what was known an hour ago counts no more."""
    idle("p")
    FleetRollup.objects.update(start=database_now() - timedelta(hours=1))
    queues.pod("b", queue="research", borrows_idle=True)
    queues.round()
    assert leaving(queues) == []


def test_a_holder_that_came_a_moment_ago(queues: Queues, idle: Callable[..., None]) -> None:
    """QUEUE-6 the GPU was idle under another."""
    idle("p")
    Allocation.objects.filter(pod_name="p").update(created_at=database_now())
    queues.pod("b", queue="research", borrows_idle=True)
    queues.round()
    assert leaving(queues) == []


def test_a_limit_holds(queues: Queues, idle: Callable[..., None]) -> None:
    """QUEUE-6 lending passes nobody's limit."""
    queues.queue("small", quotas=[{"limit": 0}])
    idle("p")
    queues.pod("b", queue="small", borrows_idle=True)
    queues.round()
    assert leaving(queues) == []
    assert "limit" in queues.why("b")


def test_who_is_not_preemptible_stays(queues: Queues, idle: Callable[..., None]) -> None:
    """QUEUE-6 preemptible holders lend."""
    idle("p")
    Allocation.objects.filter(pod_name="p").update(preemptible=False)
    queues.pod("b", queue="research", borrows_idle=True)
    queues.round()
    assert leaving(queues) == []
