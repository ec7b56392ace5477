"""Runs of watches and loops as tasks: whether the next is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import allocations.tasks
import autoscaling.tasks
from allocations.backends import Backends
from kube.errors import Unreachable
from kube.watch_loop import Followed

RUNS = [
    (allocations.tasks.watch_pods, "allocations.watching.watch_pods"),
    (allocations.tasks.watch_scheduling_events, "allocations.watching.watch_scheduling_events"),
    (allocations.tasks.run_queues, "allocations.scheduling.queueing.loop.run_queues"),
    (autoscaling.tasks.watch_node_pools, "autoscaling.watching.watch_node_pools"),
    (autoscaling.tasks.watch_node_claims, "autoscaling.watching.watch_node_claims"),
    (autoscaling.tasks.run_growth, "autoscaling.loop.run_growth"),
]
each_run = pytest.mark.parametrize(("task", "run"), [pytest.param(*run, id=run[1]) for run in RUNS])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Tasks that were sent, on a cluster that nobody may ask."""
    names: list[str] = []
    monkeypatch.setattr("allocations.watch_runs.enqueue_next", names.append)
    world = Backends(leases=None, cluster=object())  # type: ignore[arg-type]  # only handed on
    monkeypatch.setattr("allocations.watch_runs.current_backends", lambda: world)
    monkeypatch.setattr("allocations.tasks.current_backends", lambda: world)
    return names


@each_run
@pytest.mark.parametrize("ended", Followed)
def test_the_next_run_follows_one_that_went_well(
    sent: list[str], monkeypatch: pytest.MonkeyPatch, task: Any, run: str, ended: Followed
) -> None:
    monkeypatch.setattr(run, lambda **_: ended)
    task()
    assert sent == ([task.name] if ended is Followed.DONE else [])


@each_run
def test_a_run_that_failed_is_left_to_the_beat(
    sent: list[str], monkeypatch: pytest.MonkeyPatch, task: Any, run: str
) -> None:
    monkeypatch.setattr(run, _fails)
    task()
    assert sent == []


@each_run
def test_without_a_cluster_only_queues_are_run(monkeypatch: pytest.MonkeyPatch, task: Any, run: str) -> None:
    ran: list[object] = []
    monkeypatch.setattr("allocations.watch_runs.enqueue_next", lambda name: None)
    monkeypatch.setattr("allocations.watch_runs.current_backends", _without_cluster)
    monkeypatch.setattr("allocations.tasks.current_backends", _without_cluster)
    monkeypatch.setattr(run, _noting(ran))
    task()
    assert ran == ([None] if run.endswith("run_queues") else [])


def _fails(**_: object) -> Followed:
    raise Unreachable("the API server does not answer")


def _without_cluster() -> Backends:
    return Backends(leases=None)  # type: ignore[arg-type]  # only handed on


def _noting(ran: list[object]) -> Callable[..., Followed]:
    def run(*, cluster: object) -> Followed:
        ran.append(cluster)
        return Followed.DONE

    return run
