"""Snapshots from other snapshots."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from allocations.engine.build import build_snapshot
from allocations.engine.patch import patch, replace_nodes, take, with_freed, with_problems
from allocations.engine.plan import plan
from tests.builders import GI, device_id, fleet, nic, node, pairs, whole

COLUMNS = [
    "node_mode",
    "node_start",
    "device_id",
    "device_node",
    "device_type",
    "device_model",
    "device_minor",
    "device_numa",
    "device_pcie",
    "device_island",
    "device_healthy",
    "memory_total",
    "core_used",
    "memory_used",
]


def same(first, second):
    names = ("node_names", "node_problem", "node_topology", "types", "models", "device_uuid")
    return all(getattr(first, name) == getattr(second, name) for name in names) and all(
        np.array_equal(getattr(first, name), getattr(second, name))
        and getattr(first, name).dtype == getattr(second, name).dtype
        for name in COLUMNS
    )


def test_patch_changes_what_it_names_and_shares_the_rest():
    picture = fleet(node("a", gpus=2), node("b", gpus=2))
    picture.usage_of(0)
    after = patch(picture, [(device_id("b", "gpu", 1), 100, 80 * GI, True)])
    assert after.core_used.tolist() == [0, 0, 0, 100]
    assert picture.core_used.tolist() == [0, 0, 0, 0]
    assert after.index is picture.index
    assert after.usage[0].free_count.tolist() == [2, 1]
    assert patch(picture, []) is picture


def test_what_several_take_of_one_device_adds_up():
    picture = fleet(node("a", gpus=2))
    first, second = (device_id("a", "gpu", minor) for minor in range(2))
    after = take(picture, [(first, 30, 10 * GI), (second, 10, GI), (first, 20, 5 * GI)])
    assert after.core_used.tolist() == [50, 10]
    assert after.memory_used.tolist() == [15 * GI, GI]
    back = with_freed(after, [(first, 30, 10 * GI), (first, 20, 5 * GI), (second, 90, 2 * GI), (999_999, 1, 1)], ())
    assert back.core_used.tolist() == [0, 0], "never below nothing; what the picture does not have is passed over"
    assert back.memory_used.tolist() == [0, 0]


def test_devices_that_it_does_not_have_are_ignored():
    picture = fleet(node("a", gpus=1))
    assert patch(picture, [(999_999, 50, GI, True)]) is picture
    assert take(picture, [(999_999, 50, GI)]) is picture


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_usage_carried_over_equals_usage_worked_out(data):
    picture = fleet(node("a", gpus=4, others=[nic("a", 0)]), node("b"), node("c", gpus=18, others=[nic("c", 0)]))
    for code in picture.index.views:
        picture.usage_of(code)
    ids = st.sampled_from(picture.device_id.tolist())
    for _ in range(3):
        uses = data.draw(st.lists(st.tuples(ids, st.integers(0, 100), st.integers(0, 3), st.booleans()), max_size=6))
        picture = patch(picture, uses)
    for code, view in picture.index.views.items():
        fresh = type(picture.usage[code]).of(view, picture.use)
        for name in ("free_count", "free_mask", "memory_fraction", "core_fraction"):
            assert np.array_equal(getattr(picture.usage[code], name), getattr(fresh, name))


def test_replace_nodes_equals_building_anew():
    first = [node("a", gpus=2), node("b", gpus=4, links=pairs(4)), node("c", gpus=1, others=[nic("c", 0)])]
    changed = node("b", gpus=2, model="A100", problem="node is not ready")
    added = node("d", others=[nic("d", 0, kind="fpga")])
    after = replace_nodes(build_snapshot(first), [changed, added])
    assert same(after, build_snapshot([first[0], changed, first[2], added]))


def test_replacing_a_node_by_one_built_alike_changes_only_columns():
    picture = fleet(node("a", gpus=2, links=pairs(2)), node("b", gpus=2, others=[nic("b", 0)]))
    picture.usage_of(0)
    changed = node("a", gpus=2, links=pairs(2), sick=[1], taken=[0], problem="node is not ready")
    after = replace_nodes(picture, [changed])
    assert same(after, fleet(changed, node("b", gpus=2, others=[nic("b", 0)])))
    assert after.index.views is picture.index.views
    assert after.usage[0].free_count.tolist() == [0, 2]
    assert plan(after, whole()).node == "b"


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_replacing_always_equals_building_anew(data):
    def draw_node(name):
        return node(
            name,
            gpus=data.draw(st.integers(0, 3)),
            links=data.draw(st.sampled_from([(), pairs(2)])),
            model=data.draw(st.sampled_from(["H100", "A100"])),
            sick=data.draw(st.sets(st.integers(0, 2), max_size=1)),
            problem=data.draw(st.sampled_from(["", "node is not ready"])),
            mode=data.draw(st.integers(0, 1)),
            others=[nic(name, 0, kind=kind) for kind in data.draw(st.sets(st.sampled_from(["rdma", "fpga", "dpu"])))],
        )

    names = st.sets(st.sampled_from("abcde"))
    there = {name: draw_node(name) for name in sorted(data.draw(names))}
    picture = build_snapshot(there.values())
    for _ in range(2):
        new = {name: draw_node(name) for name in sorted(data.draw(names))}
        there |= new
        picture = replace_nodes(picture, new.values())
        anew = build_snapshot(there.values())
        assert same(picture, anew)
        assert plan(picture, whole()).summary == plan(anew, whole()).summary


def test_a_problem_comes_and_goes():
    picture = fleet(node("a", gpus=2), node("b", gpus=2))
    closed = with_problems(picture, {"a": "node is not ready", "gone": "x"})
    assert closed.node_problem == ("node is not ready", "")
    assert plan(closed, whole()).node == "b"
    assert plan(with_problems(closed, {"a": ""}), whole()).node == "a"
    assert plan(picture, whole()).node == "a"
