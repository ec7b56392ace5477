"""The reader of GGUF headers: what it keeps, what it skips, and files that lie."""

import io
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocations.engine.gguf import GgufInvalid, estimate, header, read_header
from tests.exploring import examples
from tests.gguf_files import F32, Typed, qwen3_8b, vocabulary
from tests.gguf_files import header as written

MIB = 1 << 20
LLAMA = {"general.architecture": "llama", "llama.block_count": 2}


def read(raw):
    return read_header(io.BytesIO(raw))


@pytest.mark.parametrize(
    ("version", "order"),
    [
        pytest.param(1, "<", id="version 1"),
        pytest.param(2, "<", id="version 2"),
        pytest.param(3, "<", id="version 3"),
        pytest.param(3, ">", id="big endian"),
    ],
)
def test_what_is_kept(version, order):
    """SLOT-6b values of the architecture, the length of the vocabulary, tensors with their bytes."""
    values = {
        "general.name": "a model",
        "tokenizer.chat_template": "x" * 3_000_000,
        "tokenizer.ggml.tokens": vocabulary(300),
        "tokenizer.ggml.scores": [1, 2, 3],
        "llama.attention.head_count_kv": [4, 2],
        "llama.attention.head_count": Typed("u8", 8),
        "llama.rope.freq_base": Typed("f64", 1e6),
        **LLAMA,
    }
    found = read(written(values, [("blk.0.a.weight", (4, 8), F32)], version=version, order=order))
    assert (found.architecture, found.tokens, found.tensors) == ("llama", 300, (("blk.0.a.weight", 128),))
    assert found.number("attention.head_count_kv") == (4, 2)
    assert (found.number("attention.head_count"), found.number("block_count")) == (8, 2)
    assert set(found.values) == {
        "general.name",
        "general.architecture",
        "llama.block_count",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
    }


def counts(tensors, values):
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, values)


def pair(key, kind, rest):
    raw = key.encode()
    return counts(0, 1) + struct.pack("<Q", len(raw)) + raw + struct.pack("<I", kind) + rest


@pytest.mark.parametrize(
    ("raw", "want"),
    [
        pytest.param(b"", "ends in the middle of its first bytes", id="empty"),
        pytest.param(b"PK\3\4" + b"\0" * 64, "not a GGUF file", id="another format"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9 of GGUF is not known", id="a later version"),
        pytest.param(b"GGUF\3\0\0", "in the middle of its version", id="cut in the version"),
        pytest.param(counts(10**9, 0), "says 1000000000 tensors; at most 32768", id="a billion tensors"),
        pytest.param(counts(0, 2**64 - 1), "18446744073709551615 values; at most", id="2^64 values"),
        pytest.param(counts(0, 1), "in the middle of the key of value 1", id="no values"),
        pytest.param(counts(0, 1) + struct.pack("<Q", 2**63), "the key of value 1 has 92233", id="a key of 2^63 bytes"),
        pytest.param(pair("a", 8, struct.pack("<Q", 2**64 - 1)), "the middle of value a", id="a text of 2^64 bytes"),
        pytest.param(pair("a", 99, b""), "value a is of type 99", id="an unknown type"),
        pytest.param(
            pair("a", 9, struct.pack("<IQ", 8, 10**9)), "1000000000 entries; at most", id="10^9 strings in an array"
        ),
        pytest.param(pair("a", 9, struct.pack("<IQ", 4, 10**9)), "the middle of value a", id="10^9 numbers"),
        pytest.param(
            pair("a", 9, struct.pack("<IQ", 10, 2**63)), "the middle of value a", id="2^63 numbers of 8 bytes"
        ),
        pytest.param(pair("a", 9, struct.pack("<IQ", 9, 1) * 9), "nested deeper than 4", id="nested arrays"),
        pytest.param(pair("a", 9, struct.pack("<IQ", 9, 10**6)), "at most 2000000 are read", id="10^6 arrays"),
        pytest.param(
            pair("a", 9, struct.pack("<IQQ", 8, 1, 2**64 - 1)), "middle of value a", id="a token of 2^64 bytes"
        ),
        pytest.param(
            pair("x.attention.head_count", 9, struct.pack("<IQ", 5, 10**9)), "1 to 4096 are read", id="10^9 layers"
        ),
        pytest.param(
            pair("x.attention.head_count", 9, struct.pack("<IQi", 5, 1, -3)), "a number below 0", id="-3 heads"
        ),
        pytest.param(
            pair("general.architecture", 8, struct.pack("<Q", 10**6)), "has 1000000 bytes", id="a long architecture"
        ),
        pytest.param(counts(0, 0), "does not say its general.architecture", id="no architecture"),
        pytest.param(
            written({**LLAMA, "split.count": Typed("u16", 3)}), "one of 3 files of its model", id="a part of a model"
        ),
        pytest.param(written(LLAMA, [("t", (2**40, 2**40), F32)]), "more elements than any model", id="2^80 elements"),
        pytest.param(written(LLAMA, [("t", (1,) * 5, F32)]), "tensor t has 5 dimensions", id="five dimensions"),
        pytest.param(written(LLAMA, [("t", (8,), 4)]), "tensor t is of type 4, whose size", id="a withdrawn type"),
    ],
)
def test_bad_files(raw, want):
    """SLOT-6b one sentence, whatever the file says of itself."""
    with pytest.raises(GgufInvalid, match=want) as caught:
        read(raw)
    assert "\n" not in str(caught.value)


def test_every_cut():
    """SLOT-6b a header that ends anywhere is refused, and nothing else happens."""
    raw = written({**LLAMA, "tokenizer.ggml.tokens": vocabulary(9), "a": [1, 2]}, [("blk.0.a", (4,), F32)])
    for length in range(len(raw)):
        with pytest.raises(GgufInvalid, match="ends in the middle"):
            read(raw[:length])


def test_a_file_that_repeats_itself():
    """SLOT-6b a file cannot have many numbers kept, either."""
    values = {f"a{number}.attention.head_count": [1] * 4_096 for number in range(5)}
    with pytest.raises(GgufInvalid, match="more than 16384 numbers"):
        read(written({**LLAMA, **values}))


def test_a_long_header(monkeypatch):
    """SLOT-6b nothing beyond a bound is read."""
    monkeypatch.setattr(header, "HEADER_MOST", 1_000)
    with pytest.raises(GgufInvalid, match="the header is longer than"):
        read(written({**LLAMA, "tokenizer.ggml.tokens": vocabulary(300)}))


def test_memory_of_a_large_vocabulary():
    """SLOT-6b arrays are skipped: what is read at once is a window."""
    raw = qwen3_8b()
    tracemalloc.start()
    try:
        found = read(raw)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.tokens == 151_936
    assert most < 4 * MIB


BASE = written(
    {**LLAMA, "tokenizer.ggml.tokens": vocabulary(5), "llama.embedding_length": 8, "llama.attention.head_count": 2},
    [("blk.0.a", (4, 4), F32), ("output.weight", (4,), F32)],
)


def sentence_on(raw):
    """What is wrong with the file; empty where it is estimated."""
    try:
        estimate(read(raw), context=4_096, parallel=4)
    except GgufInvalid as error:
        return str(error)
    return ""


@examples(300)
@given(st.data())
def test_no_file_crashes_it(data):
    """SLOT-6b bytes changed, cut, put in: a header or one sentence, in little memory."""
    raw = bytearray(BASE)
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        with_ = data.draw(st.one_of(st.binary(max_size=9), st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff" * 4])))
        raw[at : at + data.draw(st.integers(0, 9))] = with_
        if not raw:
            break
    tracemalloc.start()
    try:
        sentence = sentence_on(bytes(raw))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "\n" not in sentence
    assert most < 8 * MIB


@given(st.binary(max_size=400))
def test_noise(tail):
    """SLOT-6b anything behind the first bytes: no noise is a model."""
    assert sentence_on(b"GGUF\3\0\0\0" + tail)
