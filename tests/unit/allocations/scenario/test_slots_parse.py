"""Models, runners and requests as they are written: defaults, keys that may be strings, and what is refused."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from access.errors import BadInput, TooLarge
from allocations.engine.slots.records import Runtime, SlotState
from allocations.scenario import Limits, parse_scenario, read_scenario, run_scenario
from tests.unit.allocations.scenario.slots_cases import GI, answer, gpus, model, runner, slot

NODES = [gpus("n1", 2)]


def inference(scenario):
    """What is read of it, which is there."""
    assert scenario.inference is not None
    return scenario.inference


YAML = """
nodes:
  - name: n1
    devices: [{minor: 0, uuid: GPU-0, model: H100, memory: 80Gi}]
models:
  - {name: m, runtime: ollama, memory: 15Gi, parallel: 2, idleSeconds: 300, keepWarm: 0}
runners:
  - {node: n1, runtimes: [ollama, vllm], models: [m], measured: {0: 3Gi},
     slots: [{id: s1, model: m, lora: "", gpus: [0], memory: [15Gi], state: ready, active: 0, idleSeconds: 400}]}
requests:
  - {id: r1, model: m, lora: "", priority: 0}
"""


def test_the_example():
    """SLOT-7, VIEW-4 the scenario of the rules."""
    scenario = read_scenario(YAML)
    (made,), (one,), (held,), (asked,) = (
        inference(scenario).models,
        inference(scenario).runners,
        inference(scenario).slots,
        inference(scenario).requests,
    )
    assert (made.memory, made.parallel, made.idle_seconds, made.keep_warm) == (15 * GI, 2, 300, 0)
    assert (one.runtimes, one.models, one.measured) == ({"ollama", "vllm"}, {"m"}, {0: 3 * GI})
    assert (held.gpus, held.memory, held.state, held.idle_seconds) == ((0,), (15 * GI,), SlotState.READY, 400)
    assert (asked.id, asked.priority) == ("r1", 0)
    assert [(one.id, one.slot, one.reason) for one in run_scenario(scenario).requests or ()] == [("r1", "s1", "")]


def test_defaults():
    """SLOT-6, VIEW-4 what a model is where it says nothing."""
    scenario = parse_scenario(
        {"models": [{"name": "m", "runtime": "ollama"}, {"name": "v", "runtime": "vllm", "memory": 1}]}
    )
    made, vllm = inference(scenario).models
    assert (made.runtime, made.memory, made.heads, made.gpu_counts) == (Runtime.OLLAMA, 0, 0, (1, 2, 4, 8))
    assert (made.parallel, made.idle_seconds, made.keep_warm, dict(made.selector)) == (4, 300, 0, {})
    assert vllm.parallel == 256


def test_keys_of_a_model():
    """VIEW-4 everything that a model may say."""
    whole = {
        "name": 7,
        "runtime": "llamacpp",
        "source": "hf.co/a/b:Q4",
        "memory": 1.5e9,
        "memoryPerGpu": {"2": ["1Gi", 5]},
        "parallel": "3",
        "contextLength": 8192,
        "kvType": "q8_0",
        "gguf": "/models/m.gguf",
        "heads": 32,
        "gpuCounts": [4, 2, 2],
        "idleSeconds": 0,
        "keepWarm": 2,
        "args": ["--flash-attn", 1],
        "selector": {"zone": "x"},
    }
    scenario = parse_scenario({"models": [whole]})
    (made,) = inference(scenario).models
    assert (made.name, made.memory, dict(made.memory_per_gpu)) == ("7", 1_500_000_000, {2: (GI, 5)})
    assert (made.parallel, made.heads, made.gpu_counts, made.keep_warm) == (3, 32, (2, 4), 2)
    use = inference(scenario).ggufs["7"]
    assert (use.path, use.context, use.kv) == ("/models/m.gguf", 8192, "q8_0")


def test_keys_that_are_strings():
    """SLOT-8 minors and numbers of GPUs, as JSON has to write them."""
    for measured in ({"0": "3Gi"}, {0: "3Gi"}):
        scenario = parse_scenario({"nodes": NODES, "runners": [runner("n1", measured=measured)]})
        assert inference(scenario).runners[0].measured == {0: 3 * GI}


def test_without_any_of_it():
    """VIEW-4 the result has no slots and requests; with an empty list of any, it has both."""
    assert answer(nodes=NODES)["slots"] == answer(nodes=NODES)["requests"] == []
    plain = json.loads(msgspec.json.encode(run_scenario(parse_scenario({"nodes": NODES}))))
    assert set(plain) == {"decisions", "fleet"}


@pytest.mark.parametrize(
    ("given_", "want"),
    [
        pytest.param({"models": [model("m", heds=3)]}, r"models\[0\]\.heds is not a .*mean heads", id="typo"),
        pytest.param({"models": [model("m", size=3)]}, r"models\[0\]\.size is not a field", id="unknown, of a model"),
        pytest.param({"runners": [runner("n1", zone=3)]}, r"runners\[0\]\.zone is not a field", id="of a runner"),
        pytest.param(
            {"runners": [runner("n1", slot("s", "m", since=3))]}, r"slots\[0\]\.since is not a field", id="of a slot"
        ),
        pytest.param({"requests": [{"id": "r", "model": "m", "user": 1}]}, r"\.user is not a field", id="of a request"),
        pytest.param({"request": []}, "request is not a field; did you mean requests", id="at the top"),
        pytest.param({"models": [{"runtime": "ollama"}]}, r"models\[0\]\.name is required", id="no name"),
        pytest.param({"models": [{"name": "m"}]}, r"models\[0\]\.runtime is required", id="no runtime"),
        pytest.param({"models": [model("m", "tgi")]}, "must be one of llamacpp, ollama, simulated, vllm", id="runtime"),
        pytest.param({"models": [model("m"), model("m")]}, "model m stands there twice", id="two models of a name"),
        pytest.param(
            {"models": [model("m", memory="15GB")]}, r"models\[0\]\.memory: .*did you mean 15G", id="quantity"
        ),
        pytest.param({"models": [model("m", memory="8Ei")]}, "out of range", id="memory beyond every number"),
        pytest.param({"models": [model("m", memory="-1")]}, "is negative", id="memory below 0"),
        pytest.param({"models": [model("m", parallel=0)]}, r"parallel must be 1 to", id="parallel of 0"),
        pytest.param({"models": [model("m", heads=0)]}, r"heads must be 1 to", id="0 heads"),
        pytest.param({"models": [model("m", gpuCounts=[0])]}, r"gpuCounts\[0\] must be 1 to", id="0 GPUs"),
        pytest.param({"models": [model("m", kvType="q2")]}, "kvType must be one of f16, q4_0, q8_0", id="KV type"),
        pytest.param({"models": [model("m", keepWarm=10**9)]}, "keepWarm must be 0 to 1000", id="a billion kept warm"),
        pytest.param({"models": [model("m", contextLength=0)]}, "contextLength must be 1 to", id="context of 0"),
        pytest.param(
            {"models": [model("m", memoryPerGpu={2: ["1Gi"]})]}, "must have 2 amounts, one for each GPU", id="amounts"
        ),
        pytest.param({"models": [model("m", memoryPerGpu={1: [0]})]}, "amounts above 0", id="an amount of 0"),
        pytest.param({"models": [model("m", memoryPerGpu={"two": []})]}, "must be a whole number", id="not a number"),
        pytest.param({"models": [model("m", memoryPerGpu=["1Gi"])]}, "must be an object", id="a list of amounts"),
        pytest.param({"models": {}}, "models must be a list", id="models as an object"),
        pytest.param({"runners": [runner("n2")]}, r"runners\[0\]\.node is n2, which is not in", id="an unknown node"),
        pytest.param({"runners": [runner("n1"), runner("n1")]}, "runner of node n1 stands there twice", id="runners"),
        pytest.param({"runners": [runner("n1", measured={7: 1})]}, "is GPU 7, which the node does not", id="measured"),
        pytest.param({"runners": [runner("n1", slot("s", "m", 7))]}, "is GPU 7, which the node", id="a slot's GPU"),
        pytest.param({"runners": [runner("n1", slot("s", "m", [0, 0]))]}, "names a GPU twice", id="a GPU twice"),
        pytest.param({"runners": [runner("n1", slot("s", "m", []))]}, "gpus is required", id="a slot without GPUs"),
        pytest.param(
            {"runners": [runner("n1", slot("s", "m", [0], ["1Gi", "1Gi"]))]}, "must have 1 amounts", id="its memory"
        ),
        pytest.param({"runners": [runner("n1", slot("s", "m", 0, "41Gi"))]}, "more than GPU 0 has", id="too much"),
        pytest.param({"runners": [runner("n1", slot("s", "m", state="up"))]}, "state must be one of", id="a state"),
        pytest.param(
            {"runners": [runner("n1", slot("s", "m"), slot("s", "m"))]}, "slot s stands there twice", id="two slots"
        ),
        pytest.param({"requests": [{"model": "m"}]}, r"requests\[0\]\.id is required", id="a request without id"),
        pytest.param({"requests": [{"id": "r"}]}, r"requests\[0\]\.model is required", id="a request without model"),
        pytest.param(
            {"requests": [{"id": "r", "model": "m"}] * 2}, "request r stands there twice", id="two requests of an id"
        ),
        pytest.param({"requests": [{"id": "r", "model": "m", "priority": "high"}]}, "whole number", id="a priority"),
    ],
)
def test_what_is_refused(given_, want):
    """VIEW-4 with the field and the rule."""
    with pytest.raises(BadInput, match=want) as caught:
        parse_scenario({"nodes": NODES, **given_})
    assert caught.value.rule


def test_too_many():
    """VIEW-4 a scenario above its limits is refused before anything is planned."""
    requests = [{"id": f"r{number}", "model": "m"} for number in range(20)]
    with pytest.raises(TooLarge, match="20 requests and slots kept warm on 1 runners are more than 10"):
        parse_scenario({"nodes": NODES, "runners": [runner("n1")], "requests": requests}, limits=Limits(questions=10))
    with pytest.raises(TooLarge, match="at most 10 are taken"):
        parse_scenario({"requests": requests}, limits=Limits(pods=10))


SCRAPS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**70)
    | st.floats()
    | st.sampled_from(["m", "15Gi", "ready", "n1", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["0", "1", "id", "model", "gpus", "memory", "name"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def outcome(whole):
    """Slot and reason of each request; of a scenario that is refused, the sentence."""
    try:
        result = run_scenario(parse_scenario(whole))
    except BadInput as error:
        return [(None, str(error))]
    return [(one.slot, one.reason) for one in result.requests or ()]


@given(st.data())
def test_scraps(data):
    """VIEW-4 any value in any place is understood, or refused with a sentence."""
    whole = {
        "nodes": NODES,
        "models": [model("m")],
        "runners": [runner("n1", slot("s1", "m"))],
        "requests": [{"id": "r1", "model": "m"}],
    }
    kind = data.draw(st.sampled_from(["models", "runners", "requests", "slots"]))
    keys = {
        "models": ["memory", "memoryPerGpu", "parallel", "gpuCounts", "heads", "keepWarm", "selector", "args", "gguf"],
        "runners": ["node", "runtimes", "models", "measured", "slots"],
        "slots": ["id", "model", "lora", "gpus", "memory", "state", "active", "idleSeconds"],
        "requests": ["id", "model", "lora", "priority"],
    }
    target = whole["runners"][0]["slots"][0] if kind == "slots" else whole[kind][0]
    target[data.draw(st.sampled_from(keys[kind]))] = data.draw(SCRAPS)
    assert all(bool(slot) != bool(reason) for slot, reason in outcome(whole))
