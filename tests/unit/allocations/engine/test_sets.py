"""The best set equals brute force on every subset."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocations.engine.set_scores import NO_SET, SetScores, best_scores
from allocations.engine.sets import BestSet, best_set
from allocations.engine.topology import Topology
from tests.builders import full_mesh, halves, pairs


def brute_force(topology, free, size, *, within_island, eligible=None):
    places = [place for place in range(topology.size) if free >> place & 1]
    choosable = [place for place in places if eligible is None or eligible >> place & 1]
    best = None
    for chosen in combinations(choosable, size):
        one_island = len({topology.islands[place] for place in chosen}) == 1
        if within_island and not one_island:
            continue
        score = sum(int(topology.pair_score[a, b]) for a, b in combinations(chosen, 2))
        rest = [place for place in places if place not in chosen]
        left = sum(int(topology.pair_score[a, b]) for a, b in combinations(rest, 2))
        key = (-score, -left, chosen)
        if best is None or key < best[0]:
            best = (key, BestSet(chosen, score))
    return best[1] if best else None


@st.composite
def wirings(draw, most=10):
    """Random link matrices: asymmetric, disconnected, with switches and NUMA nodes."""
    size = draw(st.integers(1, most))
    minor = st.integers(0, size - 1)
    links = draw(st.lists(st.tuples(minor, minor, st.integers(0, 3)), max_size=size * 3))
    codes = st.lists(st.integers(-1, 2), min_size=size, max_size=size)
    return Topology.of(list(range(size)), links, pcie=draw(codes), numa=draw(codes))


@settings(max_examples=60, deadline=None)
@given(wirings(), st.data())
def test_equals_brute_force(topology, data):
    """CLAIM-5 the exact choice equals brute force on every subset, asymmetric and disconnected links included."""
    masks = list(range(1 << topology.size))
    size = data.draw(st.integers(1, topology.size))
    within = data.draw(st.booleans())
    if topology.size > 7:
        masks = data.draw(st.lists(st.sampled_from(masks), min_size=1, max_size=24))
    about = np.zeros(len(masks), dtype=np.int32)
    together = best_scores([topology], about, np.array(masks), size, within_island=within)
    for place, mask in enumerate(masks):
        want = brute_force(topology, mask, size, within_island=within)
        assert best_set(topology, mask, size, within_island=within) == want
        assert together[place] == (want.score if want else NO_SET)


@settings(max_examples=30, deadline=None)
@given(st.lists(wirings(most=6), min_size=1, max_size=4), st.data())
def test_scores_of_many_wirings_at_once_are_remembered_but_never_stale(topologies, data):
    wiring = np.array(data.draw(st.lists(st.integers(0, len(topologies) - 1), min_size=1, max_size=6)), dtype=np.int32)
    scores = SetScores(topologies, wiring)
    for _ in range(3):
        nodes = np.array(sorted(data.draw(st.sets(st.integers(0, len(wiring) - 1), min_size=1))))
        masks = np.array([data.draw(st.integers(0, (1 << topologies[wiring[node]].size) - 1)) for node in nodes])
        size, within = data.draw(st.integers(1, 3)), data.draw(st.booleans())
        found = scores.scores(nodes, masks, size, within_island=within)
        for node, mask, score in zip(nodes, masks, found, strict=True):
            want = brute_force(topologies[wiring[node]], int(mask), size, within_island=within)
            assert score == (want.score if want else NO_SET)


@settings(max_examples=60, deadline=None)
@given(wirings(most=8), st.data())
def test_a_model_filter_narrows_the_choice_but_not_what_is_left(topology, data):
    everything = (1 << topology.size) - 1
    free, eligible = (data.draw(st.integers(0, everything)) for _ in range(2))
    size = data.draw(st.integers(1, topology.size))
    within = data.draw(st.booleans())
    want = brute_force(topology, free, size, within_island=within, eligible=eligible)
    assert best_set(topology, free, size, within_island=within, eligible=eligible) == want


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_large_nodes_are_exact_while_few_are_free(data):
    size = data.draw(st.integers(17, 40))
    minor = st.integers(0, size - 1)
    links = data.draw(st.lists(st.tuples(minor, minor, st.integers(0, 3)), max_size=60))
    topology = Topology.of(list(range(size)), links, numa=[place // 8 for place in range(size)])
    free = sum(1 << place for place in data.draw(st.sets(minor, max_size=9)))
    count = data.draw(st.integers(1, 5))
    within = data.draw(st.booleans())
    want = brute_force(topology, free, count, within_island=within)
    assert best_set(topology, free, count, within_island=within) == want


@pytest.mark.parametrize(
    ("links", "free", "size", "within", "want"),
    [
        pytest.param(pairs(4), 0b1111, 2, False, (0, 1), id="a pair, lower minors first"),
        pytest.param(pairs(4), 0b1110, 2, False, (2, 3), id="the whole pair, not the broken one"),
        pytest.param(pairs(4), 0b1110, 1, False, (1,), id="a lone GPU comes from the broken pair"),
        pytest.param(pairs(4), 0b1101, 1, False, (0,), id="whichever half of the pair is left"),
        pytest.param(halves(8), 0b11111111, 4, True, (0, 1, 2, 3), id="four in one island"),
        pytest.param(halves(8), 0b11110111, 4, True, (4, 5, 6, 7), id="the island that still has four"),
        pytest.param(halves(8), 0b01110111, 4, True, None, id="no island has four"),
        pytest.param(halves(8), 0b11110111, 3, False, (0, 1, 2), id="ties leave the larger island whole"),
        pytest.param(full_mesh(8), 0b11111111, 9, False, None, id="more than there are"),
        pytest.param(full_mesh(8), 0, 1, False, None, id="nothing free"),
    ],
)
def test_named_choices(links, free, size, within, want):
    topology = Topology.of(list(range(4 if links == pairs(4) else 8)), links)
    found = best_set(topology, free, size, within_island=within)
    assert (found.positions if found else None) == want


def test_a_node_of_64_gpus_is_answered_within_one_of_its_islands():
    links = [(base + a, base + b, 18) for base in range(0, 64, 8) for a, b, _ in full_mesh(8)]
    topology = Topology.of(list(range(64)), links)
    found = best_set(topology, (1 << 64) - 2, 8, within_island=True)
    assert found == BestSet(tuple(range(8, 16)), 28 * 1810)
    grown = best_set(topology, (1 << 64) - 1, 24, within_island=False)
    assert grown is not None
    assert len(grown.positions) == 24
