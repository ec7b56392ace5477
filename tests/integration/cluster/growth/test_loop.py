"""The watches and the loop as tasks run them."""

from __future__ import annotations

from autoscaling.loop import run_growth
from autoscaling.models import NodeClaim, Pool
from autoscaling.watching import watch_node_claims, watch_node_pools
from kube.watch_loop import Followed
from tests.integration.cluster.growth.conftest import Growing


def test_one_run_of_the_loop(growing: Growing) -> None:
    """SCALE-3 SCALE-4 Watches write rows, and the loop makes a trigger pod, in one round each."""
    growing.karpenter.pool()
    growing.pods(2)
    growing.watch()
    Pool.objects.all().delete()
    cluster = growing.world.backends.cluster
    assert cluster is not None
    assert watch_node_pools(cluster=cluster, seconds=1) is Followed.DONE
    assert [one.name for one in Pool.objects.all()] == ["h100"]
    assert run_growth(cluster=cluster, seconds=2) is Followed.DONE
    (trigger,) = growing.triggers
    growing.karpenter.nominate(trigger)
    assert watch_node_claims(cluster=cluster, seconds=1) is Followed.DONE
    assert NodeClaim.objects.count() == 1
    assert run_growth(cluster=cluster, seconds=2) is Followed.DONE
    assert growing.states == ["launching"]
