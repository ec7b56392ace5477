"""Pools of which Karpenter makes no node for pods."""

from __future__ import annotations

from autoscaling.models import Pool, Trigger
from kube.keys import NODEPOOL_LABEL
from tests.integration.cluster.growth.conftest import Growing


def test_a_pool_that_is_not_ready(growing: Growing) -> None:
    """SCALE-1 No trigger pod is made for it, whatever its weight; triggers that Karpenter did not take up go."""
    growing.karpenter.pool(weight=10)
    growing.karpenter.pool("other")
    growing.pods(1, claim="eight")
    growing.round()
    growing.karpenter.not_ready()
    growing.wait(6)
    growing.round(2)
    assert sorted(growing.states) == ["created", "withdrawn"]
    assert [one["spec"]["nodeSelector"][NODEPOOL_LABEL] for one in growing.triggers] == ["other"]
    assert Pool.objects.get(name="h100").closed == "it is not Ready: NodeClassNotReady: no subnets"


def test_a_node_that_comes_while_its_pool_is_not_ready(growing: Growing) -> None:
    """SCALE-3 A node that Karpenter makes already is followed on, and nothing is made beside it."""
    growing.karpenter.pool()
    growing.pods(1, claim="eight")
    growing.round()
    growing.karpenter.nominate(growing.triggers[0])
    growing.round()
    growing.karpenter.not_ready()
    growing.wait(6)
    growing.round(2)
    assert growing.states == ["launching"]
    assert Trigger.objects.count() == 1
