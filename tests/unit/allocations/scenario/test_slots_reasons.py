"""Why a request waits: a case for each reason, and what is no error."""

import io

import pytest

from allocations.engine.gguf import GgufInvalid, read_header
from tests.gguf_files import F32, header, vocabulary
from tests.unit.allocations.scenario.slots_cases import GI, answer, gpus, model, placed, reasons, runner, running, slot


def why(made, *, nodes=None, runners=None, **more):
    """The reason of one request for the model."""
    result = answer(
        nodes=nodes or [gpus("n1", 2)],
        models=[made] if made else [],
        runners=[runner("n1")] if runners is None else runners,
        requests=["m"],
        **more,
    )
    assert placed(result) == {}
    (reason,) = reasons(result).values()
    return reason


@pytest.mark.parametrize(
    ("made", "more", "want"),
    [
        pytest.param(None, {}, "model m is not known", id="an unknown model"),
        pytest.param(model("m"), {"runners": []}, "there are no runners", id="no runners"),
        pytest.param(
            model("m", "vllm"),
            {"runners": [runner("n1", runtimes=["ollama"])]},
            "no runner has the runtime vllm",
            id="no runner has the runtime",
        ),
        pytest.param(
            model("m", selector={"zone": "x", "a": "b"}),
            {},
            "no runner with the runtime ollama has the labels a=b, zone=x",
            id="no runner matches the selector",
        ),
        pytest.param(
            model("m"), {"nodes": [gpus("n1", 2, sick=[0, 1])]}, "no GPU of these runners is healthy", id="sick GPUs"
        ),
        pytest.param(
            model("m", "vllm", None),
            {},
            "the memory of model m is not known: vllm needs it stated",
            id="vllm without memory",
        ),
        pytest.param(
            model("m", memory="0"),
            {},
            "the memory of model m is not known: it has neither memory nor gguf",
            id="memory of 0 is none",
        ),
        pytest.param(
            model("m", memory=None, memoryPerGpu={2: ["1Gi", "1Gi"]}, gpuCounts=[1]),
            {},
            "the memory of model m is not known: it has neither memory nor gguf",
            id="memory for another number of GPUs",
        ),
        pytest.param(
            model("m", memory=None, gguf="m.gguf"),
            {},
            "the memory of model m is not known: m.gguf is a file, which only manage.py simulate reads",
            id="a file, over REST",
        ),
        pytest.param(
            model("m", memory="45Gi", gpuCounts=[1]),
            {"pods": [running("p", "n1", 0, "10Gi"), running("q", "n1", 1, "25Gi")]},
            "no GPU has 45Gi free; best n1/0 with 30Gi",
            id="one GPU",
        ),
        pytest.param(
            model("m", memory="45Gi"),
            {
                "nodes": [gpus("n1", 2, memory="80Gi")],
                "pods": [running("p", "n1", 0, "50Gi"), running("q", "n1", 1, "60Gi")],
            },
            "no GPU has 45Gi free; best n1/0 with 30Gi",
            id="one GPU, which could have room",
        ),
        pytest.param(
            model("m", memory="100Gi"),
            {},
            "no GPU has 100Gi free; best n1/0 with 40Gi; no 2 GPUs of one runner have 50Gi free; best n1 with 40Gi",
            id="beyond every GPU",
        ),
        pytest.param(
            model("m", memory="4Ei"),
            {"nodes": [gpus("n1", 1)]},
            "no GPU has 4Ei free; best n1/0 with 40Gi",
            id="beyond every machine",
        ),
        pytest.param(
            model("m", heads=28, gpuCounts=[8]),
            {"nodes": [gpus("n1", 8)]},
            "28 heads do not divide by 8",
            id="heads that do not divide",
        ),
        pytest.param(
            model("m", memory="45Gi", heads=7),
            {},
            "no GPU has 45Gi free; best n1/0 with 40Gi; 7 heads do not divide by 2",
            id="heads that nothing divides, where the runner has so many GPUs",
        ),
        pytest.param(
            model("m", memory="60Gi", gpuCounts=[2, 4]),
            {"pods": [running("p", "n1", 0, "15Gi")]},
            "no 2 GPUs of one runner have 30Gi free; best n1 with 25Gi",
            id="several GPUs",
        ),
        pytest.param(model("m", gpuCounts=[4]), {}, "no runner has 4 GPUs", id="more GPUs than any runner has"),
    ],
)
def test_reasons(made, more, want):
    """SLOT-7 one reason, from the runtime to the memory."""
    assert why(made, **more) == want


LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 3,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "llama.context_length": 100,
    "tokenizer.ggml.tokens": vocabulary(9),
}
FILE = header(LLAMA, [(f"blk.{block}.a", (1 << 28,), F32) for block in range(3)] + [("output.weight", (10,), F32)])


def files(name):
    if name != "m.gguf":
        raise GgufInvalid(f"{name}: there is no such file")
    return read_header(io.BytesIO(FILE))


def test_memory_by_a_file():
    """SLOT-6b the estimate for each number of GPUs by itself; shown with its parts."""
    result = answer(
        nodes=[gpus("n1", 1, memory="4Gi"), gpus("n2", 2, memory="4Gi")],
        models=[model("m", memory=None, gguf="m.gguf", contextLength=50, parallel=2)],
        runners=[runner("n1"), runner("n2")],
        requests=["m"],
        headers=files,
    )
    estimates = {len(one["per_gpu"]): one for one in result["estimates"]["m"]}
    assert set(estimates) == {1, 2, 4, 8}
    assert (estimates[1]["context"], estimates[1]["parallel"]) == (50, 2)
    assert estimates[1]["total"] > 4 * GI
    assert placed(result) == {"new-1": ("n2", [0, 1])}
    assert result["slots"][0]["memory"] == estimates[2]["per_gpu"]
    assert sum(estimates[2]["parts"].values()) == estimates[2]["total"] == sum(result["slots"][0]["memory"])


def test_memory_that_is_given_comes_before_the_file():
    """SLOT-6 memory or memoryPerGpu where given, else the estimate; vLLM's is its own, whatever the file."""
    nodes = [gpus("n1", 2, memory="4Gi")]
    both = answer(
        nodes=nodes,
        models=[model("m", memory=None, gguf="m.gguf", memoryPerGpu={1: ["3Gi"]})],
        runners=[runner("n1")],
        requests=["m"],
        headers=files,
    )
    assert both["slots"][0]["memory"] == [3 * GI]
    assert [len(one["per_gpu"]) for one in both["estimates"]["m"]] == [2, 4, 8]
    given = answer(
        nodes=nodes, models=[model("m", memory="1Gi", gguf="none")], runners=[runner("n1")], requests=["m"],
        headers=files,
    )  # fmt: skip
    assert given["slots"][0]["memory"] == [GI]
    assert "estimates" not in given
    vllm = why(model("m", "vllm", None, gguf="m.gguf"), headers=files)
    assert vllm == "the memory of model m is not known: vllm needs it stated"


def test_a_file_that_cannot_be_read():
    """SLOT-6, SLOT-7 a reason to wait, not an error."""
    reason = why(model("m", memory=None, gguf="gone.gguf"), headers=files)
    assert reason == "the memory of model m is not known: gone.gguf: there is no such file"


def test_slots_of_a_model_that_is_gone():
    """SLOT-7 they serve nobody and hold their memory."""
    result = answer(
        nodes=[gpus("n1", 1)],
        models=[model("m", memory="30Gi", gpuCounts=[1])],
        runners=[runner("n1", slot("s1", "gone", idle=9_000))],
        requests=["m", "gone"],
    )
    assert reasons(result) == {"r1": "no GPU has 30Gi free; best n1/0 with 25Gi", "r2": "model gone is not known"}


def test_slots_that_hold_more_than_there_is():
    """SLOT-8 a problem is told, and nothing more is planned there."""
    result = answer(
        nodes=[gpus("n1", 1)],
        models=[model("m", memory="1Gi")],
        runners=[runner("n1", slot("s1", "m", memory="30Gi", active=9), slot("s2", "m", memory="30Gi", active=9))],
        requests=["m"],
    )
    assert result["problems"] == ["slot s2: holds more of n1/0 than others leave of it"]
    assert reasons(result) == {"r1": "no GPU has 1Gi free; best n1/0 with 0"}
