"""The header of a model's GGUF file, kept with the model, and what a slot takes of each GPU by it.

Called by services, which store a header that was sent, and by the plan. Invariants: only what `engine.gguf` keeps of a
header is stored; estimates follow the model's settings as they are now.
"""

from __future__ import annotations

import io
from typing import Final

import msgspec

from allocations.engine.gguf import Estimate, GgufInvalid, Header, KvType, estimate, read_header
from inference.models import Model

_DECODER: Final = msgspec.msgpack.Decoder(Header)


def header_of(beginning: bytes) -> Header:
    """The header in a file's first megabytes. Raises GgufInvalid."""
    return read_header(io.BytesIO(beginning))


def packed_header(beginning: bytes) -> bytes:
    """What is kept of it."""
    return msgspec.msgpack.encode(header_of(beginning))


def stored_header(model: Model) -> Header | None:
    """The header of the model's file, where it is known."""
    return None if model.gguf_header is None else _DECODER.decode(bytes(model.gguf_header))


def estimate_of(model: Model, header: Header, gpus: int) -> Estimate:
    """The memory on so many GPUs, with its parts. Raises GgufInvalid."""
    return estimate(header, context=model.context_length, parallel=model.parallel, kv=KvType(model.kv_type), gpus=gpus)


def estimates_of(model: Model) -> tuple[dict[int, tuple[int, ...]], str]:
    """Number of GPUs → bytes on each, and why there are none, where a file is named."""
    header = stored_header(model)
    if header is None:
        return {}, f"the header of {model.gguf} was not sent" if model.gguf else ""
    counts = [count for count in model.gpu_counts or (1, 2, 4, 8) if not (model.heads and model.heads % count)]
    try:
        return {count: tuple(estimate_of(model, header, count).per_gpu) for count in counts}, ""
    except GgufInvalid as error:
        return {}, str(error)
