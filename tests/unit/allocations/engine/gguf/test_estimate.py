"""The memory of models by their header. Wanted numbers are worked out here, symbol by symbol, from small shapes."""

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocations.engine.gguf import GgufInvalid, KvType, estimate, projectors, read_header
from allocations.engine.gguf.sizes import BLOCKS, tensor_bytes
from tests.gguf_files import F16, F32, header, qwen3_8b, vocabulary

MIN = 512 << 20
D, H, K, V = 64, 8, 2, 1_000
E = D // H


def model(architecture, blocks=4, tensors=(), heads=H, kv_heads=K, **more):
    """A header with blocks of 4,096 bytes each, output of 256 + 8,000."""
    values = {
        "general.architecture": architecture,
        f"{architecture}.block_count": blocks,
        f"{architecture}.embedding_length": D,
        f"{architecture}.attention.head_count": heads,
        "tokenizer.ggml.tokens": vocabulary(V),
    }
    if kv_heads is not None:
        values[f"{architecture}.attention.head_count_kv"] = kv_heads
    values |= {f"{architecture}.{key.replace('__', '.')}": value for key, value in more.items()}
    listed: list[Any] = [(f"blk.{block}.attn_q.weight", (32, 32), F32) for block in range(blocks)]
    listed += [("output_norm.weight", (64,), F32), ("output.weight", (2_000,), F32), *tensors]
    return read_header(io.BytesIO(header(values, listed)))


def test_the_checked_value():
    """SLOT-6b qwen3 8B at 2 × 40,960 tokens with KV in q8_0 takes 15,767,897,088 bytes, part by part."""
    found = estimate(read_header(io.BytesIO(qwen3_8b())), context=40_960, parallel=2, kv=KvType.Q8_0)
    parts = found.parts
    assert found.total == 15_767_897_088
    assert parts.blocks + parts.output == 4_869_357_568
    assert (parts.kv, parts.graph) == (6_039_797_760, 4_026_531_840)
    assert (parts.minimum, parts.first_block) == (536_870_912, 295_339_008)
    assert found.notes == ()


B = 512
GRAPHS = [
    pytest.param("llama", 100, 2, lambda c, b: max(4 * b * (1 + 4 * D + c * (1 + H)), 4 * b * (D + V)), id="llama"),
    pytest.param("llama", 3, 1, lambda c, b: 4 * b * (D + V), id="llama, where the vocabulary is larger"),
    pytest.param("qwen2", 2_000, 1, lambda c, b: 4 * b * (1 + 2 * D + c + c * H), id="qwen2"),
    pytest.param("gemma", 2_000, 1, lambda c, b: 4 * b * (2 + c + c * H + 2 * D + 2 * E * H), id="gemma"),
    pytest.param("gemma2", 2_000, 1, lambda c, b: 4 * b * (2 + c + c * H + 2 * D + 2 * E * H), id="gemma2"),
    pytest.param("gemma3", 2_000, 1, lambda c, b: 4 * b * (2 + c + c * H + 2 * D + 2 * E * H), id="gemma3"),
    pytest.param("command-r", 2_000, 1, lambda c, b: 4 * b * (2 + 4 * D + c * (1 + H)), id="command-r"),
    pytest.param("phi2", 2_000, 1, lambda c, b: 4 * b * (1 + 4 * D + c + c * H), id="phi2"),
    pytest.param("deepseek2", 2_000, 1, lambda c, b: 4 * b * (3 * D + 2 + c * (1 + K) + 2 * E * K), id="deepseek2"),
    pytest.param("deepseek2", 3, 1, lambda c, b: 4 * b * (3 * D + V), id="deepseek2, where the vocabulary is larger"),
    pytest.param("qwen3", 2_000, 1, lambda c, b: (H // K) * (4 * c * 2 * E * K * 2) // 6, id="qwen3: the default row"),
    pytest.param("qwen3moe", 2_000, 1, lambda c, b: (H // K) * (4 * c * 2 * E * K * 2) // 6, id="qwen3moe: likewise"),
]


@pytest.mark.parametrize(("architecture", "context", "parallel", "want"), GRAPHS)
def test_graph_of_each_architecture(architecture, context, parallel, want):
    """SLOT-6b each architecture has its row; context times parallel is counted once, and a batch has at most 512."""
    found = estimate(model(architecture), context=context, parallel=parallel)
    assert found.parts.graph == want(context * parallel, min(context * parallel, B))


@pytest.mark.parametrize("architecture", ["falcon", "qwen3next"])
def test_an_architecture_without_a_row(architecture):
    """SLOT-6b the default row, and the answer says so."""
    found = estimate(model(architecture), context=100)
    assert found.formula == "default"
    assert found.notes == (f"the architecture {architecture} has no formula of its own; the default one is used",)


@pytest.mark.parametrize(
    ("kv", "want"),
    [
        pytest.param(KvType.F32, 4 * 100 * 2 * E * K * 4, id="f32"),
        pytest.param(KvType.F16, 4 * 100 * 2 * E * K * 2, id="f16"),
        pytest.param(KvType.Q8_0, 4 * 100 * 2 * E * K, id="q8_0"),
        pytest.param(KvType.Q4_0, 4 * 100 * 2 * E * K // 2, id="q4_0"),
    ],
)
def test_keys_and_values(kv, want):
    """SLOT-6b c·(eK+eV)·k·B for each block."""
    assert estimate(model("llama"), context=50, parallel=2, kv=kv).parts.kv == want


def test_keys_of_another_length_than_values():
    """SLOT-6b f16 counts, whatever is asked, and the answer says so."""
    found = estimate(model("llama", attention__key_length=24, attention__value_length=16), context=100, kv=KvType.Q4_0)
    assert found.parts.kv == 4 * 100 * 40 * K * 2
    assert found.kv_type == KvType.F16
    assert "counted as f16, not q4_0" in found.notes[0]


def test_sliding_windows_of_gemma3():
    """SLOT-6b blocks with (i + 1) mod 6 ≠ 0 keep parallel × sliding_window + b."""
    found = estimate(model("gemma3", blocks=12, attention__sliding_window=128), context=4_096, parallel=2)
    per_token = 2 * E * K * 2
    assert found.parts.kv == 2 * 8_192 * per_token + 10 * (2 * 128 + 512) * per_token


def test_sliding_windows_of_gptoss():
    """SLOT-6b even blocks keep parallel × 4,096 + b; the graph counts c in every block; f16 whatever is asked."""
    for name in ("gptoss", "gpt-oss"):
        found = estimate(model(name), context=100_000, parallel=2, kv=KvType.Q8_0)
        per_token = 2 * E * K * 2
        assert found.parts.kv == 2 * 200_000 * per_token + 2 * (2 * 4_096 + 512) * per_token
        assert found.parts.graph == 4 * (H // K) * (4 * 200_000 * per_token) // 6
        assert found.kv_type == KvType.F16


def test_mixture_of_experts():
    """SLOT-6b experts are tensors of their block, all of them counted."""
    experts = [(f"blk.{block}.ffn_gate_exps.weight", (64, 32, 128), F16) for block in range(4)]
    found = estimate(model("qwen3moe", tensors=experts), context=100)
    assert found.parts.blocks == 4 * (4_096 + 64 * 32 * 128 * 2)
    assert found.parts.first_block == 4_096 + 64 * 32 * 128 * 2 + 100 * 2 * E * K * 2


def test_several_gpus():
    """SLOT-4b block i is on GPU i mod n, output and projectors on GPU (blocks mod n); each has graph and minimum."""
    tensors = [("blk.1.ffn_up.weight", (1_000,), F32), ("v.patch.weight", (500,), F32)]
    found = estimate(model("llama", blocks=4, tensors=tensors, vision__block_count=2), context=100, gpus=3)
    kv = 100 * 2 * E * K * 2
    each = MIN + 4_096 + kv + found.parts.graph // 3
    assert found.per_gpu == (each + 2 * (4_096 + kv), each + 4_096 + kv + 4_000 + 8_256 + 2_000, each + 4_096 + kv)
    alone = estimate(model("llama", blocks=4, tensors=tensors, vision__block_count=2), context=100)
    assert found.parts.graph == 3 * alone.parts.graph


@pytest.mark.parametrize(
    ("tensors", "more", "want"),
    [
        pytest.param([("v.blk.0.attn_q.weight", (100,), F32)], {"vision__block_count": 2}, 400, id="of the model"),
        pytest.param([("v.blk.0.attn_q.weight", (100,), F32)], {}, 0, id="no vision blocks: none"),
        pytest.param([("mm.0.weight", (100,), F32)], {"vision__block_count": 2}, 0, id="only v.* are counted"),
    ],
)
def test_projectors_inside(tensors, more, want):
    """SLOT-6b tensors v.* where vision.block_count > 0."""
    assert estimate(model("llama", tensors=tensors, **more), context=100).parts.projectors == want


def test_projectors_in_a_file_of_their_own():
    """SLOT-6b all of an mmproj file."""
    beside = read_header(
        io.BytesIO(header({"general.architecture": "clip"}, [("v.a.weight", (100,), F32), ("mm.0.weight", (50,), F32)]))
    )
    found = estimate(model("llama"), context=100, mmproj=projectors(beside))
    assert found.parts.projectors == 600
    alone = estimate(beside, context=100)
    assert (alone.parts.projectors, alone.total) == (600, MIN + 600)


def test_output():
    """SLOT-6b output_norm, and output, else token_embd; other tensors outside blocks are not counted."""
    tied = header(
        {
            "general.architecture": "llama",
            "llama.block_count": 0,
            "llama.embedding_length": D,
            "llama.attention.head_count": H,
        },
        [("output_norm.weight", (10,), F32), ("token_embd.weight", (100,), F32), ("rope_freqs.weight", (7,), F32)],
    )
    assert estimate(read_header(io.BytesIO(tied)), context=10).parts.output == 440
    assert estimate(model("llama", tensors=[("token_embd.weight", (9,), F32)]), context=10).parts.output == 8_256


@pytest.mark.parametrize(
    ("heads", "kv_heads", "want_kv", "want_ratio"),
    [
        pytest.param([4, 8], [1, 2], 2, 8, id="the largest; the smallest k in the default graph"),
        pytest.param(8, None, 8, 1, id="no head_count_kv: k = h"),
        pytest.param(8, 3, 3, 2, id="h/k is a whole number"),
        pytest.param(8, [0, 4], 4, 2, id="a layer without attention is none of the smallest"),
    ],
)
def test_heads(heads, kv_heads, want_kv, want_ratio):
    """SLOT-6b head counts given by layer."""
    found = estimate(model("qwen3", heads=heads, kv_heads=kv_heads), context=100)
    kv = 4 * 100 * 2 * (D // 8) * want_kv * 2
    assert (found.parts.kv, found.parts.graph) == (kv, want_ratio * kv // 6)


@pytest.mark.parametrize(
    ("values", "want"),
    [
        pytest.param({}, "llama.block_count", id="no blocks"),
        pytest.param({"llama.block_count": 2}, "llama.embedding_length", id="no embedding"),
        pytest.param({"llama.block_count": "two"}, "llama.block_count is not a whole number", id="text for a number"),
        pytest.param({"llama.block_count": 4_000_000_000}, "4000000000 blocks; at most 4096", id="billions of blocks"),
        pytest.param(
            {"llama.block_count": 4_096, "llama.embedding_length": 2**32 - 1, "llama.attention.head_count": 1},
            "more memory than any machine",
            id="beyond any machine",
        ),
    ],
)
def test_a_header_that_lacks_something(values, want):
    """SLOT-6b one sentence."""
    raw = header({"general.architecture": "llama", **values})
    with pytest.raises(GgufInvalid, match=want):
        estimate(read_header(io.BytesIO(raw)), context=1 << 31, parallel=65_536)


def test_tensor_sizes():
    """SLOT-6b elements × type size / block size; the types of the format."""
    assert tensor_bytes(4_096, 12) == 4_096 * 144 // 256
    assert tensor_bytes(32, 39) == 17
    assert tensor_bytes(32, 4) is None
    assert len({block.name for block in BLOCKS.values()}) == len(BLOCKS)


@given(
    st.sampled_from(["llama", "qwen2", "gemma3", "gptoss", "phi2", "deepseek2", "command-r", "falcon"]),
    st.integers(1, 40),
    st.integers(1, 200_000),
    st.integers(1, 32),
    st.sampled_from(KvType),
    st.integers(1, 9),
)
def test_parts_add_up(architecture, blocks, context, parallel, kv, gpus):
    """SLOT-6b parts and GPUs each add up to the total, and more GPUs never take less in all."""
    made = model(architecture, blocks=blocks, attention__sliding_window=77)
    found = estimate(made, context=context, parallel=parallel, kv=kv, gpus=gpus)
    parts = found.parts
    each = (parts.blocks, parts.output, parts.kv, parts.graph, parts.projectors, parts.minimum, parts.first_block)
    assert found.total == sum(found.per_gpu) == sum(each)
    assert len(found.per_gpu) == gpus
    assert min(found.per_gpu) >= MIN + parts.graph // gpus
    alone = estimate(made, context=context, parallel=parallel, kv=kv)
    assert found.total == alone.total + (gpus - 1) * (alone.total - parts.blocks - parts.output - parts.kv)
