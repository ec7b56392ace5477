"""Which slot serves a request, and how many are planned: a case for each rule of docs/inference.md."""

import pytest

from tests.unit.allocations.scenario.slots_cases import answer, gpus, model, placed, reasons, runner, served, slot

ROOMY = [gpus("n1", 4, memory="80Gi")]


def lora(model, name="l", **more):
    return {"model": model, "lora": name, **more}


@pytest.mark.parametrize(
    ("models", "slots", "requests", "want"),
    [
        pytest.param(
            [model("m")], [slot("s1", "m")], ["m"], {"r1": "s1"}, id="a ready slot of the model serves"
        ),
        pytest.param(
            [model("m"), model("n")], [slot("s1", "n")], ["m"], {"r1": "new-1"}, id="one of another model does not"
        ),
        pytest.param(
            [model("m")], [slot("s1", "m", lora="x")], ["m"], {"r1": "new-1"}, id="one with a LoRA serves no other"
        ),
        pytest.param(
            [model("m")],
            [slot("s1", "m"), slot("s2", "m", lora="l")],
            [lora("m"), "m"],
            {"r1": "s2", "r2": "s1"},
            id="each LoRA has its own",
        ),
        pytest.param(
            [model("m", parallel=3)],
            [slot("s1", "m", active=1), slot("s2", "m", 1, active=2), slot("s3", "m", 2)],
            ["m"] * 4,
            {"r1": "s2", "r2": "s1", "r3": "s1", "r4": "s3"},
            id="the busiest first, so that others fall idle",
        ),
        pytest.param(
            [model("m", parallel=3)],
            [slot("s1", "m", active=1, idle=9), slot("s2", "m", 1, active=1, idle=2)],
            ["m"],
            {"r1": "s2"},
            id="of those equally busy the one used last",
        ),
        pytest.param(
            [model("m", parallel=3)],
            [slot("s2", "m", idle=2), slot("s1", "m", 1, idle=2)],
            ["m"],
            {"r1": "s1"},
            id="then by id",
        ),
        pytest.param(
            [model("m", parallel=1)],
            [slot("s1", "m")],
            [{"model": "m"}, {"model": "m", "priority": 5}, {"model": "m"}],
            {"r1": "new-1", "r2": "s1", "r3": "new-2"},
            id="higher priority first, then arrival",
        ),
        pytest.param(
            [model("m", parallel=2)],
            [slot("s1", "m", active=2)],
            ["m"],
            {"r1": "new-1"},
            id="a full slot takes no more",
        ),
        pytest.param(
            [model("m", parallel=2)], [], ["m"] * 5, {"r1": "new-1", "r2": "new-1", "r3": "new-2", "r4": "new-2",
                                                      "r5": "new-3"},
            id="requests divided by parallel, rounded up",
        ),
        pytest.param(
            [model("m", parallel=2)],
            [slot("s1", "m", state="starting")],
            ["m", "m"],
            {"r1": "s1", "r2": "s1"},
            id="a starting slot covers requests: never one more",
        ),
        pytest.param(
            [model("m", parallel=2)],
            [slot("s1", "m", state="planned", active=1)],
            ["m", "m"],
            {"r1": "s1", "r2": "new-1"},
            id="a planned slot counts as starting, less its load",
        ),
        pytest.param(
            [model("m", parallel=2)],
            [slot("s1", "m", state="starting", active=0), slot("s2", "m", 1, state="starting", active=1)],
            ["m", "m"],
            {"r1": "s2", "r2": "s1"},
            id="of starting slots the busiest first too",
        ),
        pytest.param(
            [model("m", parallel=1)],
            [slot("s1", "m", state="starting"), slot("s2", "m", 1)],
            [{"model": "m"}, {"model": "m", "priority": 1}],
            {"r1": "s1", "r2": "s2"},
            id="ready slots before starting ones",
        ),
        pytest.param(
            [model("m", parallel=2)],
            [slot(f"s{at}", "m", at, state=state) for at, state in enumerate(("draining", "failed", "stopped"))],
            ["m"],
            {"r1": "new-1"},
            id="draining, failed and stopped slots serve nobody",
        ),
        pytest.param(
            [model("m", "vllm", "20Gi")], [], ["m"] * 257, {f"r{n}": "new-1" if n < 257 else "new-2"
                                                            for n in range(1, 258)},
            id="vllm serves 256 at once",
        ),
        pytest.param([model("m")], [], ["m"] * 5, {**{f"r{n}": "new-1" for n in range(1, 5)}, "r5": "new-2"},
                     id="others serve 4"),
    ],
)  # fmt: skip
def test_which_slot_serves(models, slots, requests, want):
    """SLOT-3, SLOT-7 requests, by priority and arrival, to ready slots, else to those on the way, else to new ones."""
    assert served(answer(nodes=ROOMY, models=models, runners=[runner("n1", *slots)], requests=requests)) == want


def test_needs_are_planned_by_priority_and_age():
    """SLOT-3, SLOT-7 each slot has the priority and age of the first request that it would serve; ids in that order."""
    requests = [{"model": "m"}, {"model": "n"}, {"model": "o", "priority": 3}, {"model": "m", "priority": 1}]
    result = answer(
        nodes=ROOMY,
        models=[model("m", parallel=1), model("n"), model("o")],
        runners=[runner("n1")],
        requests=requests,
    )
    assert [one["model"] for one in result["slots"]] == ["o", "m", "m", "n"]
    assert served(result) == {"r1": "new-3", "r2": "new-4", "r3": "new-1", "r4": "new-2"}


def test_a_need_without_a_place_blocks_nobody():
    """SLOT-7 shown with its reason; those behind it are served."""
    result = answer(
        nodes=[gpus("n1", 1)],
        models=[model("big", memory="45Gi", gpuCounts=[1]), model("small")],
        runners=[runner("n1")],
        requests=[{"model": "big", "priority": 9}, "small"],
    )
    assert served(result) == {"r1": None, "r2": "new-1"}
    assert reasons(result) == {"r1": "no GPU has 45Gi free; best n1/0 with 40Gi"}


def test_what_is_kept_warm_is_planned_last():
    """SLOT-3 in the order of the models, with the same options; slots on the way and new ones count."""
    slots = [slot("s1", "m", state="starting"), slot("s2", "n", 0, lora="l", idle=900)]
    result = answer(
        nodes=[gpus("n1", 3)],
        models=[model("n", keepWarm=2), model("m", keepWarm=2, memory="20Gi"), model("o", memory="10Gi")],
        runners=[runner("n1", *slots)],
        requests=[*["n"] * 4, "o"],
    )
    assert [(one["model"], one["lora"]) for one in result["slots"]] == [("n", ""), ("o", ""), ("n", ""), ("m", "")]
    assert "keep_warm" not in result


def test_what_cannot_be_kept_warm():
    """SLOT-7 a slot that keepWarm lacks is told with its reason, too."""
    result = answer(nodes=[gpus("n1", 1)], models=[model("m", memory="30Gi", keepWarm=3)], runners=[runner("n1")])
    assert placed(result) == {"new-1": ("n1", [0])}
    assert result["keep_warm"] == [{"model": "m", "missing": 2, "reason": "no GPU has 30Gi free; best n1/0 with 10Gi"}]


def test_a_slot_with_a_lora_is_planned_for_it():
    """SLOT-3 the need is that of model and LoRA."""
    result = answer(nodes=ROOMY, models=[model("m")], runners=[runner("n1")], requests=[lora("m", "x"), lora("m", "y")])
    assert [(one["id"], one["model"], one["lora"]) for one in result["slots"]] == [
        ("new-1", "m", "x"),
        ("new-2", "m", "y"),
    ]


def test_names_that_slots_have_already():
    """SLOT-7 new ids are none of those that exist."""
    result = answer(
        nodes=ROOMY, models=[model("m")], runners=[runner("n1", slot("new-1", "m", active=4))], requests=["m"]
    )
    assert served(result) == {"r1": "new-2"}
