"""The watches and the loop as tasks run them."""

from __future__ import annotations

import pytest

from autoscaling.loop import run_growth
from autoscaling.models import NodeClaim, PodGrowth, Pool
from autoscaling.rounds import planning
from autoscaling.tasks import write_pod_events
from autoscaling.watching import watch_node_claims, watch_node_pools
from kube.watch_loop import Followed
from tests.integration.cluster.growth.conftest import Growing


def test_one_run_of_the_loop(growing: Growing) -> None:
    """SCALE-3 SCALE-4 Watches write rows, and the loop makes a trigger pod, in one round each."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.watch()
    Pool.objects.all().delete()
    cluster = growing.cluster
    assert watch_node_pools(cluster=cluster, seconds=1) is Followed.DONE
    assert [one.name for one in Pool.objects.all()] == ["h100"]
    assert run_growth(cluster=cluster, seconds=2) is Followed.DONE
    (trigger,) = growing.triggers
    growing.karpenter.nominate(trigger)
    assert watch_node_claims(cluster=cluster, seconds=1) is Followed.DONE
    assert NodeClaim.objects.count() == 1
    assert run_growth(cluster=cluster, seconds=2) is Followed.DONE
    assert growing.states == ["launching"]


def test_events_are_asked_for_when_a_plan_says_something_new(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCALE-4 And written by the task."""
    sent: list[str] = []
    monkeypatch.setattr(planning, "send_after_commit", sent.append)
    growing.karpenter.pool()
    growing.pods(2)
    growing.round()
    assert sent == [write_pod_events.name]
    growing.wait(6)
    growing.round()
    assert sent == [write_pod_events.name], "a plan that says the same"
    assert write_pod_events() == 2
    assert write_pod_events() == 0
    assert PodGrowth.objects.filter(event_text="").count() == 0
