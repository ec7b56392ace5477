"""Reads `models`, `runners` and `requests` of a scenario.

Called by `allocations.scenario.parse`. Pure. Invariants: an unknown key is an error, as is whatever contradicts the
nodes; that a model is unknown, or its memory, is none: it is a reason to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from access.errors import BadInput, TooLarge
from allocations.engine.gguf import KvType
from allocations.engine.slots.records import GPU_COUNTS, Runner, Runtime, Slot, SlotModel, SlotRequest, SlotState
from kube.device_types import GPU
from kube.names import check_subdomain
from kube.quantities import QuantityError, parse_quantity
from nodes.field_parser import (
    bad_field,
    read_choice,
    read_integer,
    read_list,
    read_name,
    read_object,
    read_text,
    within,
)

if TYPE_CHECKING:
    from allocations.scenario.parse import Limits
    from nodes.inventory import NodeShape

KEYS: Final = ("models", "runners", "requests")
"""Of a scenario."""
MODEL_KEYS: Final = (
    *("name", "runtime", "source", "memory", "memoryPerGpu", "parallel", "contextLength", "kvType", "gguf"),
    *("heads", "gpuCounts", "idleSeconds", "keepWarm", "args", "selector"),
)
_RUNNER: Final = ("node", "runtimes", "models", "measured", "slots")
_SLOT: Final = ("id", "model", "lora", "gpus", "memory", "state", "active", "idleSeconds")
_REQUEST: Final = ("id", "model", "lora", "priority")

NAME_LONGEST: Final = 253
TEXT_LONGEST: Final = 4_096
ARGS_MOST: Final = 256
COUNTS_MOST: Final = 64
GPUS_MOST: Final = 1_024
SLOTS_A_RUNNER: Final = 4_096
"""Each at most 1 PiB on a GPU, so that sums stay exact."""
KEPT_MOST: Final = 1_000
NUMBER_MOST: Final = 1 << 31
PARALLEL: Final = 4
PARALLEL_VLLM: Final = 256
IDLE_SECONDS: Final = 300


class GgufUse(msgspec.Struct, frozen=True):
    """The file by which a model's memory is estimated. `context`: 0 where the model says none."""

    path: str
    context: int
    kv: KvType


class Inference(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says of models. `ggufs`: by name of the model."""

    models: tuple[SlotModel, ...]
    ggufs: dict[str, GgufUse]
    runners: tuple[Runner, ...]
    slots: tuple[Slot, ...]
    requests: tuple[SlotRequest, ...]


def read_inference(fields: Mapping[str, Any], nodes: Sequence[NodeShape], limits: Limits) -> Inference | None:
    """None where the scenario has none of the three. Raises BadInput, TooLarge."""
    if not any(key in fields for key in KEYS):
        return None
    models, ggufs = _models(fields.get("models"), limits)
    runners, slots = _runners(fields.get("runners"), nodes, limits)
    requests = _requests(fields.get("requests"), limits)
    needs = len(requests) + sum(model.keep_warm for model in models)
    if needs * len(runners) > limits.questions:
        raise TooLarge(
            f"{needs} requests and slots kept warm on {len(runners)} runners are more than {limits.questions} "
            "questions",
            field="requests",
            rule="too-many",
        )
    return Inference(models=models, ggufs=ggufs, runners=runners, slots=slots, requests=requests)


def _models(value: object, limits: Limits) -> tuple[tuple[SlotModel, ...], dict[str, GgufUse]]:
    models: dict[str, SlotModel] = {}
    ggufs: dict[str, GgufUse] = {}
    for index, entry in enumerate(read_list(value, "models", most=limits.claims)):
        path = within("models", index)
        fields = read_object(entry, path, MODEL_KEYS, strict=True)
        name = _text(fields, path, "name")
        if name in models:
            raise _duplicate(f"model {name}", within(path, "name"))
        models[name] = read_model(name, fields, path)
        gguf = read_text(fields.get("gguf"), within(path, "gguf"), longest=TEXT_LONGEST)
        context = _whole(fields, path, "contextLength", default=0, least=1)
        kv_path = within(path, "kvType")
        kv = read_choice(fields.get("kvType"), kv_path, choices=_KV_TYPES, default=KvType.F16)
        if gguf:
            ggufs[name] = GgufUse(gguf, context, KvType(kv))
    return tuple(models.values()), ggufs


_KV_TYPES: Final = (KvType.F16.value, KvType.Q8_0.value, KvType.Q4_0.value)
_RUNTIMES: Final = tuple(runtime.value for runtime in Runtime)


def read_model(name: str, fields: Mapping[str, Any], path: str) -> SlotModel:
    """What the plan reads of a model. Raises BadInput; also for texts that only a runtime reads."""
    runtime = Runtime(_choice(fields.get("runtime"), within(path, "runtime"), _RUNTIMES))
    read_text(fields.get("source"), within(path, "source"), longest=TEXT_LONGEST)
    for place, argument in enumerate(read_list(fields.get("args"), within(path, "args"), most=ARGS_MOST)):
        read_text(argument, f"{within(path, 'args')}[{place}]", longest=TEXT_LONGEST)
    counts = [
        read_integer(one, f"{within(path, 'gpuCounts')}[{place}]", least=1, most=GPUS_MOST)
        for place, one in enumerate(read_list(fields.get("gpuCounts"), within(path, "gpuCounts"), most=COUNTS_MOST))
    ]
    parallel = PARALLEL_VLLM if runtime == Runtime.VLLM else PARALLEL
    return SlotModel(
        name=name,
        runtime=runtime,
        memory=_quantity(fields["memory"], within(path, "memory")) if fields.get("memory") is not None else 0,
        memory_per_gpu=_per_gpu(fields.get("memoryPerGpu"), within(path, "memoryPerGpu")),
        parallel=_whole(fields, path, "parallel", default=parallel, least=1),
        heads=_whole(fields, path, "heads", default=0, least=1),
        gpu_counts=tuple(sorted(set(counts))) or GPU_COUNTS,
        idle_seconds=_whole(fields, path, "idleSeconds", default=IDLE_SECONDS),
        keep_warm=_whole(fields, path, "keepWarm", default=0, most=KEPT_MOST),
        selector=_labels(fields.get("selector"), within(path, "selector")),
    )


def _per_gpu(value: object, path: str) -> dict[int, tuple[int, ...]]:
    """Number of GPUs → bytes on each."""
    found: dict[int, tuple[int, ...]] = {}
    for key, listed in _mapping(value, path).items():
        here = within(path, str(key)[:64])
        count = read_integer(key, here, least=1, most=GPUS_MOST)
        amounts = [
            _quantity(one, f"{here}[{place}]") for place, one in enumerate(read_list(listed, here, most=GPUS_MOST))
        ]
        if len(amounts) != count:
            raise bad_field(here, f"must have {count} amounts, one for each GPU", rule="length")
        if not all(amounts):
            raise bad_field(here, "must have amounts above 0", rule="range")
        if count in found:
            raise _duplicate(f"{count} GPUs", here)
        found[count] = tuple(amounts)
    return found


def _labels(value: object, path: str) -> dict[str, str]:
    return {
        read_text(key, path, longest=NAME_LONGEST + 64): read_text(text, within(path, str(key)[:64]), longest=256)
        for key, text in _mapping(value, path).items()
    }


def _runners(value: object, nodes: Sequence[NodeShape], limits: Limits) -> tuple[tuple[Runner, ...], tuple[Slot, ...]]:
    shapes = {node.name: node for node in nodes}
    runners: dict[str, Runner] = {}
    slots: dict[str, Slot] = {}
    for index, entry in enumerate(read_list(value, "runners", most=limits.nodes)):
        path = within("runners", index)
        fields = read_object(entry, path, _RUNNER, strict=True)
        node = read_name(fields.get("node"), within(path, "node"), check_subdomain)
        if node not in shapes:
            raise bad_field(within(path, "node"), f"is {node}, which is not in the scenario", rule="reference")
        if node in runners:
            raise _duplicate(f"a runner of node {node}", within(path, "node"))
        sizes = {one.minor: one.memory for one in shapes[node].devices if one.type == GPU and not one.parent}
        runners[node] = Runner(
            node=node,
            runtimes=frozenset(
                _choice(one, f"{within(path, 'runtimes')}[{place}]", _RUNTIMES)
                for place, one in enumerate(read_list(fields.get("runtimes"), within(path, "runtimes"), most=64))
            ),
            models=frozenset(
                _name(one, f"{within(path, 'models')}[{place}]")
                for place, one in enumerate(read_list(fields.get("models"), within(path, "models"), most=limits.claims))
            ),
            measured=_measured(fields.get("measured"), within(path, "measured"), sizes),
        )
        listed = read_list(fields.get("slots"), within(path, "slots"), most=SLOTS_A_RUNNER)
        for place, given in enumerate(listed):
            slot = _slot(given, f"{within(path, 'slots')}[{place}]", node, sizes)
            if slot.id in slots:
                raise _duplicate(f"slot {slot.id}", f"{within(path, 'slots')}[{place}].id")
            slots[slot.id] = slot
        if len(slots) > limits.devices:
            raise TooLarge(f"at most {limits.devices} slots are taken", field=path, rule="too-many")
    return tuple(runners.values()), tuple(slots.values())


def _measured(value: object, path: str, sizes: Mapping[int, int]) -> dict[int, int]:
    """Minor → bytes."""
    found: dict[int, int] = {}
    for key, amount in _mapping(value, path).items():
        here = within(path, str(key)[:64])
        minor = _minor(key, here, sizes)
        if minor in found:
            raise _duplicate(f"GPU {minor}", here)
        found[minor] = _quantity(amount, here)
    return found


def _slot(value: object, path: str, node: str, sizes: Mapping[int, int]) -> Slot:
    fields = read_object(value, path, _SLOT, strict=True)
    gpus_path, memory_path = within(path, "gpus"), within(path, "memory")
    listed = read_list(fields.get("gpus"), gpus_path, most=GPUS_MOST)
    gpus = tuple(_minor(one, f"{gpus_path}[{place}]", sizes) for place, one in enumerate(listed))
    amounts = read_list(fields.get("memory"), memory_path, most=GPUS_MOST)
    memory = tuple(_quantity(one, f"{memory_path}[{place}]") for place, one in enumerate(amounts))
    if not gpus:
        raise bad_field(gpus_path, "is required", rule="required")
    if len(set(gpus)) != len(gpus):
        raise bad_field(gpus_path, "names a GPU twice", rule="duplicate")
    if len(memory) != len(gpus):
        raise bad_field(memory_path, f"must have {len(gpus)} amounts, one for each GPU", rule="length")
    for minor, amount in zip(gpus, memory, strict=True):
        if amount > sizes[minor]:
            raise bad_field(memory_path, f"is more than GPU {minor} has", rule="range")
    state = read_choice(
        fields.get("state"),
        within(path, "state"),
        choices=tuple(state.value for state in SlotState),
        default=SlotState.READY,
    )
    return Slot(
        id=_text(fields, path, "id"),
        model=_text(fields, path, "model"),
        lora=read_text(fields.get("lora"), within(path, "lora"), longest=NAME_LONGEST),
        runner=node,
        gpus=gpus,
        memory=memory,
        state=SlotState(state),
        active=_whole(fields, path, "active", default=0),
        idle_seconds=_whole(fields, path, "idleSeconds", default=0),
    )


def _requests(value: object, limits: Limits) -> tuple[SlotRequest, ...]:
    requests: dict[str, SlotRequest] = {}
    for index, entry in enumerate(read_list(value, "requests", most=limits.pods)):
        path = within("requests", index)
        fields = read_object(entry, path, _REQUEST, strict=True)
        name = _text(fields, path, "id")
        if name in requests:
            raise _duplicate(f"request {name}", within(path, "id"))
        requests[name] = SlotRequest(
            name,
            _text(fields, path, "model"),
            read_text(fields.get("lora"), within(path, "lora"), longest=NAME_LONGEST),
            _whole(fields, path, "priority", default=0, least=-NUMBER_MOST),
        )
    return tuple(requests.values())


def _mapping(value: object, path: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > GPUS_MOST:
        raise bad_field(path, f"must be an object of at most {GPUS_MOST} entries", rule="type")
    return value


def _minor(value: object, path: str, sizes: Mapping[int, int]) -> int:
    minor = read_integer(value, path, least=0, most=NUMBER_MOST)
    if minor not in sizes:
        raise bad_field(path, f"is GPU {minor}, which the node does not have", rule="reference")
    return minor


def _quantity(value: Any, path: str) -> int:
    try:
        return parse_quantity(value)
    except QuantityError as error:
        raise BadInput(f"{path}: {error}", field=path, rule="quantity") from error


def _whole(
    fields: Mapping[str, Any], path: str, key: str, *, default: int, least: int = 0, most: int = NUMBER_MOST
) -> int:
    value = fields.get(key)
    return default if value is None else read_integer(value, within(path, key), least=least, most=most)


def _choice(value: object, path: str, choices: Sequence[str]) -> str:
    if value is None or value == "":
        raise bad_field(path, "is required", rule="required")
    return read_choice(value, path, choices=choices, default="")


def _text(fields: Mapping[str, Any], path: str, key: str) -> str:
    return _name(fields.get(key), within(path, key))


def _name(value: object, path: str) -> str:
    """Required text; a number may stand for it."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    text = read_text(value, path, longest=NAME_LONGEST)
    if not text:
        raise bad_field(path, "is required", rule="required")
    return text


def _duplicate(what: str, field: str) -> BadInput:
    return BadInput(f"{what} stands there twice", field=field, rule="duplicate")
