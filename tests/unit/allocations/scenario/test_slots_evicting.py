"""Eviction of slots: a case for each rule of docs/inference.md."""

from typing import Any

import pytest

from tests.unit.allocations.scenario.slots_cases import answer, gpus, model, placed, reasons, runner, served, slot, used


def evicted(*slots, nodes=(("a", 1),), memory="30Gi", models=(), requests=("m",), **more):
    """Where model m goes among these slots of model n. Slots by node, the first one's where none is said."""
    by_node: dict[Any, Any] = {name: [] for name, _ in nodes}
    for one in slots:
        by_node[one.pop("node", nodes[0][0])].append(one)
    result = answer(
        nodes=[gpus(name, count) for name, count in nodes],
        models=[model("m", memory=memory, **{"gpuCounts": [1], **more}), model("n"), *models],
        runners=[runner(name, *own) for name, own in by_node.items()],
        requests=requests,
    )
    return placed(result) or reasons(result)


NO_ROOM = {"r1": "no GPU has 30Gi free; best a/0 with 25Gi"}


@pytest.mark.parametrize(
    ("one", "want"),
    [
        pytest.param({"idle": 300}, {"new-1": ("a", [0], "s1")}, id="idle for as long as the model says"),
        pytest.param({"idle": 299}, NO_ROOM, id="idle for less"),
        pytest.param({"idle": 900, "active": 1}, NO_ROOM, id="with a request"),
        pytest.param({"idle": 900, "state": "starting"}, NO_ROOM, id="starting"),
        pytest.param({"idle": 900, "state": "planned"}, NO_ROOM, id="planned"),
        pytest.param({"idle": 900, "state": "draining"}, NO_ROOM, id="draining: it goes already"),
        pytest.param({"idle": 900, "state": "failed"}, NO_ROOM, id="failed: its memory counts"),
    ],
)
def test_who_may_go(one, want):
    """SLOT-5 only slots that are ready, without a request, and idle past their model's time."""
    assert evicted(slot("s1", "n", **one)) == want


def test_a_slot_that_serves_a_request_of_this_round_stays():
    """SLOT-5 a request came for it just now."""
    result = answer(
        nodes=[gpus("a", 1)],
        models=[model("m", memory="30Gi", gpuCounts=[1]), model("n")],
        runners=[runner("a", slot("s1", "n", idle=900))],
        requests=[{"model": "m", "priority": 5}, "n"],
    )
    assert served(result) == {"r1": None, "r2": "s1"}


@pytest.mark.parametrize(
    ("keep", "slots", "want"),
    [
        pytest.param(1, [slot("s1", "k", idle=900)], NO_ROOM, id="the last one that is kept stays"),
        pytest.param(
            1,
            [slot("s1", "k", idle=900), slot("s2", "k", 1, idle=10)],
            {"new-1": ("a", [0], "s1")},
            id="above what is kept one may go",
        ),
        pytest.param(
            1,
            [slot("s1", "k", idle=900), slot("s2", "k", 1, state="starting")],
            {"new-1": ("a", [0], "s1")},
            id="one that is starting counts as kept",
        ),
        pytest.param(
            1,
            [slot("s1", "k", idle=900), slot("s2", "k", 1, state="draining")],
            NO_ROOM,
            id="one that drains does not",
        ),
        pytest.param(
            1,
            [slot("s1", "k", idle=900), slot("s2", "k", 1, lora="l", idle=10)],
            NO_ROOM,
            id="one with a LoRA does not count",
        ),
        pytest.param(
            1, [slot("s1", "k", idle=900, lora="l")], {"new-1": ("a", [0], "s1")}, id="one with a LoRA is not kept"
        ),
    ],
)
def test_pinned_models_stay(keep, slots, want):
    """SLOT-5 only what is above keepWarm may go."""
    nodes = [gpus("a", 1), gpus("b", 1, memory="16Gi")]
    by_gpu: dict[Any, Any] = {0: [], 1: []}
    for one in slots:
        (minor,) = one["gpus"]
        by_gpu[minor].append({**one, "gpus": [0]})
    result = answer(
        nodes=nodes,
        models=[model("m", memory="30Gi", gpuCounts=[1]), model("k", keepWarm=keep)],
        runners=[runner("a", *by_gpu[0]), runner("b", *by_gpu[1], runtimes=["vllm"])],
        requests=["m"],
    )
    assert (placed(result) or reasons(result)) == want


def test_two_of_a_kept_model_do_not_go_together():
    """SLOT-5 each could go alone; both would leave less than keepWarm, so the need takes others or waits."""
    kept = [slot("s1", "k", 0, "10Gi", idle=900), slot("s2", "k", 0, "10Gi", idle=800)]
    others = [slot("s3", "n", 0, "10Gi", idle=400)]
    models = [model("k", keepWarm=1)]
    assert evicted(*kept, *others, models=models) == {"new-1": ("a", [0], "s1", "s3")}
    assert evicted(*kept, memory="35Gi", models=models) == {"r1": "no GPU has 35Gi free; best a/0 with 20Gi"}


@pytest.mark.parametrize(
    ("slots", "want"),
    [
        pytest.param(
            [slot("s1", "n", 0, "15Gi", idle=900), slot("s2", "n", 0, "15Gi", idle=800), slot("s3", "n", 1, "30Gi",
                                                                                             idle=400)],
            {"new-1": ("a", [1], "s3")},
            id="fewest slots before idle longest",
        ),
        pytest.param(
            [slot("s1", "n", 0, "15Gi", idle=500), slot("s2", "n", 1, "15Gi", idle=600)],
            {"new-1": ("a", [1], "s2")},
            id="then those idle longest",
        ),
        pytest.param(
            [slot("s1", "n", 0, "15Gi", idle=900), slot("s2", "n", 0, "15Gi", idle=400),
             slot("s3", "n", 1, "15Gi", idle=800), slot("s4", "n", 1, "15Gi", idle=800)],
            {"new-1": ("a", [0], "s1", "s2")},
            id="compared oldest first",
        ),
        pytest.param(
            [slot("s1", "n", 0, "20Gi", idle=500), slot("s2", "n", 1, "15Gi", idle=500)],
            {"new-1": ("a", [1], "s2")},
            id="then as with room: the most free memory",
        ),
        pytest.param(
            [slot("s1", "n", 0, "5Gi", idle=900), slot("s2", "n", 0, "15Gi", idle=400), slot("s3", "n", 1, "40Gi",
                                                                                            active=1)],
            {"new-1": ("a", [0], "s2")},
            id="whoever need not go stays, however old",
        ),
    ],
)  # fmt: skip
def test_one_gpu_with_evictions(slots, want):
    """SLOT-4, SLOT-5 option 2, in its order."""
    assert evicted(*slots, nodes=(("a", 2),)) == want


def test_the_model_on_disk_among_equals():
    """SLOT-4, SLOT-5 then as in option 1: the runner that has the model on disk."""
    result = answer(
        nodes=[gpus("a", 1), gpus("b", 1)],
        models=[model("m", memory="30Gi"), model("n")],
        runners=[runner("a", slot("s1", "n", idle=400)), runner("b", slot("s2", "n", idle=400), models=["m"])],
        requests=["m"],
    )
    assert placed(result) == {"new-1": ("b", [0], "s2")}


def test_nothing_goes_where_it_would_not_suffice():
    """SLOT-5 Helix evicts before it knows that it fits: here all stay."""
    slots = [slot("s1", "n", 0, "10Gi", idle=900), slot("s2", "n", 0, "15Gi", active=1)]
    assert evicted(*slots) == {"r1": "no GPU has 30Gi free; best a/0 with 15Gi"}


def test_no_slot_counts_twice():
    """SLOT-5 Helix may count a slot twice: what one need evicts is gone for the next."""
    slots = [slot("s1", "n", 0, "30Gi", idle=900)]
    assert evicted(*slots, requests=["m"] * 5, parallel=4) == {"new-1": ("a", [0], "s1")}


def test_what_an_eviction_leaves_over():
    """SLOT-5 a later need of the round may have it, and evicts nobody for it."""
    result = answer(
        nodes=[gpus("a", 1)],
        models=[model("m", memory="20Gi", gpuCounts=[1]), model("o", memory="12Gi"), model("n")],
        runners=[runner("a", slot("s1", "n", 0, "35Gi", idle=900))],
        requests=["m", "o"],
    )
    assert placed(result) == {"new-1": ("a", [0], "s1"), "new-2": ("a", [0])}
    assert used(result) == {"a": [32]}


def test_evicting_for_what_is_kept_warm():
    """SLOT-5 with the same options; and a model evicts nothing in a circle."""
    result = answer(
        nodes=[gpus("a", 1)],
        models=[model("k", memory="30Gi", keepWarm=1), model("n", memory="30Gi", keepWarm=1)],
        runners=[runner("a", slot("s1", "n", 0, "30Gi", idle=900))],
    )
    assert placed(result) == {}
    assert result["keep_warm"] == [{"model": "k", "missing": 1, "reason": "no GPU has 30Gi free; best a/0 with 10Gi"}]
    free_to_go = answer(
        nodes=[gpus("a", 1)],
        models=[model("k", memory="30Gi", keepWarm=1), model("n", memory="30Gi")],
        runners=[runner("a", slot("s1", "n", 0, "30Gi", idle=900))],
    )
    assert placed(free_to_go) == {"new-1": ("a", [0], "s1")}


def test_two_models_on_one_gpu_do_not_chase_each_other():
    """SLOT-5 Ollama #18282 evicts and reloads in a loop: here each has its time, and the other waits with a reason."""
    holder, moves = "n", 0
    idle = 300
    for turn in range(12):  # a minute each
        asked = "m" if turn % 2 else "n"
        result = answer(
            nodes=[gpus("a", 1)],
            models=[model("m", memory="30Gi", gpuCounts=[1]), model("n", memory="30Gi", gpuCounts=[1])],
            runners=[runner("a", slot("s", holder, 0, "30Gi", idle=idle))],
            requests=[asked],
        )
        if placed(result):
            holder, moves = asked, moves + 1
        idle = 0 if served(result)["r1"] else idle + 60
        assert served(result)["r1"] or reasons(result) == {"r1": "no GPU has 30Gi free; best a/0 with 10Gi"}
    assert moves == 0  # n is asked for every other minute, so it is never idle for five


PAIRS = [(0, 1, 4), (2, 3, 4)]


def several(*slots, count=2, memory="60Gi", gpu_count=4, links=(), **more):
    """Where a model of several GPUs goes among slots of n."""
    result = answer(
        nodes=[gpus("a", gpu_count, links=links)],
        models=[model("m", memory=memory, gpuCounts=[count] if isinstance(count, int) else count, **more), model("n")],
        runners=[runner("a", *slots)],
        requests=["m"],
    )
    return placed(result) or reasons(result)


@pytest.mark.parametrize(
    ("slots", "want"),
    [
        pytest.param(
            [slot("s1", "n", 0, "20Gi", idle=900), slot("s2", "n", 1, "20Gi", idle=900),
             slot("s3", "n", [2, 3], "20Gi", idle=301)],
            ("a", [2, 3], "s3"),
            id="fewest evicted: one slot on both GPUs before two older ones",
        ),
        pytest.param(
            [slot(f"s{minor}", "n", minor, "20Gi", idle=idle) for minor, idle in enumerate((500, 400, 900, 400))],
            ("a", [0, 2], "s2", "s0"),
            id="oldest idle, compared oldest first",
        ),
        pytest.param(
            [slot(f"s{minor}", "n", minor, "20Gi", idle=400) for minor in range(4)],
            ("a", [0, 1], "s0", "s1"),
            id="then the highest pair score, and the lower minors",
        ),
        pytest.param(
            [slot("s0", "n", 0, "20Gi", idle=400), slot("s1", "n", 1, "25Gi", idle=400),
             slot("s2", "n", 2, "20Gi", idle=400), slot("s3", "n", 3, "20Gi", idle=400)],
            ("a", [2, 3], "s2", "s3"),
            id="ties by free memory before evictions",
        ),
        pytest.param(
            [slot("s0", "n", 0, "40Gi", active=1), slot("s1", "n", 1, "20Gi", idle=400),
             slot("s2", "n", 2, "5Gi", idle=900), slot("s3", "n", 3, "40Gi", active=1)],
            ("a", [1, 2], "s1"),
            id="whoever need not go stays, however old",
        ),
    ],
)  # fmt: skip
def test_several_gpus_with_evictions(slots, want):
    """SLOT-4, SLOT-5 option 4, in its order."""
    assert several(*slots, links=PAIRS) == {"new-1": want}


def test_fewest_gpus_among_equal_evictions():
    """SLOT-4, SLOT-5 fewest evicted, then oldest idle, then fewest GPUs."""
    shared = slot("s1", "n", [0, 1, 2, 3], "25Gi", idle=900)
    assert several(shared, count=[4, 2], memory="64Gi") == {"new-1": ("a", [0, 1], "s1")}
    # on four GPUs one eviction is enough, on two it takes two
    apart = [slot(f"s{minor}", "n", minor, "25Gi", idle=900 - minor) for minor in range(4)]
    taken = slot("s4", "n", 0, "5Gi", active=1)
    assert several(*apart, taken, count=[2, 4], memory="52Gi") == {"new-1": ("a", [0, 1, 2, 3], "s0")}


def test_several_gpus_with_evictions_between_runners():
    """SLOT-4, SLOT-5 fewest GPUs before the model on disk; and the most free memory before evictions."""
    busy = [slot(f"b{minor}", "n", minor, "25Gi", active=1) for minor in range(4)]
    fewest = answer(
        nodes=[gpus("a", 4), gpus("b", 2)],
        models=[model("m", memory="52Gi", gpuCounts=[2, 4]), model("n")],
        runners=[
            runner("a", *busy, slot("s1", "n", 0, "14Gi", idle=900), models=["m"]),
            runner("b", slot("s2", "n", 0, "20Gi", idle=900)),
        ],
        requests=["m"],
    )
    assert placed(fewest) == {"new-1": ("b", [0, 1], "s2")}
    most_free = answer(
        nodes=[gpus("a", 2), gpus("b", 2)],
        models=[model("m", memory="60Gi", gpuCounts=[2]), model("n")],
        runners=[runner("a", slot("s1", "n", 0, "25Gi", idle=900)), runner("b", slot("s2", "n", 0, "20Gi", idle=900))],
        requests=["m"],
    )
    assert placed(most_free) == {"new-1": ("b", [0, 1], "s2")}


def test_true_amounts_after_evictions():
    """SLOT-4, SLOT-5 the largest amount goes to the GPU with the most free once they have gone."""
    result = answer(
        nodes=[gpus("a", 2)],
        models=[model("m", memory=None, memoryPerGpu={2: ["12Gi", "35Gi"]}, gpuCounts=[2]), model("n")],
        runners=[runner("a", slot("s0", "n", 0, "20Gi", active=1), slot("s1", "n", 1, "30Gi", idle=900))],
        requests=["m"],
    )
    assert placed(result) == {"new-1": ("a", [0, 1], "s1")}
    assert [size >> 30 for size in result["slots"][0]["memory"]] == [12, 35]


def test_very_many_slots():
    """SLOT-5 where sets are too many to compare, those that need not go are taken off: enough go, and none in vain."""
    crowd = [slot(f"s{number:02}", "n", number % 2, "1Gi", idle=400 + number) for number in range(60)]
    (new,) = several(*crowd, gpu_count=2, memory="60Gi").values()
    assert len(new) - 2 == 40
    (alone,) = evicted(*[slot(f"s{number:02}", "n", 0, "1Gi", idle=400 + number) for number in range(36)]).values()
    assert sorted(alone[2:]) == [f"s{number:02}" for number in range(10, 36)]
