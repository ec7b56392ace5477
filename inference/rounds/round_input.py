"""Reads what the plan of slots is made from: the ledger, what is measured, models, runners, slots, requests.

Called by `rounds.planning`. Invariants: memory that a slot is planned for and does not hold yet counts as taken; slots
of a runner that is not connected take no requests, and no slot is planned there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from allocations import fleet
from allocations.choices import LIVE
from allocations.choices import State as AllocationState
from allocations.engine.patch import take, with_freed
from allocations.engine.slots.records import Runner, Runtime, Slot, SlotInput, SlotModel, SlotRequest, SlotState
from allocations.models import AllocationDevice
from claims.dialects.request import DeviceAsk, DeviceRequest, Dialect
from inference import models
from inference.choices import HOLDING, RequestState, RunnerState, State
from inference.rounds.failures import Kind, PutOff, read_failures
from inference.slot_models import slot_model
from inference.slot_pods import nodes_for_pods
from kube.device_types import GPU
from nodes.live.reads import latest_of_nodes
from runner.protocol import MOST_SLOTS

if TYPE_CHECKING:
    from allocations.engine.amounts import Held
    from allocations.engine.snapshot import Snapshot

REQUESTS_MOST: Final = 100_000
"""Waiting requests that one plan looks at, the most important first."""
_READ: Final = (
    *("state", "node", "model_name", "lora", "gpus", "memory", "launch", "active", "ready_at", "last_used_at"),
    "allocation__state",
)
"""Columns: a round reads every slot."""
_ANY_SHARE: Final = DeviceRequest(
    asks=(DeviceAsk(type=GPU, count=1, core_percent=0, memory_bytes=1),), dialect=Dialect.SLOT
)


class RoundInput(NamedTuple):
    """`put_off`: model and LoRA → why no slot of it is planned now; `failures`: of each kind, also those that are over.
    `held_back`: waiting requests that are not in the input, since their model is put off. `pod_nodes`: where slots
    are pods.
    """

    inputs: SlotInput
    now: datetime
    models: Mapping[str, models.Model]
    slots: Mapping[str, models.Slot]
    failures: Mapping[Kind, PutOff]
    put_off: Mapping[tuple[str, str], str]
    held_back: tuple[SlotRequest, ...]
    pod_nodes: frozenset[str]


def read_round_input(now: datetime) -> RoundInput:
    """All of it, as of now."""
    look = fleet.current()
    known = {model.name: model for model in models.Model.objects.all()}
    rows = models.Slot.objects.filter(state__in=HOLDING).select_related("allocation").only(*_READ)
    slots = {slot.pk: slot for slot in rows}
    runners = list(models.Runner.objects.filter(state=RunnerState.CONNECTED).select_related("node"))
    by_pods = nodes_for_pods() if any(model.image for model in known.values()) else {}
    connected = {runner.node.name for runner in runners} | set(by_pods)
    blocked = look.blocked("", None, _ANY_SHARE)
    snapshot = take(with_freed(look.snapshot, (), blocked), _not_held_yet(look.snapshot, slots.values()))
    failures = read_failures(now)
    put_off = {
        (name, lora): failure.text
        for (name, revision, lora), failure in failures.items()
        if name in known and known[name].revision == revision and not failure.is_over(now)
    }
    asked_slots = [_slot(slot, connected, now) for slot in slots.values()]
    asked, held_back = _requests(asked_slots, known, put_off)
    measured = _measured(snapshot, connected, now)
    inputs = SlotInput(
        snapshot=snapshot,
        labels=by_pods | {runner.node.name: runner.node.labels for runner in runners},
        models=tuple(_model(model, asked_slots, put_off) for model in known.values()),
        runners=tuple(
            Runner(
                node=runner.node.name,
                runtimes=frozenset(map(str, runner.runtimes)),
                models=_on_disk(runner, known.values()),
                measured=measured.get(runner.node.name, {}),
                slots_most=MOST_SLOTS,
            )
            for runner in runners
        )
        + _pods(by_pods, known.values(), measured),
        slots=tuple(asked_slots),
        requests=asked,
        held_by_pods=_held_by_others(),
    )
    return RoundInput(inputs, now, known, slots, failures, put_off, held_back, frozenset(by_pods))


def _pods(
    nodes: Iterable[str], known: Iterable[models.Model], measured: Mapping[str, Mapping[int, int]]
) -> tuple[Runner, ...]:
    """What Kubernetes starts on these nodes: models that name an image."""
    named = [model for model in known if model.image]
    runtimes = frozenset(str(Runtime(model.runtime)) for model in named)
    only = frozenset(model.name for model in named)
    return tuple(Runner(node=node, runtimes=runtimes, only=only, measured=measured.get(node, {})) for node in nodes)


def _on_disk(runner: models.Runner, known: Iterable[models.Model]) -> frozenset[str]:
    """Names of the models whose source the runner has on its disk."""
    sources = set(runner.models_on_disk)
    return frozenset(model.name for model in known if (model.source or model.name) in sources)


def _not_held_yet(snapshot: Snapshot, slots: Iterable[models.Slot]) -> list[Held]:
    """Memory of planned slots that the ledger does not count yet."""
    taken: list[Held] = []
    for slot in slots:
        allocation = slot.allocation
        if slot.state != State.PLANNED or (allocation is not None and allocation.state in LIVE):
            continue
        row = snapshot.node_index.get(slot.node)
        if row is None:
            continue
        first = int(snapshot.node_start[row])  # GPUs come first on a node
        minors = snapshot.device_minor[first : first + snapshot.node_topology[row].size].tolist()
        for minor, amount in zip(slot.gpus, slot.memory, strict=True):
            if minor in minors:
                taken.append((int(snapshot.device_id[first + minors.index(minor)]), 0, amount))
    return taken


def _slot(slot: models.Slot, connected: set[str], now: datetime) -> Slot:
    used = max((at for at in (slot.ready_at, slot.last_used_at) if at is not None), default=now)
    parallel = int(slot.launch.get("parallel", 1))
    return Slot(
        id=slot.pk,
        model=slot.model_name,
        runner=slot.node,
        gpus=tuple(slot.gpus),
        memory=tuple(slot.memory),
        lora=slot.lora,
        state=SlotState(slot.state),
        active=slot.active if slot.node in connected else max(slot.active, parallel),
        idle_seconds=max(int((now - used).total_seconds()), 0),
        runtime=str(slot.launch.get("runtime", "")),
    )


def _model(model: models.Model, slots: list[Slot], put_off: Mapping[tuple[str, str], str]) -> SlotModel:
    found = slot_model(model)
    if (model.name, "") not in put_off:
        return found
    # none is planned now, and none of those that are there may go
    warm = sum(slot.model == model.name and not slot.lora and slot.state in _WARM for slot in slots)
    return msgspec.structs.replace(found, keep_warm=min(found.keep_warm, warm))


_WARM: Final = (SlotState.PLANNED, SlotState.STARTING, SlotState.READY)


def _requests(
    slots: list[Slot], known: Mapping[str, models.Model], put_off: Mapping[tuple[str, str], str]
) -> tuple[tuple[SlotRequest, ...], tuple[SlotRequest, ...]]:
    """Waiting requests in the order of arrival, and those held back: of a model that is put off only so many are asked
    about as there are places in its slots.
    """
    rows = models.Request.objects.filter(state=RequestState.WAITING).order_by("-priority", "arrived_at", "pk")
    listed = rows.values_list("pk", "model_name", "lora", "priority", "arrived_at")[:REQUESTS_MOST]
    places: defaultdict[tuple[str, str], int] = defaultdict(int)
    for slot in slots:
        if slot.state in _WARM and slot.model in known:
            places[slot.model, slot.lora] += max(known[slot.model].parallel - slot.active, 0)
    asked: list[tuple[datetime, SlotRequest]] = []
    held_back: list[SlotRequest] = []
    for pk, model, lora, priority, arrived in listed:
        request = SlotRequest(str(pk), model, lora, priority)
        if (model, lora) in put_off:
            places[model, lora] -= 1
            if places[model, lora] < 0:
                held_back.append(request)
                continue
        asked.append((arrived, request))
    asked.sort(key=lambda one: one[0])  # stable: of the same moment the higher priority, then by id
    return tuple(request for _, request in asked), tuple(held_back)


def _measured(snapshot: Snapshot, nodes: set[str], now: datetime) -> dict[str, dict[int, int]]:
    """Node → minor → bytes, by samples that are not old."""
    found: dict[str, dict[int, int]] = {}
    for node, sample in latest_of_nodes(nodes, epoch=now.timestamp()).items():
        row = snapshot.node_index.get(node)
        if row is None:
            continue
        of_uuid = dict(zip(sample.devices, sample.memory_used_bytes, strict=True))
        first = int(snapshot.node_start[row])
        found[node] = {
            int(snapshot.device_minor[device]): used
            for device in range(first, first + snapshot.node_topology[row].size)
            if (used := of_uuid.get(snapshot.device_uuid[device])) is not None
        }
    return found


def _held_by_others() -> dict[int, int]:
    """Device id → bytes that bound holders other than slots claim."""
    held: defaultdict[int, int] = defaultdict(int)
    rows = AllocationDevice.objects.filter(live=True, type=GPU).exclude(allocation__dialect=Dialect.SLOT.value)
    bound = rows.filter(allocation__state__in=(AllocationState.BOUND, AllocationState.RELEASING))
    for device, memory in bound.values_list("device_id", "memory_bytes"):
        if device is not None:
            held[device] += memory
    return dict(held)
