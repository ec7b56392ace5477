"""Where a slot goes: a case for each rule of docs/inference.md, and for each known failure of other schedulers."""

import pytest

from tests.unit.allocations.scenario.slots_cases import (
    GI,
    answer,
    asking,
    gpus,
    model,
    placed,
    reasons,
    runner,
    running,
    slot,
    used,
)

PAIRS = [(0, 1, 4), (2, 3, 4)]


@pytest.mark.parametrize(
    ("nodes", "runners", "pods", "want"),
    [
        pytest.param(
            [gpus("a", 2), gpus("b", 1, memory="80Gi")],
            [runner("a", models=["m"]), runner("b")],
            [],
            {"new-1": ("a", [0])},
            id="a runner that has the model on disk before others",
        ),
        pytest.param(
            [gpus("a", 3)],
            [runner("a")],
            [running("p", "a", 0, "9Gi"), running("q", "a", 1, "1Gi"), running("r", "a", 2, "5Gi")],
            {"new-1": ("a", [1])},
            id="the GPU with the most free memory",
        ),
        pytest.param(
            [gpus("a", 2), gpus("b", 2)],
            [runner("a", slot("s1", "n", 0, "1Gi")), runner("b")],
            [],
            {"new-1": ("b", [0])},
            id="the runner with less memory in slots",
        ),
        pytest.param([gpus("b", 1), gpus("a", 2)], [runner("b"), runner("a")], [], {"new-1": ("a", [0])},
                     id="the runner's name, the minor"),
        pytest.param([gpus("a", 2, sick=[0])], [runner("a")], [], {"new-1": ("a", [1])}, id="healthy GPUs only"),
        pytest.param(
            [gpus("a", 1), gpus("b", 1)],
            [runner("a", runtimes=["vllm"]), runner("b")],
            [],
            {"new-1": ("b", [0])},
            id="runners that have the runtime",
        ),
        pytest.param(
            [gpus("a", 2, memory=["10Gi", "20Gi"])], [runner("a")], [], {"new-1": ("a", [1])},
            id="a GPU too small is passed over",
        ),
    ],
)  # fmt: skip
def test_one_gpu_with_room(nodes, runners, pods, want):
    """SLOT-4 option 1, in its order."""
    result = answer(nodes=nodes, models=[model("m"), model("n")], runners=runners, pods=pods, requests=["m"])
    assert placed(result) == want


def test_the_selector():
    """SLOT-4 runners whose node has the labels, those that it would have in a cluster included."""
    nodes = [gpus("a", 1, memory="80Gi"), gpus("b", 1, labels={"zone": "x"})]
    runners = [runner("a"), runner("b")]
    for selector, want in (
        ({"zone": "x"}, {"new-1": ("b", [0])}),
        ({"kubernetes.io/hostname": "b"}, {"new-1": ("b", [0])}),
        ({"zone": "y"}, {}),
    ):
        result = answer(nodes=nodes, models=[model("m", selector=selector)], runners=runners, requests=["m"])
        assert placed(result) == want
    assert reasons(result) == {"r1": "no runner with the runtime ollama has the labels zone=y"}


@pytest.mark.parametrize(
    ("nodes", "runners", "more", "want", "memory"),
    [
        pytest.param(
            [gpus("a", 4)], [runner("a")], {"memory": "60Gi"}, {"new-1": ("a", [0, 1])}, [30, 30], id="the fewest GPUs"
        ),
        pytest.param(
            [gpus("a", 4)], [runner("a")], {"memory": "60Gi", "gpuCounts": [4, 1]}, {"new-1": ("a", [0, 1, 2, 3])},
            [15] * 4, id="numbers that the model allows",
        ),
        pytest.param(
            [gpus("a", 4)], [runner("a")], {"memory": "60Gi", "heads": 9, "gpuCounts": [2, 3]},
            {"new-1": ("a", [0, 1, 2])}, [20] * 3, id="numbers that divide the heads",
        ),
        pytest.param(
            [gpus("a", 4, links=PAIRS), gpus("b", 4, memory="80Gi")],
            [runner("a"), runner("b")],
            {"gpuCounts": [2]},
            {"new-1": ("a", [0, 1])},
            [7.5, 7.5],
            id="the highest pair score before the most free",
        ),
        pytest.param(
            [gpus("a", 4, links=PAIRS), gpus("b", 4)],
            [runner("a"), runner("b", models=["m"])],
            {"gpuCounts": [2]},
            {"new-1": ("b", [0, 1])},
            [7.5, 7.5],
            id="the model on disk before the highest pair score",
        ),
        pytest.param(
            [gpus("a", 4, links=PAIRS, memory=["30Gi", "30Gi", "30Gi", "31Gi"])],
            [runner("a")],
            {"gpuCounts": [2]},
            {"new-1": ("a", [2, 3])},
            [7.5, 7.5],
            id="then the most free memory in sum",
        ),
        pytest.param(
            [gpus("a", 3, memory=["40Gi", "30Gi", "20Gi"])],
            [runner("a")],
            {"memory": None, "memoryPerGpu": {"3": ["15Gi", "25Gi", "35Gi"]}, "gpuCounts": [3]},
            {"new-1": ("a", [0, 1, 2])},
            [35, 25, 15],
            id="the largest amount goes to the GPU with the most free",
        ),
        pytest.param(
            [gpus("a", 2, memory=["40Gi", "20Gi"])],
            [runner("a")],
            {"memory": "50Gi", "memoryPerGpu": {2: ["15Gi", "35Gi"]}},
            {"new-1": ("a", [0, 1])},
            [35, 15],
            id="true amounts, never the sum divided",
        ),
    ],
)  # fmt: skip
def test_several_gpus_with_room(nodes, runners, more, want, memory):
    """SLOT-4 option 3, in its order."""
    result = answer(nodes=nodes, models=[model("m", **more)], runners=runners, requests=["m"])
    assert placed(result) == want
    assert [size / GI for size in result["slots"][0]["memory"]] == memory


def test_one_gpu_with_evictions_before_several_with_room():
    """SLOT-4, SLOT-5 the options in their order."""
    result = answer(
        nodes=[gpus("a", 2)],
        models=[model("m", memory="30Gi"), model("n")],
        runners=[runner("a", slot("s1", "n", 0, idle=300), slot("s2", "n", 1, idle=300))],
        requests=["m"],
    )
    assert placed(result) == {"new-1": ("a", [0], "s1")}
    without = answer(
        nodes=[gpus("a", 2)],
        models=[model("m", memory="30Gi"), model("n")],
        runners=[runner("a", slot("s1", "n", 0, idle=299), slot("s2", "n", 1, idle=299))],
        requests=["m"],
    )
    assert placed(without) == {"new-1": ("a", [0, 1])}


def test_a_full_first_gpu_hides_nobody():
    """SLOT-4, SLOT-5 Helix: GPU 0 is full and can't be freed, and 1 and 2 serve: with room, and with evictions."""
    busy = slot("s0", "n", 0, "40Gi", active=1)
    for slots, want in (
        ([busy], {"new-1": ("a", [1, 2])}),
        ([busy, slot("s1", "n", 1, "20Gi", idle=400)], {"new-1": ("a", [1, 2], "s1")}),
    ):
        result = answer(
            nodes=[gpus("a", 3)],
            models=[model("m", memory="60Gi", gpuCounts=[2]), model("n")],
            runners=[runner("a", *slots)],
            requests=["m"],
        )
        assert placed(result) == want


def test_no_second_slot_on_the_next_runner():
    """SLOT-7 Helix: exactly one slot for a need, however many runners have room."""
    nodes = [gpus(name, 2) for name in "abcd"]
    result = answer(nodes=nodes, models=[model("m")], runners=[runner(name) for name in "abcd"], requests=["m"] * 3)
    assert placed(result) == {"new-1": ("a", [0])}


def test_memory_that_is_not_even():
    """SLOT-4 Helix: each GPU is charged what the model takes of it, so the next slot finds the rest."""
    result = answer(
        nodes=[gpus("a", 2)],
        models=[model("m", memory=None, memoryPerGpu={2: ["35Gi", "10Gi"]}, gpuCounts=[2]), model("n", memory="30Gi")],
        runners=[runner("a")],
        requests=["m", "n"],
    )
    assert placed(result) == {"new-1": ("a", [0, 1]), "new-2": ("a", [1])}
    assert used(result) == {"a": [35, 40]}


def test_claims_of_the_round_come_off():
    """SLOT-1, SLOT-4 slots of one round never have the same memory."""
    result = answer(
        nodes=[gpus("a", 2)], models=[model("m", parallel=1, gpuCounts=[1])], runners=[runner("a")], requests=["m"] * 6
    )
    assert used(result) == {"a": [30, 30]}
    assert len(reasons(result)) == 2


# memory


def test_vllm_claims_its_share():
    """SLOT-6 the share of that GPU, rounded up to 0.01; the claim is size times share, rounded up to a byte."""
    result = answer(
        nodes=[gpus("a", 1, memory="79Gi")],
        models=[model("m", "vllm", "30Gi")],
        runners=[runner("a")],
        requests=["m"],
    )
    size = 79 * GI
    assert result["slots"][0]["memory"] == [-(-size * 38 // 100)]
    assert used(result) == {"a": [-(-size * 38 // 100) / GI]}


@pytest.mark.parametrize(
    ("free", "want"),
    [
        pytest.param(32_000_000_001, {}, id="room for the memory and not for the share"),
        pytest.param(32_400_000_000, {"new-1": ("a", [0])}, id="room for the share"),
    ],
)
def test_vllm_needs_its_share_free(free, want):
    """SLOT-6 vLLM starts only where its share is free."""
    size = 40_000_000_000
    result = answer(
        nodes=[gpus("a", 1, memory=[str(size)])],
        models=[model("m", "vllm", "32000000001")],
        runners=[runner("a")],
        pods=[running("p", "a", 0, str(size - free))],
        requests=["m"],
    )
    assert placed(result) == want
    if not want:
        assert reasons(result) == {"r1": "no GPU has 30900Mi free; best a/0 with 30517Mi"}


def test_vllm_on_gpus_of_several_sizes():
    """SLOT-6 on several GPUs each has the share of its own size."""
    result = answer(
        nodes=[gpus("a", 2, memory=["40Gi", "77Gi"])],
        models=[model("m", "vllm", "60Gi", gpuCounts=[2])],
        runners=[runner("a")],
        requests=["m"],
    )
    assert result["slots"][0]["memory"] == [40 * GI * 75 // 100, -(-77 * GI * 39 // 100)]


def test_memory_is_divided_and_rounded_up():
    """SLOT-6 a given memory is divided where memoryPerGpu has no entry; an entry counts as it is."""
    odd = answer(
        nodes=[gpus("a", 2)], models=[model("m", memory="60000000001", gpuCounts=[2])], runners=[runner("a")],
        requests=["m"],
    )  # fmt: skip
    assert odd["slots"][0]["memory"] == [30_000_000_001, 30_000_000_001]


# what is measured


def held(measured, *slots, pods=(), memory="30Gi"):
    """Where a model of so much goes on one GPU of 40Gi."""
    return answer(
        nodes=[gpus("a", 1)],
        models=[model("m", memory=memory, gpuCounts=[1]), model("n")],
        runners=[runner("a", *slots, measured={"0": measured})],
        pods=pods,
        requests=["m"],
    )


@pytest.mark.parametrize(
    ("measured", "slots", "pods", "want_free"),
    [
        pytest.param("12Gi", [], [], 28, id="what nobody claims is off"),
        pytest.param("14Gi", [slot("s1", "n")], [], 25, id="less than a slot claims: the claim counts"),
        pytest.param("18Gi", [slot("s1", "n")], [], 22, id="more than a slot claims: what is beyond counts too"),
        pytest.param("18Gi", [], [running("p", "a", 0, "10Gi")], 22, id="beyond the claims of running pods"),
        pytest.param("50Gi", [], [], 0, id="never below 0"),
        pytest.param("14Gi", [slot("s1", "n", state="draining")], [], 25, id="a draining slot holds its memory"),
        pytest.param("0", [slot("s1", "n", state="failed")], [], 25, id="a failed slot holds its memory"),
        pytest.param("9Gi", [slot("s1", "n", state="stopped")], [], 31, id="a stopped slot holds none"),
        pytest.param("9Gi", [], [asking("q", **{"koordinator.sh/gpu-memory": "5Gi"})], 26,
                     id="a pod that is served first is no holder of what is measured"),
    ],
)  # fmt: skip
def test_the_larger_of_claimed_and_measured(measured, slots, pods, want_free):
    """SLOT-8 size, less the ledger, less what is measured beyond the claims of known holders."""
    fits = held(measured, *slots, pods=pods, memory=f"{want_free}Gi") if want_free else None
    assert fits is None or placed(fits) == {"new-1": ("a", [0])}
    result = held(measured, *slots, pods=pods, memory=f"{want_free + 1}Gi")
    assert reasons(result) == {
        "r1": f"no GPU has {want_free + 1}Gi free; best a/0 with {f'{want_free}Gi' if want_free else 0}"
    }


def test_what_was_measured_stays_when_a_slot_goes():
    """SLOT-8 an evicted claim comes back, and what strangers use does not; an overfull GPU is no free one."""
    slots = [slot("s1", "n", idle=900)]
    assert placed(held("25Gi", *slots)) == {"new-1": ("a", [0], "s1")}
    assert reasons(held("26Gi", *slots)) == {"r1": "no GPU has 30Gi free; best a/0 with 14Gi"}


# pods


def test_pods_are_served_first_and_see_what_slots_hold():
    """SLOT-1 a whole GPU is none that a slot is on; pods evict no slots, and do not see what is measured."""
    result = answer(
        nodes=[gpus("a", 3)],
        models=[model("m", memory="30Gi", gpuCounts=[1])],
        runners=[runner("a", slot("s1", "m", 0, "15Gi", idle=9_000), measured={1: "40Gi"})],
        pods=[asking("one", **{"nvidia.com/gpu": 1}), asking("two", **{"nvidia.com/gpu": 1}),
              asking("three", **{"nvidia.com/gpu": 1}), asking("part", **{"koordinator.sh/gpu-memory": "20Gi"})],
        requests=["m"] * 5,
    )  # fmt: skip
    decisions = {one["pod"]: [device["minor"] for device in one["devices"]] for one in result["decisions"]}
    assert decisions == {"default/one": [1], "default/two": [2], "default/three": [], "default/part": [0]}
    assert used(result) == {"a": [35, 40, 40]}
    assert {one["core_used"] for one in result["fleet"]["a"]} == {0, 100}


def test_a_slot_leaves_the_core_of_a_gpu_alone():
    """SLOT-1 a slot claims memory and core 0: a pod with all of the core and half of the memory may be beside it."""
    result = answer(
        nodes=[gpus("a", 1)],
        models=[model("m")],
        runners=[runner("a")],
        pods=[asking("p", **{"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory": "20Gi"})],
        requests=["m"],
    )
    assert result["decisions"][0]["node"] == "a"
    assert [(one["core_used"], one["memory_used"]) for one in result["fleet"]["a"]] == [(100, 35 * GI)]


def test_the_fleet_as_it_will_be():
    """SLOT-1, SLOT-5 evicted slots gone, new ones there."""
    result = answer(
        nodes=[gpus("a", 2)],
        models=[model("m", memory="30Gi"), model("n", memory="20Gi")],
        runners=[runner("a", slot("s1", "n", 0, "20Gi", idle=900), slot("s2", "n", 1, "20Gi", idle=100))],
        requests=["m"],
    )
    assert placed(result) == {"new-1": ("a", [0], "s1")}
    assert used(result) == {"a": [30, 20]}


def test_mig_and_other_devices():
    """SLOT-4 only GPUs: no instance of one, no GPU in MIG mode, no NIC."""
    node = gpus("a", 1)
    node["devices"][0]["mig"] = True
    node["devices"] += [
        {"minor": 0, "type": "rdma", "uuid": "NIC-a-0"},
        {
            "minor": 10,
            "uuid": "MIG-a-0",
            "model": "H100",
            "memory": "40Gi",
            "parent": "GPU-a-0",
            "profile": "3g.40gb",
        },
    ]
    result = answer(nodes=[node], models=[model("m")], runners=[runner("a")], requests=["m"])
    assert reasons(result) == {"r1": "no GPU of these runners is healthy"}


def test_a_node_of_more_than_16_gpus():
    """SLOT-4 the engine's bounded search chooses among those with room."""
    links = [(0, 1, 4), (18, 19, 18)]
    result = answer(
        nodes=[gpus("a", 20, links=links)],
        models=[model("m", gpuCounts=[2]), model("n", memory=None, memoryPerGpu={2: ["40Gi", "1Gi"]}, gpuCounts=[2])],
        runners=[runner("a", slot("s1", "m", [19], ["35Gi"], active=4))],
        requests=["m", "n"],
    )
    assert placed(result)["new-1"] == ("a", [0, 1])
    assert placed(result)["new-2"][0] == "a"
    assert max(used(result)["a"]) <= 40
