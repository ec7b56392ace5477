"""Nodes that Karpenter made leave the fleet when Karpenter has taken them away; on both databases."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from access.actors import SYSTEM
from allocations import fleet
from kube.keys import NODEPOOL_LABEL
from nodes import karpenter_nodes
from nodes.choices import NodeState, Presence
from nodes.inventory import parse_node
from nodes.karpenter_nodes import GONE_FOR, grown_nodes_remove
from nodes.models import Device
from nodes.selectors import node_list
from nodes.services import inventory_put, node_remove
from tests.factories import NodeFactory

NOW = datetime(2026, 11, 25, 12, 0, 0, tzinfo=UTC)
LONG = GONE_FOR + timedelta(seconds=1)
OF_A_POOL = {NODEPOOL_LABEL: "h100"}

pytestmark = pytest.mark.usefixtures("ledger_db")


@pytest.mark.parametrize(
    ("state", "labels", "ago", "used", "want_removed"),
    [
        pytest.param(NodeState.GONE, OF_A_POOL, LONG, 0, True, id="gone, free, of a NodePool"),
        pytest.param(NodeState.GONE, OF_A_POOL, GONE_FOR / 2, 0, False, id="it is shown as gone for a while"),
        pytest.param(NodeState.GONE, OF_A_POOL, LONG, 50, False, id="somebody still holds a device"),
        pytest.param(NodeState.GONE, {}, LONG, 0, False, id="a machine that may come back"),
        pytest.param(NodeState.NOT_READY, OF_A_POOL, LONG, 0, False, id="not ready is not gone"),
        pytest.param(NodeState.READY, OF_A_POOL, LONG, 0, False, id="ready"),
    ],
)
def test_removed(state: NodeState, labels: dict[str, str], ago: timedelta, used: int, want_removed: bool) -> None:
    """SCALE-4 VIEW-2 What Karpenter took away is no part of the fleet any more, unless somebody holds it."""
    NodeFactory(name="n1", gpus=2, state=state, labels=labels, cluster_uid="u", changed_at=NOW - ago)
    Device.objects.filter(minor=0).update(core_used=used)
    assert grown_nodes_remove(now=NOW) == int(want_removed)
    assert grown_nodes_remove(now=NOW) == 0, "once"
    assert [node.name for node in node_list()] == ([] if want_removed else ["n1"])
    want = Presence.REMOVED if want_removed else Presence.PRESENT
    assert set(Device.objects.values_list("presence", flat=True)) == {want}


def test_filter_forgets_it() -> None:
    """SCALE-4 VIEW-3 Reasons name no node that is gone with its devices, once the snapshot was read anew."""
    NodeFactory(name="stays", gpus=1)
    NodeFactory(name="went", gpus=1, state=NodeState.GONE, labels=OF_A_POOL, cluster_uid="u", changed_at=NOW - LONG)
    assert sorted(fleet.current().snapshot.node_names) == ["stays", "went"]
    assert grown_nodes_remove(now=NOW) == 1
    assert fleet.compare() == 0, "nothing that could be given differs"
    assert list(fleet.current().snapshot.node_names) == ["stays"]


def test_a_node_that_comes_back_at_this_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """SCALE-4 a machine under the same name, as where nodes are named after addresses, keeps its devices."""
    NodeFactory(name="n1", gpus=2, state=NodeState.GONE, labels=OF_A_POOL, cluster_uid="u", changed_at=NOW - LONG)

    def late(**arguments: Any) -> bool:
        gpus = [{"minor": 0, "uuid": "GPU-new", "model": "H100", "memory": "80Gi"}]
        inventory_put(shape=parse_node({"name": "n1", "devices": gpus}), actor=SYSTEM, now=NOW)
        return node_remove(**arguments)

    monkeypatch.setattr(karpenter_nodes, "node_remove", late)
    assert grown_nodes_remove(now=NOW) == 0
    found = Device.objects.filter(presence=Presence.PRESENT)
    assert list(found.values_list("uuid", "node__state")) == [("GPU-new", NodeState.READY)]
