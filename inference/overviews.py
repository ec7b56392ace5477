"""What the pages of inference show: models with their memory and slots, who waits and why, runners with their GPUs,
and what was served in the last hour.

Invariants: each list costs a fixed number of queries; what is measured comes from the caller.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Avg, Count, ExpressionWrapper, F, Min, Sum
from django.db.models.fields import DurationField
from django.db.models.functions import TruncMinute

from allocations.engine.gguf import GgufInvalid
from allocations.engine.slots.memory import amounts, usable_counts
from allocations.models import AllocationDevice
from inference.choices import HOLDING, RequestState
from inference.gguf_headers import estimate_of, stored_header
from inference.models import Model, Request, Runner, Slot
from inference.selectors import model_list, runner_list, slot_list
from inference.slot_models import slot_model
from kube.device_types import GPU
from nodes.choices import Presence
from nodes.live.samples import SampleView
from nodes.models import Device

SLOTS_SHOWN: Final = 200
"""Newest ended slots among them are left out first."""
QUEUE_SHOWN: Final = 100
SERVED: Final = timedelta(hours=1)
_SHADES: Final = ("used", "used-2")


class Memory(NamedTuple):
    """What a model takes on so many GPUs; `parts`: of an estimate, by name."""

    gpus: int
    per_gpu: tuple[int, ...]
    parts: Mapping[str, int]

    @property
    def equal(self) -> bool:
        """Whether it takes the same of each GPU."""
        return len(set(self.per_gpu)) == 1


class ModelShown(NamedTuple):
    """A model. `memory`: by number of GPUs; `unknown`: why there is none; `waiting`: requests."""

    model: Model
    memory: tuple[Memory, ...]
    unknown: str
    waiting: int
    live: int
    ready: int


class Queued(NamedTuple):
    """Requests that wait for the same reason. `slot`: the one that they wait for, empty: none."""

    model: str
    lora: str
    slot: str
    reason: str
    requests: int
    oldest: datetime


class GpuShown(NamedTuple):
    """A GPU of a runner; parts are (percent, class, title)."""

    device: Device
    claimed: int
    measured: int | None
    parts: tuple[tuple[float, str, str], ...]
    measured_parts: tuple[tuple[float, str, str], ...]


class RunnerShown(NamedTuple):
    """A runner with its GPUs."""

    runner: Runner
    gpus: tuple[GpuShown, ...]
    slots: int


def models_shown() -> list[ModelShown]:
    """All models, by name."""
    rows = Request.objects.filter(state=RequestState.WAITING).order_by().values_list("model_name")
    waiting = dict(rows.annotate(count=Count("pk")))
    return [_model_shown(model, waiting.get(model.name, 0)) for model in model_list()]


def model_shown(model: Model) -> ModelShown:
    """One of `model_list`."""
    waiting = Request.objects.filter(state=RequestState.WAITING, model_name=model.name).count()
    return _model_shown(model, waiting)


def _model_shown(model: Model, waiting: int) -> ModelShown:
    asked = slot_model(model)
    found = [
        Memory(count, needed, _parts(model, count) if asked.estimates.get(count) else {})
        for count in usable_counts(asked)
        if (needed := amounts(asked, count))
    ]
    unknown = "" if found else asked.unknown or "neither its memory nor its file is given"
    live, ready = getattr(model, "slots_live", 0), getattr(model, "slots_ready", 0)
    return ModelShown(model, tuple(found), unknown, waiting, live, ready)


def _parts(model: Model, gpus: int) -> Mapping[str, int]:
    header = stored_header(model)
    if header is None:
        return {}
    try:
        parts = estimate_of(model, header, gpus).parts
    except GgufInvalid:
        return {}
    return {name: getattr(parts, name) for name in parts.__struct_fields__}


def queue_shown() -> list[Queued]:
    """Waiting requests by model, LoRA, slot and reason, those that came first at the top."""
    rows = Request.objects.filter(state=RequestState.WAITING).order_by()
    grouped = rows.values_list("model_name", "lora", "slot_id", "reason").annotate(
        count=Count("pk"), oldest=Min("arrived_at")
    )
    listed = grouped.order_by("oldest", "model_name")[:QUEUE_SHOWN]
    return [
        Queued(model, lora, slot or "", reason, count, oldest) for model, lora, slot, reason, count, oldest in listed
    ]


def slots_shown() -> list[Slot]:
    """Slots that are there, then those that ended last."""
    live = list(slot_list().filter(state__in=HOLDING).order_by("model_name", "planned_at", "pk")[:SLOTS_SHOWN])
    ended = slot_list().exclude(state__in=HOLDING).order_by("-stopped_at", "-pk")[:20]
    return [*live, *ended]


def runners_shown(samples: Mapping[str, SampleView]) -> list[RunnerShown]:
    """All runners by node; three queries. `samples`: by node, those that are not old."""
    runners = list(runner_list().order_by("node__name"))
    nodes = [runner.node_id for runner in runners]
    devices: defaultdict[int, list[Device]] = defaultdict(list)
    rows = Device.objects.filter(node__in=nodes, type=GPU, parent="").exclude(presence=Presence.REMOVED)
    for device in rows.order_by("minor"):
        devices[device.node_id].append(device)
    claims = _claims(itertools.chain.from_iterable(devices.values()))
    return [
        RunnerShown(
            runner,
            tuple(_gpu(device, claims[device.pk], samples.get(runner.node.name)) for device in devices[runner.node_id]),
            getattr(runner, "slots_live", 0),
        )
        for runner in runners
    ]


class _Claim(NamedTuple):
    memory: int
    title: str
    slot: bool


def _claims(devices: Iterable[Device]) -> Mapping[int, list[_Claim]]:
    """Device id → what is claimed of it, slots first."""
    grants = AllocationDevice.objects.filter(device__in=[device.pk for device in devices], live=True)
    listed = list(grants.order_by("pk").values_list("device_id", "memory_bytes", "allocation_id"))
    slots: dict[UUID | None, Slot] = {
        slot.allocation_id: slot for slot in slot_list().filter(allocation__in={pk for *_, pk in listed})
    }
    found: defaultdict[int, list[_Claim]] = defaultdict(list)
    for device, memory, allocation in listed:
        slot = slots.get(allocation)
        title = "other holders" if slot is None else f"{slot.model_name} {slot.pk}, {slot.state}"
        if device is not None:
            found[device].append(_Claim(memory, title, slot is not None))
    for claims in found.values():
        claims.sort(key=lambda claim: not claim.slot)
    return found


def _gpu(device: Device, claims: list[_Claim], sample: SampleView | None) -> GpuShown:
    total = device.memory_bytes
    measured = ((None if sample is None else sample.of(device.uuid)) or {}).get("memory_used_bytes")
    shades = itertools.cycle(_SHADES)
    parts = tuple(
        (_percent(claim.memory, total), next(shades) if claim.slot else "held", claim.title) for claim in claims
    )
    claimed = sum(claim.memory for claim in claims)
    beyond = max((measured or 0) - claimed, 0)
    inside = (_percent((measured or 0) - beyond, total), "used-2", "in use, as measured")
    measured_parts = (inside, (_percent(beyond, total), "bad", "in use beyond what is claimed"))
    return GpuShown(device, claimed, measured, parts, measured_parts)


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


def served_shown(now: datetime) -> dict[str, Any]:
    """By minute of the last hour: `times` (seconds since 1970), `tokens` a second, `requests`, and by the minute of
    their start the mean seconds that requests waited, null where there is none.
    """
    first = (now - SERVED).replace(second=0, microsecond=0)
    minutes = [first + timedelta(minutes=number) for number in range(int(SERVED.total_seconds() // 60))]
    ended = Request.objects.filter(ended_at__gte=first).order_by().values(minute=TruncMinute("ended_at"))
    counted = {row["minute"]: row for row in ended.annotate(tokens=Sum("tokens"), count=Count("pk"))}
    begun = Request.objects.filter(started_at__gte=first).order_by().values(minute=TruncMinute("started_at"))
    wait = ExpressionWrapper(F("started_at") - F("arrived_at"), output_field=DurationField())
    waited = {row["minute"]: row["waited"] for row in begun.annotate(waited=Avg(wait))}
    return {
        "times": [minute.timestamp() for minute in minutes],
        "tokens": [(counted[minute]["tokens"] or 0) / 60 if minute in counted else 0 for minute in minutes],
        "requests": [counted[minute]["count"] if minute in counted else 0 for minute in minutes],
        "waited": [waited[minute].total_seconds() if waited.get(minute) is not None else None for minute in minutes],
    }
