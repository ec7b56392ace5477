import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocations.engine.topology import Topology
from nodes.topology import islands, normal_links


@pytest.mark.parametrize(
    ("minors", "links", "want"),
    [
        pytest.param([], [], {}, id="no GPUs"),
        pytest.param([0, 1], [], {0: 0, 1: 1}, id="no links"),
        pytest.param([0, 1, 2], [[0, 2, 4]], {0: 0, 1: 1, 2: 0}, id="a pair and a lone one"),
        pytest.param([0, 1, 2, 3], [[0, 1, 1], [1, 2, 1]], {0: 0, 1: 0, 2: 0, 3: 1}, id="a chain"),
        pytest.param([0, 1], [[0, 1, 4], [1, 0, 0]], {0: 0, 1: 1}, id="listed twice counts the smaller"),
        pytest.param([5, 7], [[7, 5, 1]], {5: 0, 7: 0}, id="minors with gaps, listed backwards"),
        pytest.param([0, 1], [[0, 9, 4], [1, 1, 4]], {0: 0, 1: 1}, id="links to nowhere and to oneself"),
    ],
)
def test_islands_are_connected_components(minors, links, want):
    """NODE-4 (part) islands are computed from the NVLink graph."""
    assert islands(minors, links) == want


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(0, 3)), max_size=30),
        )
    )
)
def test_the_engine_draws_the_same_islands(case):
    """NODE-4 (part) what is shown is what placement works with."""
    count, links = case
    ours = islands(range(count), links)
    assert tuple(ours[minor] for minor in range(count)) == Topology.of(range(count), links).islands


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), max_size=20), st.randoms())
def test_order_and_direction_mean_nothing(links, random):
    other = [(b, a, n) if random.random() < 0.5 else (a, b, n) for a, b, n in links]
    random.shuffle(other)
    assert normal_links(other) == normal_links(links)
