"""Snapshots from rows."""

import pytest

from tests.builders import fleet, nic, node, pairs


def test_rows_are_sorted_and_coded():
    picture = fleet(
        node("b", gpus=[7, 2], links=[(2, 7, 4)], others=[nic("b", 1, pcie="p"), nic("b", 0, kind="fpga", pcie="p")]),
        node("a", gpus=1),
    )
    assert picture.node_names == ("a", "b")
    assert picture.types == ("gpu", "fpga", "rdma")
    assert picture.device_minor.tolist() == [0, 2, 7, 0, 1]
    assert picture.device_island.tolist() == [0, 0, 0, -1, -1]
    assert picture.device_pcie.tolist() == [-1, -1, -1, 0, 0]
    assert picture.node_start.tolist() == [0, 1, 5]


def test_sick_gpus_still_join_islands():
    """NODE-4 an island is the graph as built."""
    picture = fleet(node("a", gpus=3, links=[(0, 1, 1), (1, 2, 1)], sick=[1]))
    assert picture.device_island.tolist() == [0, 0, 0]


def test_equal_nodes_share_a_topology():
    picture = fleet(*(node(f"n{at}", gpus=4, links=pairs(4)) for at in range(3)))
    assert picture.node_topology[0] is picture.node_topology[2]
    assert len(picture.index.sets.topologies) == 1


def test_names_must_be_unique():
    with pytest.raises(ValueError, match="unique"):
        fleet(node("a"), node("a"))
