"""What the engine keeps between questions is bounded by bytes."""

import importlib
import pkgutil
import random
from typing import Any

import numpy as np

import allocations.engine
from allocations.engine import large_nodes, set_scores, sets, subsets, topology
from allocations.engine.caches import ENTRY_BYTES, BoundedCache, cached_in
from allocations.engine.set_scores import best_scores
from allocations.engine.sets import best_set
from allocations.engine.topology import Topology

BY_NUMBER = {"subsets_of": 320_000, "span_table": 1_800_000}
"""Tables that depend on a number up to 16 and another: all there are, in bytes."""


def test_the_oldest_goes_first_and_the_bytes_are_never_exceeded():
    store = BoundedCache(10 * (1000 + ENTRY_BYTES))
    for number in range(10):
        store.put(number, str(number), 1000)
    assert store.get(0) == "0"
    store.put(10, "10", 1000)
    assert [number for number in range(11) if store.get(number) is None] == [1]
    store.put(11, "heavy", 5000)
    assert store.kept_bytes <= store.most_bytes
    store.put(12, "heavier than everything", store.most_bytes)
    assert store.get(12) is None
    assert store.get(11) == "heavy"
    store.put(11, "light", 1)
    assert store.get(11) == "light"
    store.clear()
    assert (store.get(11), store.kept_bytes) == (None, 0)


def test_an_answer_is_worked_out_once_while_it_is_kept():
    store, asked = BoundedCache(1 << 20), []

    @cached_in(store, lambda text, *_: len(text))
    def shouted(text):
        asked.append(text)
        return text.upper()

    assert [shouted("a"), shouted("b"), shouted("a")] == ["A", "B", "A"]
    assert asked == ["a", "b"]


def wiring(number, gpus=16):
    chance = random.Random(number)
    return Topology.of(list(range(gpus)), [(a, b, chance.randrange(1, 500)) for a in range(gpus) for b in range(a)])


STORES = {
    "tables by wiring": (
        sets.TABLES,
        lambda value: sum(one.nbytes for one in value) if isinstance(value, tuple) else value.nbytes,
    ),
    "topologies": (topology.WIRINGS, lambda value: value.pair_score.nbytes),
    "tables of pairs": (subsets.PAIR_TABLES, lambda value: value.nbytes),
    "answers on large nodes": (large_nodes.ANSWERS, lambda value: 8 * len(value.positions)),
}


def test_hostile_wirings_fill_no_store_beyond_its_bytes(monkeypatch):
    """No wiring is like another: what is kept stays under the store's bytes, by the real sizes too."""
    for store, _ in STORES.values():
        monkeypatch.setattr(store, "most_bytes", store.most_bytes // 32)
        store.clear()
    for number in range(24):
        some = wiring(number)
        for size in (2, 5):
            for within in (False, True):
                assert best_set(some, 0xFFFF, size, within_island=within) is not None
        best_scores([some], np.zeros(1, dtype=np.int32), np.array([0xFFFF]), 7, within_island=False)
        large = wiring(number, 40)
        for taken in range(8):
            assert best_set(large, (1 << 40) - 1 - (1 << taken), 2, within_island=False) is not None
    for name, (store, bytes_of) in STORES.items():
        real = sum(bytes_of(value) for value, _ in store._kept.values())
        assert 0 < real <= store.kept_bytes <= store.most_bytes, name
        assert store.kept_bytes == sum(weight for _, weight in store._kept.values()), name
        store.clear()


def test_no_other_cache_of_the_engine_is_bounded_by_entries():
    """Whoever adds a cache by entries to the engine says here how many bytes all its entries have."""
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(allocations.engine.__path__):
        kept = vars(importlib.import_module(f"allocations.engine.{module.name}"))
        found |= {name: value for name, value in kept.items() if hasattr(value, "cache_info")}
    assert set(found) == set(BY_NUMBER)
    assert sum(subsets.subsets_of(size, count).nbytes for size in range(17) for count in range(size + 1)) <= 320_000
    assert sum(found["span_table"](bits).nbytes for bits in range(14)) <= BY_NUMBER["span_table"]


def test_scores_of_a_fleet_are_bounded_by_its_nodes():
    """`SetScores` keeps two numbers a node for each size up to 16, in islands or not, and nothing for sizes that no
    node has.
    """
    scores = set_scores.SetScores((wiring(1),), np.zeros(50, dtype=np.int32))
    nodes, masks = np.arange(50), np.full(50, 0xFFFF)
    for size in range(1, 17):
        scores.scores(nodes, masks, size, within_island=False)
    scores.scores(nodes[:0], masks[:0], 17, within_island=False)
    assert len(scores.known) == 16
    assert sum(one.nbytes + other.nbytes for one, other in scores.known.values()) == 16 * 50 * 16
