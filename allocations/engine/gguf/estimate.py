"""How much memory a model takes on each of so many GPUs when all of it is there.

Called by `manage.py estimate` and for models of scenarios. The formulas are those of Ollama's estimator
(`fs/ggml`: `GraphSize`, `VisionGraphSize`, and `llm/memory.go`). Invariants: exact whole numbers; `total` is the sum of
`per_gpu` and of `parts`; an architecture without a row of its own is estimated by the default row, and `notes` says so.
"""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from allocations.engine.gguf.header import LAYERS_MOST, GgufInvalid, Header

MINIMUM: Final = 512 << 20
"""Bytes that a runtime takes on each GPU whatever the model."""
BATCH_MOST: Final = 512
TOTAL_MOST: Final = 1 << 60
CONTEXT_DEFAULT: Final = 4_096
"""Where neither the caller nor the file says a context."""

GEMMA3_FULL_EVERY: Final = 6
"""In gemma3 every sixth block sees the whole context."""
GPTOSS_WINDOW: Final = 4_096
PROJECTOR: Final = "clip"
"""The architecture of a file that holds a projector and nothing else (mmproj)."""


class KvType(StrEnum):
    """How keys and values are stored."""

    F32 = "f32"
    F16 = "f16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"


_KV_BITS: Final = {KvType.F32: 32, KvType.F16: 16, KvType.Q8_0: 8, KvType.Q4_0: 4}


class Parts(msgspec.Struct, frozen=True):
    """What the total is made of, in bytes over all GPUs."""

    blocks: int
    output: int
    kv: int
    graph: int
    projectors: int
    minimum: int
    first_block: int
    """The first block with its KV, once more on each GPU, to work in."""


class Estimate(msgspec.Struct, frozen=True):
    """Bytes in all and on each GPU. `formula`: the row of the graph; `kv_type` and `context` (of one request) as
    counted.
    """

    total: int
    per_gpu: tuple[int, ...]
    parts: Parts
    architecture: str
    formula: str
    context: int
    parallel: int
    kv_type: KvType
    notes: tuple[str, ...] = ()


class _Shape(NamedTuple):
    """The symbols of the formulas. `fewest_kv_heads`: of any layer that has some."""

    d: int
    h: int
    k: int
    fewest_kv_heads: int
    key: int
    value: int
    vocabulary: int
    blocks: int


def estimate(
    header: Header, *, context: int = 0, parallel: int = 1, kv: KvType = KvType.F16, gpus: int = 1, mmproj: int = 0
) -> Estimate:
    """The estimate for `context` tokens of each of `parallel` requests (0: as many as the file says).

    `mmproj`: bytes of a projector's own file (`projectors`). Raises GgufInvalid where the file lacks a number.
    """
    shape, weights = _shape(header), _Weights.of(header)
    notes = []
    if context <= 0:
        stated = header.number("context_length")
        context = stated if isinstance(stated, int) and stated > 0 else CONTEXT_DEFAULT
        notes.append(f"no context was given: {context} tokens are counted")
    row = _row_of(header.architecture)
    used = KvType.F16 if row == "gptoss" or shape.key != shape.value else kv
    if used != kv:
        notes.append(f"keys and values are counted as {used}, not {kv}, which this model does not use")
    if row == DEFAULT and header.architecture not in _SAID_BY_DEFAULT:
        notes.append(f"the architecture {header.architecture} has no formula of its own; the default one is used")
    tokens, batch = context * parallel, min(context * parallel, BATCH_MOST)
    caches = _caches(header, shape, row, tokens=tokens, batch=batch, parallel=parallel, bits=_KV_BITS[used])
    whole = shape.blocks * _cache(shape, tokens, _KV_BITS[used])
    graph = _graph(row, shape, c=tokens, b=batch, kv=whole if row == "gptoss" else sum(caches))
    seen = weights.vision if _number(header, "vision.block_count", 0) > 0 else 0
    if header.architecture == PROJECTOR:
        seen = sum(tensor.size_bytes for tensor in header.tensors)
    first = weights.block(0) + (caches[0] if caches else 0)
    per_gpu = [MINIMUM + first + graph] * gpus
    for block, cache in enumerate(caches):
        per_gpu[block % gpus] += weights.block(block) + cache
    per_gpu[shape.blocks % gpus] += weights.output + seen + mmproj
    parts = Parts(
        blocks=sum(weights.block(block) for block in range(shape.blocks)),
        output=weights.output,
        kv=sum(caches),
        graph=graph * gpus,
        projectors=seen + mmproj,
        minimum=MINIMUM * gpus,
        first_block=first * gpus,
    )
    total = sum(per_gpu)
    if total > TOTAL_MOST:
        raise GgufInvalid("the model would need more memory than any machine has (1 EiB)", rule="range")
    return Estimate(total, tuple(per_gpu), parts, header.architecture, row, context, parallel, used, tuple(notes))


def projectors(header: Header) -> int:
    """Bytes of a projector's file: all of its tensors."""
    return sum(tensor.size_bytes for tensor in header.tensors)


class _Weights(NamedTuple):
    """Bytes by group of tensors."""

    groups: dict[str, int]
    output: int
    vision: int

    @staticmethod
    def of(header: Header) -> _Weights:
        groups: dict[str, int] = defaultdict(int)
        for name, size in header.tensors:
            first, _, rest = name.partition(".")
            groups[f"blk.{rest.partition('.')[0]}" if first == "blk" else first] += size
        output = groups.get("output_norm", 0) + (groups.get("output") or groups.get("token_embd", 0))
        return _Weights(dict(groups), output, groups.get("v", 0))

    def block(self, number: int) -> int:
        return self.groups.get(f"blk.{number}", 0)


def _shape(header: Header) -> _Shape:
    """The symbols, checked. Raises GgufInvalid."""
    if header.architecture == PROJECTOR:
        return _Shape(0, 0, 0, 1, 0, 0, 0, 0)
    blocks = _number(header, "block_count", None)
    if blocks > LAYERS_MOST:
        raise GgufInvalid(f"the file says {blocks} blocks; at most {LAYERS_MOST} are counted", rule="range")
    d = _number(header, "embedding_length", None)
    heads = _by_layer(header, "attention.head_count") or (0,)
    kv_heads = _by_layer(header, "attention.head_count_kv") or heads
    h, k = max(heads), max(kv_heads)
    each = d // h if h else 0
    vocabulary = header.tokens or _number(header, "vocab_size", 0)
    return _Shape(
        d=d,
        h=h,
        k=k,
        fewest_kv_heads=min((count for count in kv_heads if count), default=1),
        key=_number(header, "attention.key_length", each),
        value=_number(header, "attention.value_length", each),
        vocabulary=vocabulary,
        blocks=blocks,
    )


def _number(header: Header, key: str, default: int | None) -> int:
    found = header.number(key)
    if isinstance(found, tuple):
        return max(found)
    if found is not None:
        return found
    if default is None:
        raise GgufInvalid(f"the file does not say its {header.architecture}.{key}", field=key, rule="required")
    return default


def _by_layer(header: Header, key: str) -> tuple[int, ...]:
    """One number for each layer, or one for all; empty where there is none."""
    found = header.number(key)
    if found is None:
        return ()
    return found if isinstance(found, tuple) else (found,)


def _cache(shape: _Shape, tokens: int, bits: int) -> int:
    """Keys and values of one block."""
    return tokens * (shape.key + shape.value) * shape.k * bits // 8


def _caches(header: Header, shape: _Shape, row: str, *, tokens: int, batch: int, parallel: int, bits: int) -> list[int]:
    """Keys and values of each block; blocks with a sliding window keep less."""
    every = [tokens] * shape.blocks
    if header.architecture == "gemma3" and (window := _number(header, "attention.sliding_window", 0)):
        kept = parallel * window + batch
        every = [tokens if (block + 1) % GEMMA3_FULL_EVERY == 0 else kept for block in range(shape.blocks)]
    elif row == "gptoss":
        kept = parallel * GPTOSS_WINDOW + batch
        every = [kept if block % 2 == 0 else tokens for block in range(shape.blocks)]
    return [_cache(shape, tokens, bits) for tokens in every]


DEFAULT: Final = "default"
_ROWS: Final = {
    **dict.fromkeys(("gemma", "gemma2", "gemma3"), "gemma"),
    **dict.fromkeys(("gptoss", "gpt-oss"), "gptoss"),
    **{name: name for name in ("llama", "qwen2", "command-r", "phi2", "deepseek2")},
}
"""Architecture → row."""
_SAID_BY_DEFAULT: Final = frozenset({"qwen3", "qwen3moe", PROJECTOR})
"""Architectures that the default row is known to fit."""


def _row_of(architecture: str) -> str:
    return _ROWS.get(architecture, DEFAULT)


def _graph(row: str, shape: _Shape, *, c: int, b: int, kv: int) -> int:
    """Bytes of the compute graph on one GPU; `kv`: the keys and values of all blocks."""
    d, h, k, vocabulary, key = shape.d, shape.h, shape.k, shape.vocabulary, shape.key
    match row:
        case "llama":
            return max(4 * b * (1 + 4 * d + c * (1 + h)), 4 * b * (d + vocabulary))
        case "qwen2":
            return max(4 * b * (d + vocabulary), 4 * b * (1 + 2 * d + c + c * h))
        case "gemma":
            return max(4 * b * (d + vocabulary), 4 * b * (2 + c + c * h + 2 * d + 2 * key * h))
        case "command-r":
            return max(4 * b * (d + vocabulary), 4 * b * (2 + 4 * d + c * (1 + h)))
        case "phi2":
            return max(4 * b * (d + vocabulary), 4 * b * (1 + 4 * d + c + c * h))
        case "deepseek2":
            return max(4 * b * (3 * d + vocabulary), 4 * b * (3 * d + 2 + c * (1 + k) + 2 * key * k))
        case "gptoss":
            return 4 * (h // shape.fewest_kv_heads) * kv // 6
    return h // shape.fewest_kv_heads * kv // 6
