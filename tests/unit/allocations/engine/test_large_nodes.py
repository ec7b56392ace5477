"""Nodes of more than 16 GPUs: as good as searching every pool, within a number of steps."""

import random
from functools import cache
from itertools import combinations
from math import comb

import numpy as np
import pytest

from allocations.engine import large_nodes
from allocations.engine.budget import STEPS_A_DECISION, STEPS_A_SEARCH, Budget
from allocations.engine.large_nodes import POOL_STEPS
from allocations.engine.plan import plan
from allocations.engine.sets import best_set
from allocations.engine.topology import EXACT_UP_TO, Topology
from claims.dialects.request import Policy
from tests.builders import fleet, full_mesh, node, whole


def meshes(gpus, island):
    """Islands of so many GPUs, each linked to each, on PCIe switches of two and NUMA nodes of half an island."""
    links = [
        (base + a, base + b, 18) for base in range(0, gpus, island) for a, b, _ in full_mesh(min(island, gpus - base))
    ]
    places = list(range(gpus))
    return Topology.of(
        places, links, pcie=[f"{one // 2}" for one in places], numa=[one // (island // 2) for one in places]
    )


def rings(gpus, size):
    """Rings of so many, as bridges make them: two links to the next, one to the one after."""
    links = []
    for base in range(0, gpus, size):
        for one in range(size):
            links += [(base + one, base + (one + 1) % size, 2), (base + one, base + (one + 2) % size, 1)]
    return Topology.of(list(range(gpus)), links, numa=[one // size for one in range(gpus)])


def cubes(gpus):
    """Hybrid cube meshes of eight, as in DGX-1."""
    edges = [
        (0, 1, 1),
        (0, 2, 1),
        (0, 3, 2),
        (0, 4, 2),
        (1, 2, 2),
        (1, 3, 1),
        (1, 5, 2),
        (2, 3, 2),
        (2, 6, 1),
        (3, 7, 1),
        (4, 5, 1),
        (4, 6, 1),
        (4, 7, 2),
        (5, 6, 2),
        (5, 7, 1),
        (6, 7, 2),
    ]
    links = [(base + a, base + b, count) for base in range(0, gpus, 8) for a, b, count in edges]
    return Topology.of(list(range(gpus)), links, pcie=[f"{one // 4}" for one in range(gpus)])


def tree(gpus):
    """No NVLinks: switches of four at NUMA nodes of sixteen."""
    places = list(range(gpus))
    return Topology.of(places, (), pcie=[f"{one // 4}" for one in places], numa=[one // 16 for one in places])


@cache
def hostile(gpus, seed=7):
    """No two GPUs wired alike."""
    chance = random.Random(seed)
    links = [(a, b, chance.randrange(1, 1000)) for a in range(gpus) for b in range(a) if chance.random() < 0.5]
    return Topology.of(list(range(gpus)), links)


SANE = [
    pytest.param(meshes(24, 8), id="three islands of 8"),
    pytest.param(meshes(32, 16), id="two islands of 16"),
    pytest.param(meshes(64, 8), id="eight islands of 8"),
    pytest.param(meshes(64, 4), id="sixteen islands of 4"),
    pytest.param(meshes(36, 18), id="two islands of 18"),
    pytest.param(meshes(64, 64), id="one switch over 64"),
    pytest.param(rings(48, 8), id="rings of 8"),
    pytest.param(cubes(40), id="hybrid cube meshes"),
    pytest.param(tree(64), id="PCIe alone"),
    pytest.param(meshes(20, 8), id="islands of 8, 8 and 4"),
]


def by_every_pool(topology, free, size, *, within_island):
    """(score, left) as the search was before it was bounded: every pool of 16 tabled, or grown from every GPU."""
    places = [place for place in range(topology.size) if free >> place & 1]
    groups = [places]
    if within_island:
        held = [[place for place in places if island >> place & 1] for island in topology.island_masks]
        groups = [group for group in held if len(group) >= size]
    pairs, found = topology.pair_score, []
    for group in groups:
        for seed in group:
            if len(group) <= max(EXACT_UP_TO, size):
                pool = group
            elif size <= EXACT_UP_TO:
                pool = sorted(sorted(group, key=lambda one: (one != seed, -pairs[seed, one], one))[:EXACT_UP_TO])
            else:
                pool, others = [seed], [one for one in group if one != seed]
                while len(pool) < size:
                    gains = pairs[np.ix_(others, pool)].sum(axis=1)
                    pool.append(others.pop(int(gains.argmax())))
            chosen = sorted(pool)
            if len(pool) > size:
                within = best_set(topology.restricted(pool), (1 << len(pool)) - 1, size, within_island=within_island)
                if within is None:
                    continue
                chosen = [pool[place] for place in within.positions]
            rest = [place for place in places if place not in chosen]
            found.append((topology.score(chosen), topology.score(rest)))
            if len(group) <= max(EXACT_UP_TO, size):
                break
    return max(found, default=None)


@pytest.mark.parametrize("topology", SANE)
@pytest.mark.parametrize("within", [False, True], ids=["anywhere", "in one island"])
def test_as_good_as_every_pool(topology, within):
    """CLAIM-5 on nodes of 17 to 64 GPUs, some of them taken, no set is worse than that of the search without bounds."""
    chance = random.Random(topology.size)
    everything = (1 << topology.size) - 1
    masks = [
        everything,
        *(everything & ~sum(1 << one for one in chance.sample(range(topology.size), taken)) for taken in (1, 3, 7)),
    ]
    for free in masks:
        for size in (1, 2, 3, 4, 8, 12, 16, 20):
            if free.bit_count() < size:
                continue
            want = by_every_pool(topology, free, size, within_island=within)
            found = best_set(topology, free, size, within_island=within)
            if want is None:
                assert found is None
                continue
            assert found is not None
            rest = [place for place in range(topology.size) if free >> place & 1 and place not in found.positions]
            assert len(set(found.positions)) == size
            assert all(free >> place & 1 for place in found.positions)
            assert (found.score, topology.score(rest)) >= want, (size, bin(free))
            assert found.score == topology.score(found.positions)


@pytest.mark.parametrize("gpus", [17, 64, 256, 640])
@pytest.mark.parametrize("size", [1, 4, 8, 16, 17, 128])
def test_no_wiring_takes_more_steps_than_there_are(gpus, size):
    """However many GPUs, and if no two are wired alike: a search takes the steps of a question at most."""
    if size > gpus:
        return
    budget = Budget()
    found = best_set(hostile(gpus), (1 << gpus) - 1, size, within_island=False, budget=budget)
    assert found is not None
    assert len(set(found.positions)) == size
    assert STEPS_A_DECISION - budget.left <= STEPS_A_SEARCH
    if gpus == 64 and 1 < size < EXACT_UP_TO:
        assert STEPS_A_DECISION - budget.left == 64 * comb(EXACT_UP_TO, size), (
            "every GPU has a pool, and every pool is looked at"
        )


def test_pools_that_are_wired_alike_count_once():
    budget = Budget()
    assert best_set(meshes(64, 8), (1 << 64) - 1, 8, within_island=False, budget=budget) is not None
    assert STEPS_A_DECISION - budget.left <= 8 * POOL_STEPS


def test_what_is_remembered_changes_neither_answer_nor_steps():
    topology, budgets = hostile(48), []
    for _ in range(2):
        large_nodes.ANSWERS.clear()
        for _ in range(2):
            budget = Budget()
            found = best_set(topology, (1 << 48) - 5, 6, within_island=False, budget=budget)
            budgets.append((found, budget.left))
    assert len(set(budgets)) == 1


def test_a_spent_budget_still_gives_a_set_and_the_best_of_few():
    """With nothing left to spend a set is found all the same, and the best one while no more than 16 may be chosen
    from.
    """
    topology = hostile(40)
    spent = Budget(0)
    found = best_set(topology, (1 << 40) - 1, 5, within_island=False, budget=spent)
    assert found is not None
    assert -spent.left <= POOL_STEPS
    grown = best_set(topology, (1 << 40) - 1, 30, within_island=False, budget=spent)
    assert grown is not None
    assert len(grown.positions) == 30
    free = sum(1 << place for place in range(1, 25, 2))
    want = max(topology.score(some) for some in combinations(range(1, 25, 2), 4))
    few = best_set(topology, free, 4, within_island=False, budget=spent)
    assert few is not None
    assert few.score == want


def test_more_steps_never_give_a_worse_set():
    topology, scores = hostile(200), []
    for most in (0, 50_000, 400_000, STEPS_A_SEARCH):
        found = best_set(topology, (1 << 200) - 1, 8, within_island=False, budget=Budget(most))
        assert found is not None
        scores.append(found.score)
    assert scores == sorted(scores)


def test_a_decision_spends_its_budget_and_no_more(monkeypatch):
    """Many large nodes, each wired in its own way: ranking them takes the steps of one decision, the choice those of
    one question.
    """
    spent, real = [], Budget.spend

    def spend(budget, steps):
        spent.append(steps)
        real(budget, steps)

    monkeypatch.setattr(Budget, "spend", spend)
    chance = random.Random(3)
    picture = fleet(
        *(
            node(f"n{number}", gpus=40, links=[(a, b, chance.randrange(1, 1000)) for a in range(40) for b in range(a)])
            for number in range(24)
        )
    )
    decision = plan(picture, whole(8, policy=Policy.CONTIGUOUS))
    assert len(spent) == 25
    assert STEPS_A_DECISION <= sum(spent) <= STEPS_A_DECISION + STEPS_A_SEARCH + 24 * POOL_STEPS
    again = plan(picture, whole(8, policy=Policy.CONTIGUOUS))
    assert decision.node is not None
    assert (again.node, again.grants) == (decision.node, decision.grants)
    assert spent[25:] == spent[:25], "answers that were kept cost as much"
