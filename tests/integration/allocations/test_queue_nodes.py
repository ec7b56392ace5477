"""The queues' copy of nodes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from allocations.scheduling.queueing.waiting_rows import NodesCache
from kube.nodes import Node, NodeSpec
from kube.objects import ObjectMeta
from nodes.cluster import node_describe
from storage.clock import database_now
from tests.factories import NodeFactory

pytestmark = pytest.mark.usefixtures("ledger_db")


def cordoned(name: str) -> Node:
    return Node(metadata=ObjectMeta(name=name, uid=f"uid-{name}"), spec=NodeSpec(unschedulable=True))


def test_a_node_that_is_described_by_an_older_clock() -> None:
    """A comparison that began before the watch's last event writes after it."""
    one, two = NodeFactory(name="n1", gpus=2), NodeFactory(name="n2", gpus=2)
    began, cache = database_now(), NodesCache()
    cache.read()
    node_describe(node=one, machine=cordoned("n1"), now=began + timedelta(seconds=2))
    assert cache.read()["n1"].unschedulable
    node_describe(node=two, machine=cordoned("n2"), now=began)
    assert cache.read()["n2"].unschedulable
