"""Pair scores and islands; bad links never raise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocations.engine.topology import Topology


@pytest.mark.parametrize(
    ("minors", "links", "pcie", "numa", "want"),
    [
        pytest.param([0, 1], [], ["", ""], [-1, -1], 10, id="nothing known is cross-CPU"),
        pytest.param([0, 1], [], ["", ""], [0, 0], 20, id="same NUMA node"),
        pytest.param([0, 1], [], ["a", "a"], [0, 0], 50, id="same switch beats same NUMA node"),
        pytest.param([0, 1], [], ["a", "b"], [0, 1], 10, id="other switch, other NUMA node"),
        pytest.param([0, 1], [[0, 1, 18]], ["a", "a"], [0, 0], 1850, id="NVLinks add to the switch"),
        pytest.param([0, 1], [[1, 0, 4]], ["", ""], [0, 0], 420, id="listed the other way round"),
        pytest.param([0, 1], [[0, 1, 18], [1, 0, 4]], ["", ""], [0, 0], 420, id="asymmetric counts the smaller"),
        pytest.param([0, 1], [[0, 1, 2], [0, 1, 7]], ["", ""], [0, 0], 220, id="listed twice counts the smaller"),
        pytest.param([3, 7], [[3, 7, 1]], ["", ""], [0, 0], 120, id="minors need not be positions"),
        pytest.param([0, 1], [[0, 1, -5]], ["", ""], [0, 0], 20, id="a negative count is no link"),
    ],
)
def test_pair_score(minors, links, pcie, numa, want):
    topology = Topology.of(minors, links, pcie=pcie, numa=numa)
    assert topology.pair_score.tolist() == [[0, want], [want, 0]]


@pytest.mark.parametrize(
    ("size", "links", "want"),
    [
        pytest.param(4, [], (0, 1, 2, 3), id="without links each GPU is its own island"),
        pytest.param(4, [[0, 1, 1], [2, 3, 1]], (0, 0, 1, 1), id="two pairs"),
        pytest.param(4, [[3, 2, 1], [2, 1, 1], [1, 0, 1]], (0, 0, 0, 0), id="a chain is one island"),
        pytest.param(4, [[0, 1, 5], [1, 0, 0]], (0, 1, 2, 3), id="a link that one side denies is none"),
        pytest.param(2, [[0, 9, 5], [1, 1, 3], [8, 9, 1]], (0, 1), id="links to strangers and to oneself are dropped"),
        pytest.param(0, [[0, 1, 5]], (), id="no GPUs at all"),
    ],
)
def test_islands(size, links, want):
    """NODE-4 islands are the connected components of the NVLink graph."""
    assert Topology.of(list(range(size)), links).islands == want


def test_equal_wirings_are_one_object():
    first = Topology.of([0, 1], [[0, 1, 2]], pcie=["x", "x"], numa=[0, 0])
    second = Topology.of([4, 9], [[9, 4, 2]], pcie=["y", "y"], numa=[3, 3])
    assert first is second
    assert hash(first) == hash(second)


@given(
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(-3, 24), st.integers(-3, 24), st.integers(-9, 2**70)), max_size=40),
)
def test_no_links_raise(size, links):
    """The public failure of go-gpuallocator: a panic on asymmetric links."""
    topology = Topology.of(list(range(size)), links)
    assert (topology.pair_score == topology.pair_score.T).all()
    assert len(topology.islands) == size
