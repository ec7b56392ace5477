"""A small world of slots: models, runners that obey, requests, and the loop's rounds as a test asks for them.

The runner here is the service's side alone: it moves slots as the report of a real one would.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from django.db.models import F

from agent.protocol import COLUMNS
from allocations.choices import LIVE
from allocations.choices import State as AllocationState
from allocations.models import Allocation
from inference.choices import HOLDING, UNWANTED, RequestState, State
from inference.models import Model, Request, Runner, Slot
from inference.rounds.run import RoundResult, Rounds
from inference.transitions import slot_moved
from nodes.live.samples import SAMPLES_KEY, SampleView
from nodes.models import Device, Node
from storage.clock import database_now
from storage.redis_client import Purpose, client
from storage.transactions import atomic_retry
from tests.factories import LONG_AGO, NodeFactory

GI = 2**30


class SlotWorld:
    """By names; memory in GiB."""

    def __init__(self) -> None:
        self.processes: dict[str, set[str]] = {}
        """Node → ids of slots whose process runs there."""

    def model(self, name: str = "chat", *, memory: int | None = 10, **fields: Any) -> Model:
        given = {"runtime": "ollama", "parallel": 1, "idle_seconds": 60, **fields}
        return Model.objects.create(
            name=name,
            memory=None if memory is None else memory * GI,
            created_at=LONG_AGO,
            changed_at=LONG_AGO,
            **given,
        )

    def node(self, name: str = "n1", *, gpus: int = 1, memory: int = 40, labels: dict[str, str] | None = None) -> Node:
        node = NodeFactory(name=name, gpus=gpus, labels=labels or {})
        Device.objects.filter(node=node).update(memory_bytes=memory * GI)
        return node

    def runner(
        self,
        name: str = "n1",
        *,
        runtimes: Iterable[str] = ("ollama", "vllm", "llamacpp", "simulated"),
        disk: Iterable[str] = (),
        **node: Any,
    ) -> Runner:
        """A runner, on a new node where there is none of the name."""
        there = Node.objects.filter(name=name).first() or self.node(name, **node)
        now = database_now()
        return Runner.objects.create(
            node=there,
            address="127.0.0.1",
            runtimes=list(runtimes),
            models_on_disk=list(disk),
            session=1,
            seen_at=now,
            registered_at=now,
            changed_at=now,
        )

    def requests(self, model: str = "chat", count: int = 1, **fields: Any) -> list[Request]:
        """Requests that wait."""
        return [
            Request.objects.create(
                id=uuid.uuid4(), model_name=model, arrived_at=fields.pop("arrived_at", database_now()), **fields
            )
            for _ in range(count)
        ]

    def round(self) -> RoundResult:
        return Rounds().run()

    def obey(self, *nodes: str) -> None:
        """Each runner (these; all) does what it is told, and reports it."""
        for slot in self.told(*nodes):
            running = self.processes.setdefault(slot.node, set())
            if slot.state in UNWANTED:
                running.discard(slot.pk)
                self.report(slot, State.STOPPED)
            elif slot.state != State.READY:
                running.add(slot.pk)
                self.report(slot, State.STARTING)
                self.report(slot, State.READY, address=f"127.0.0.1:{9000 + len(running)}")

    def told(self, *nodes: str) -> list[Slot]:
        """The slots of which runners are told: those whose memory is bound, and those whose process is to go."""
        rows = Slot.objects.filter(state__in=HOLDING).select_related("allocation").order_by("planned_at", "pk")
        return [
            slot
            for slot in rows
            if (not nodes or slot.node in nodes)
            and (
                slot.state in UNWANTED
                or (slot.allocation is not None and slot.allocation.state == AllocationState.BOUND)
            )
        ]

    @atomic_retry
    def report(self, slot: Slot, state: State, **fields: Any) -> bool:
        """What a runner says of a slot. The object has the new state at once."""
        moved = slot_moved(slot, state, now=database_now(), actor="runner", **fields)
        if moved:
            slot.state = state
        return moved

    def converge(self, rounds: int = 8) -> None:
        """Rounds and obedience until nothing changes."""
        before: object = None
        for _ in range(rounds):
            self.round()
            self.obey()
            state = sorted(Slot.objects.values_list("pk", "state", "allocation__state"), key=str)
            if state == before:
                return
            before = state
        raise AssertionError(f"the slots do not come to rest: {before}")

    def ready(self, model: str = "chat", count: int = 1, **fields: Any) -> list[Slot]:
        """Slots that are ready, by requests that are answered at once."""
        asked = self.requests(model, count * Model.objects.get(name=model).parallel, **fields)
        self.converge()
        Request.objects.filter(pk__in=[one.pk for one in asked]).update(
            state=RequestState.DONE, ended_at=database_now(), slot=None
        )
        return list(Slot.objects.filter(model_name=model, state=State.READY))

    def age(self, seconds: float, *slots: Slot) -> None:
        """Let the slots (all) have become ready, been used, failed or been planned so much earlier."""
        by = timedelta(seconds=seconds)
        rows = Slot.objects.filter(pk__in=[slot.pk for slot in slots]) if slots else Slot.objects.all()
        names = ("planned_at", "starting_at", "ready_at", "last_used_at", "draining_at", "failed_at", "stopped_at")
        rows.update(**{name: F(name) - by for name in names})
        Allocation.objects.filter(
            pk__in=[pk for pk in rows.values_list("allocation_id", flat=True) if pk is not None], bound_at__isnull=False
        ).update(bound_at=F("bound_at") - by)

    def slots(self, *states: State) -> list[tuple[str, str, list[int], str]]:
        """(model, node, GPUs, state) of slots that hold, or are in these states, the oldest first."""
        rows = Slot.objects.filter(state__in=states or HOLDING).order_by("planned_at", "pk")
        return [(slot.model_name, slot.node, slot.gpus, str(slot.state)) for slot in rows]

    def waiting(self) -> list[tuple[str, bool, str]]:
        """(model, whether it has a slot to wait for, reason) of waiting requests."""
        rows = Request.objects.filter(state=RequestState.WAITING).order_by("arrived_at", "pk")
        return [(one.model_name, one.slot_id is not None, one.reason) for one in rows]

    def used(self, node: str = "n1") -> list[int]:
        """GiB used of each GPU, by the ledger."""
        rows = Device.objects.filter(node__name=node, type="gpu").order_by("minor")
        return [used // GI for used in rows.values_list("memory_used", flat=True)]


def problems() -> list[str]:
    """What must never be: a slot that runs without its memory, memory that no slot has."""
    found = []
    for slot in Slot.objects.filter(state__in=(State.STARTING, State.READY)).select_related("allocation"):
        allocation = slot.allocation
        if allocation is None or allocation.state != AllocationState.BOUND:
            found.append(f"slot {slot.pk} is {slot.state} without its memory")
            continue
        held = sorted(allocation.devices.filter(live=True).values_list("minor", "memory_bytes"))
        if held != sorted(zip(slot.gpus, slot.memory, strict=True)):
            found.append(f"slot {slot.pk} holds {held}, and says {slot.gpus} {slot.memory}")
    kept = set(Slot.objects.filter(state__in=HOLDING, allocation__isnull=False).values_list("allocation_id", flat=True))
    live = Allocation.objects.filter(dialect="slot", state__in=LIVE)
    return found + [f"{allocation} is no slot's" for allocation in live if allocation.pk not in kept]


def sample_of(node: str, memory: Sequence[int]) -> SampleView:
    """What an agent measures now: bytes in use of each GPU."""
    now = time.time()
    columns = {name: (None,) * len(memory) for name in COLUMNS} | {"memory_used_bytes": tuple(memory)}
    return SampleView(node, "b", 1, now, now, tuple(f"GPU-{node}-{minor}" for minor in range(len(memory))), **columns)


def measure(node: str, memory: Sequence[int], *, url: str) -> None:
    """The same, as workers find it."""
    with client(url, Purpose.WORK) as connection:
        connection.hset(SAMPLES_KEY, node, msgspec.msgpack.encode(sample_of(node, memory)))
