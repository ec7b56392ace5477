"""Writes GGUF headers for tests, from the format's description and not from our reader.

header({"general.architecture": "llama", "llama.block_count": U32(2)}, [("blk.0.attn_q.weight", (64, 64), F32)])
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

F32, F16, Q4_K, Q6_K = 0, 1, 12, 14
_CODES = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i")}
_CODES |= {"f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d")}


class Typed(NamedTuple):
    """A number with its type."""

    kind: str
    value: float


def _text(text: str | bytes, order: str, wide: str) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(f"{order}{wide}", len(raw)) + raw


def _value(value: Any, order: str, wide: str) -> bytes:
    """Type and value: int is u32, list of int an array of i32, list of str one of strings."""
    if isinstance(value, str | bytes):
        return struct.pack(f"{order}I", 8) + _text(value, order, wide)
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            body = b"".join(_text(one, order, wide) for one in value)
            return struct.pack(f"{order}II{wide}", 9, 8, len(value)) + body
        return struct.pack(f"{order}II{wide}{len(value)}i", 9, 5, len(value), *value)
    if isinstance(value, int):
        value = Typed("u32", value)
    number, code = _CODES[value.kind]
    return struct.pack(f"{order}I{code}", number, value.value)


Tensors = Iterable[tuple[str, Sequence[int], int]]


def header(values: Mapping[str, Any], tensors: Tensors = (), *, version: int = 3, order: str = "<") -> bytes:
    """The bytes of a header: values by key, tensors as (name, dimensions, type)."""
    wide = "I" if version == 1 else "Q"
    listed = list(tensors)
    out = b"GGUF" + struct.pack(f"{order}I{wide}{wide}", version, len(listed), len(values))
    for key, value in values.items():
        out += _text(key, order, wide) + _value(value, order, wide)
    for name, dimensions, kind in listed:
        out += _text(name, order, wide) + struct.pack(f"{order}I", len(dimensions))
        out += struct.pack(f"{order}{len(dimensions)}{wide}IQ", *dimensions, kind, 0)
    return out


def vocabulary(count: int) -> list[str]:
    """So many tokens of a usual length."""
    return [f"token{number}" for number in range(count)]


def qwen3_8b() -> bytes:
    """Qwen3 8B in Q4_K_M with `attn_v` in F16, as Ollama's library has it."""
    d, kv, ff = 4096, 1024, 12288
    values = {
        "general.architecture": "qwen3",
        "qwen3.block_count": 36,
        "qwen3.context_length": 40960,
        "qwen3.embedding_length": d,
        "qwen3.attention.head_count": 32,
        "qwen3.attention.head_count_kv": 8,
        "qwen3.attention.key_length": 128,
        "qwen3.attention.value_length": 128,
        "tokenizer.ggml.tokens": vocabulary(151936),
    }
    tensors: list[tuple[str, tuple[int, ...], int]] = [
        ("token_embd.weight", (d, 151936), Q4_K),
        ("output.weight", (d, 151936), Q6_K),
        ("output_norm.weight", (d,), F32),
    ]
    for block in range(36):
        more = block < 4 or block >= 31 or block % 3 == 0
        tensors += [
            (f"blk.{block}.{name}.weight", dimensions, kind)
            for name, dimensions, kind in (
                ("attn_norm", (d,), F32),
                ("attn_q", (d, d), Q4_K),
                ("attn_k", (d, kv), Q4_K),
                ("attn_v", (d, kv), F16),
                ("attn_output", (d, d), Q4_K),
                ("attn_q_norm", (128,), F32),
                ("attn_k_norm", (128,), F32),
                ("ffn_norm", (d,), F32),
                ("ffn_gate", (d, ff), Q4_K),
                ("ffn_up", (d, ff), Q4_K),
                ("ffn_down", (ff, d), Q6_K if more else Q4_K),
            )
        ]
    return header(values, tensors)
