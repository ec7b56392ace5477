"""A model as REST and pages write it, in the scenario's words, and as its row has it.

Called by services and by REST. Invariants: whatever breaks a rule is `BadInput` with the field; what `read_fields`
takes the database takes, and frames to runners; `shown_fields` of a row, read again, gives the same row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from access.errors import BadInput
from allocations.scenario.slots.parse import COUNTS_MOST, MODEL_KEYS, TEXT_LONGEST, read_model
from inference.choices import KvKind
from inference.models import Model
from nodes.field_parser import bad_field, read_integer, read_list, read_object, read_text
from runner.protocol import MOST_ARGS, MOST_GPUS

KEYS: Final = (*MODEL_KEYS, "image")
NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?([:/][A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)*")
NAME_LONGEST: Final = 200
NUMBER_MOST: Final = 2**31 - 1
IMAGE_LONGEST: Final = 512
LORA_MARK: Final = ":lora:"
"""In the `model` of a request it begins the LoRA."""

WITHOUT_RESTART: Final = frozenset({"idle_seconds", "keep_warm"})
"""Columns that no running slot has to be started anew for."""


def read_fields(body: object) -> dict[str, Any]:
    """Column → value of a model as written. Raises BadInput."""
    fields = read_object(body, "", KEYS, strict=True)
    name = read_text(fields.get("name"), "name", longest=NAME_LONGEST)
    if not name:
        raise bad_field("name", "is required", rule="required")
    if not NAME.fullmatch(name) or LORA_MARK in name:
        raise bad_field(
            "name",
            "must be letters, digits, '.', '_' and '-', in parts that '/' or ':' separates, and no part lora",
            rule="pattern",
        )
    model = read_model(name, fields, "")
    if fields.get("memory") is not None and not model.memory:
        raise bad_field("memory", "must be above 0", rule="range")
    for place, count in enumerate(read_list(fields.get("gpuCounts"), "gpuCounts", most=COUNTS_MOST)):
        read_integer(count, f"gpuCounts[{place}]", least=1, most=MOST_GPUS)
    context = fields.get("contextLength")
    return {
        "name": name,
        "runtime": model.runtime.value,
        "source": read_text(fields.get("source"), "source", longest=TEXT_LONGEST),
        "memory": model.memory or None,
        "memory_per_gpu": {str(count): list(amounts) for count, amounts in sorted(model.memory_per_gpu.items())},
        "parallel": _within(model.parallel, "parallel"),
        "context_length": 0 if context is None else read_integer(context, "contextLength", least=1, most=NUMBER_MOST),
        "kv_type": _kv_type(fields.get("kvType")),
        "gguf": read_text(fields.get("gguf"), "gguf", longest=TEXT_LONGEST),
        "heads": _within(model.heads, "heads"),
        "gpu_counts": list(model.gpu_counts) if fields.get("gpuCounts") else [],
        "idle_seconds": _within(model.idle_seconds, "idleSeconds"),
        "keep_warm": model.keep_warm,
        "args": [
            read_text(one, f"args[{place}]", longest=TEXT_LONGEST)
            for place, one in enumerate(read_list(fields.get("args"), "args", most=MOST_ARGS))
        ],
        "selector": dict(model.selector),
        "image": read_text(fields.get("image"), "image", longest=IMAGE_LONGEST),
    }


def _within(number: int, field: str) -> int:
    if number > NUMBER_MOST:
        raise bad_field(field, f"must be at most {NUMBER_MOST}", rule="range")
    return number


def _kv_type(value: object) -> str:
    if value is None or value == "":
        return KvKind.F16.value
    if not isinstance(value, str) or value not in KvKind.values:
        raise BadInput(f"kvType must be one of {', '.join(KvKind.values)}", field="kvType", rule="choice")
    return value


def shown_fields(model: Model) -> dict[str, Any]:
    """The model as `read_fields` takes it; without what was not given."""
    found: Mapping[str, Any] = {
        "name": model.name,
        "runtime": str(model.runtime),
        "source": model.source,
        "memory": model.memory,
        "memoryPerGpu": model.memory_per_gpu,
        "parallel": model.parallel,
        "contextLength": model.context_length or None,
        "kvType": str(model.kv_type),
        "gguf": model.gguf,
        "heads": model.heads or None,
        "gpuCounts": model.gpu_counts,
        "idleSeconds": model.idle_seconds,
        "keepWarm": model.keep_warm,
        "args": model.args,
        "selector": model.selector,
        "image": model.image,
    }
    return {key: value for key, value in found.items() if value not in (None, "", [], {})}
