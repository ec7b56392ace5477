"""Nodes whose Node objects the API server does not let gpuplane write: one keeps no other from being made."""

from __future__ import annotations

from autoscaling.models import NodeClaim
from tests.fakes.apiserver import Fault
from tests.integration.cluster.growth.conftest import Growing


def test_a_node_that_may_not_be_written(growing: Growing) -> None:
    """SCALE-4 A policy refuses to write to one node: its protection stays until it may, and others are grown."""
    name = growing.serve_one()
    assert growing.states == ["served"]
    growing.wait(61)
    growing.server.faults.append(Fault("PATCH", f"nodes/{name}$", status=422, times=1000))
    growing.pods(2, "q", claim="eight")
    growing.watch()
    growing.round(2)
    assert growing.states == ["served", "created", "created"]
    assert NodeClaim.objects.get(node=name).protected
    growing.server.faults.clear()
    growing.round()
    assert not NodeClaim.objects.get(node=name).protected


def test_a_node_that_may_not_be_labelled(growing: Growing) -> None:
    """SCALE-4 A trigger pod that lands there is deleted, as on any old node; the other nodes are labelled."""
    growing.world.node("refuses", gpus=1)
    growing.world.node("old", gpus=1)
    growing.server.faults.append(Fault("PATCH", "nodes/refuses$", status=422, times=1000))
    growing.karpenter.pool()
    growing.pods(1, claim="eight")
    growing.round()
    assert growing.states == ["created"]
    assert growing.karpenter.is_in_use("old")
    assert not growing.karpenter.is_in_use("refuses")
