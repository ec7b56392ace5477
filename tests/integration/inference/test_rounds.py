"""Rounds of the slots' loop over the tables: requests and `keepWarm` → slots that hold their memory, with evictions;
what is wrong is put right.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pytest_django import Settings

from allocations.models import Allocation, Lease
from audit.models import Event
from inference import runner_sessions
from inference.choices import RequestState, State
from inference.models import Model, Request, Slot
from inference.rounds import planning, round_input
from inference.rounds.round_input import RoundInput, read_round_input
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.integration.inference.conftest import all_is_well
from tests.slots import GI, SlotWorld, measure


@pytest.mark.parametrize(
    ("requests", "model", "want"),
    [
        pytest.param(1, {}, 1, id="one request, one slot"),
        pytest.param(4, {"parallel": 4}, 1, id="parallel requests share a slot"),
        pytest.param(5, {"parallel": 4}, 2, id="one more has another slot"),
        pytest.param(0, {"keep_warm": 2}, 2, id="kept warm without a request"),
        pytest.param(2, {"keep_warm": 1}, 2, id="slots of requests are kept warm too"),
        pytest.param(9, {}, 4, id="as many as there is room for"),
    ],
)
def test_needs_become_slots(world: SlotWorld, requests: int, model: dict[str, Any], want: int) -> None:
    """SLOT-1b SLOT-7b so many slots as are needed, never one more, also by further rounds; each has its memory."""
    world.model(**model)
    world.runner(gpus=1, memory=40)
    world.requests(count=requests)
    world.converge()
    world.converge()
    assert [state for *_, state in world.slots()] == ["ready"] * want
    assert world.used() == [10 * want]
    assert sorted(Lease.objects.get().sharers) == sorted(Allocation.objects.values_list("holder", flat=True))
    all_is_well()


def test_a_slot_is_an_allocation_of_the_ledger(world: SlotWorld) -> None:
    """SLOT-1b holder `slot/<model>/<id>`, shares of memory, core 0."""
    world.model(runtime="vllm", memory=15)
    world.runner(gpus=2, memory=40)
    (slot,) = world.ready()
    allocation = Allocation.objects.get()
    assert (allocation.holder, allocation.dialect) == (f"slot/chat/{slot.pk}", "slot")
    grant = allocation.devices.get()
    assert (grant.core_percent, grant.whole) == (0, False)
    assert grant.memory_bytes == -(-40 * GI * 38 // 100), "vLLM takes 0.38 of the GPU"
    assert slot.launch["source"] == "chat"


def test_events_of_a_slots_life(world: SlotWorld) -> None:
    """SLOT-1b each move has its event, in its order."""
    world.model()
    world.runner()
    (slot,) = world.ready()
    Model.objects.all().delete()
    world.converge()
    kinds = list(Event.objects.filter(kind__startswith="slot.").order_by("id").values_list("kind", flat=True))
    assert kinds == ["slot.planned", "slot.starting", "slot.ready", "slot.draining", "slot.stopped"]
    assert {event.data["slot"] for event in Event.objects.filter(kind__startswith="slot.")} == {slot.pk}
    assert world.used() == [0]


def test_a_waiting_request_has_its_reason(world: SlotWorld) -> None:
    """SLOT-7b what cannot be served says why, and blocks nobody behind it; what is coming is named."""
    world.model("large", memory=90, gpu_counts=[1])
    world.model("unsaid", memory=None)
    world.model()
    world.runner(memory=40)
    for name in ("large", "unsaid", "missing", "chat"):
        world.requests(name)
    world.round()
    slot = Slot.objects.get()
    assert world.waiting() == [
        ("large", False, "no GPU has 90Gi free; best n1/0 with 40Gi"),
        ("unsaid", False, "the memory of model unsaid is not known: it has neither memory nor gguf"),
        ("missing", False, "model missing is not known"),
        ("chat", True, f"slot {slot.pk} on n1 is planned"),
    ]
    world.obey()
    world.round()
    assert world.waiting()[-1] == ("chat", False, ""), "it goes to the slot, which is ready"


def test_kept_warm_without_room_says_why(world: SlotWorld) -> None:
    """SLOT-7b the model says how many of its slots are missing."""
    world.model(memory=30, keep_warm=2)
    world.runner(memory=40)
    world.converge()
    model = Model.objects.get()
    assert (model.lacking, model.reason) == (1, "no GPU has 30Gi free; best n1/0 with 10Gi")
    Model.objects.update(keep_warm=1)
    world.round()
    model.refresh_from_db()
    assert (model.lacking, model.reason) == (0, "")


def test_eviction(world: SlotWorld) -> None:
    """SLOT-5b an idle slot drains, stops, and then its memory is another's; not before."""
    world.model("old", memory=30)
    world.model("new", memory=30)
    world.runner(memory=40)
    (old,) = world.ready("old")
    world.age(100)
    world.requests("new")
    world.round()
    new = Slot.objects.get(model_name="new")
    assert new.evicts == [old.pk]
    assert world.slots() == [("old", "n1", [0], "draining"), ("new", "n1", [0], "planned")]
    world.round()
    assert [slot.pk for slot in world.told()] == [old.pk], "nothing starts in memory that is not free"
    assert world.used() == [30]
    world.converge()
    assert world.slots() == [("new", "n1", [0], "ready")]
    all_is_well()


@pytest.mark.parametrize(
    "why",
    [
        pytest.param("young", id="idle for less than idleSeconds"),
        pytest.param("busy", id="runs a request"),
        pytest.param("kept", id="kept warm"),
        pytest.param("vain", id="it would not suffice"),
    ],
)
def test_who_may_not_be_evicted(world: SlotWorld, why: str) -> None:
    """SLOT-5b nobody is evicted who may not be, and nobody in vain."""
    world.model("old", memory=30, keep_warm=int(why == "kept"))
    world.model("new", memory=50 if why == "vain" else 30, gpu_counts=[1])
    world.runner(memory=40)
    (old,) = world.ready("old")
    if why != "young":
        world.age(100)
    if why == "busy":
        Slot.objects.update(active=1)
    world.requests("new")
    world.converge()
    old.refresh_from_db()
    assert old.state == State.READY
    assert world.waiting()[0][1] is False


def test_a_request_that_comes_meanwhile_saves_the_slot(world: SlotWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-5b a slot that got a request after the plan was made does not go, and the new one is not written."""
    world.model("old", memory=30)
    world.model("new", memory=30)
    world.runner(memory=40)
    (old,) = world.ready("old")
    world.age(100)
    world.requests("new")

    def read(now: datetime) -> RoundInput:
        round_input = read_round_input(now)
        Slot.objects.filter(pk=old.pk).update(last_used_at=database_now())
        return round_input

    monkeypatch.setattr(planning, "read_round_input", read)
    world.round()
    assert world.slots() == [("old", "n1", [0], "ready")]
    assert not Slot.objects.filter(model_name="new").exists()


def test_what_an_eviction_leaves_over(world: SlotWorld) -> None:
    """SLOT-5b later needs of the round have it, and wait for it."""
    world.model("old", memory=40)
    world.model("new", memory=20)
    world.runner(memory=40)
    world.ready("old")
    world.age(100)
    world.requests("new", 2)
    world.round()
    assert sorted(map(len, Slot.objects.filter(model_name="new").values_list("evicts", flat=True))) == [0, 1]
    world.converge()
    assert world.slots() == [("new", "n1", [0], "ready")] * 2
    all_is_well()


def test_a_slot_that_goes_keeps_nobody_from_memory_that_is_free(world: SlotWorld) -> None:
    """SLOT-5b a new slot has its memory at once where there is room for it beside one that finishes its requests."""
    world.model("old", memory=10)
    world.model("new", memory=20)
    world.runner(memory=40)
    (old,) = world.ready("old")
    Slot.objects.filter(pk=old.pk).update(active=1)
    Model.objects.get(name="old").delete()
    world.requests("new")
    world.round()
    assert world.slots() == [("old", "n1", [0], "draining"), ("new", "n1", [0], "planned")]
    assert world.used() == [30]
    assert [slot.model_name for slot in world.told()] == ["old", "new"]


@pytest.mark.parametrize(
    ("measured", "want"),
    [
        pytest.param([0, 0], [0], id="nothing unknown"),
        pytest.param([25, 0], [1], id="something unknown on GPU 0"),
        pytest.param([25, 15], [], id="on both, too much"),
    ],
)
def test_what_is_measured_beyond_claims(
    world: SlotWorld, settings: Settings, measured: list[int], want: list[int]
) -> None:
    """SLOT-8b memory that is in use beyond what known holders claim is not free."""
    world.model(memory=30, gpu_counts=[1])
    world.runner(gpus=2, memory=40)
    measure("n1", [used * GI for used in measured], url=settings.GPUPLANE_REDIS_URL)
    world.requests()
    world.converge()
    assert [minor for _, _, gpus, _ in world.slots() for minor in gpus] == want


def test_what_a_slot_uses_is_its_own(world: SlotWorld, settings: Settings) -> None:
    """SLOT-8b what slots and pods claim is no unknown use."""
    world.model(memory=20)
    world.runner(memory=40)
    world.ready()
    measure("n1", [20 * GI], url=settings.GPUPLANE_REDIS_URL)
    world.requests(count=2)
    world.converge()
    assert len(world.slots()) == 2


def test_as_many_slots_as_a_runner_is_told_of(world: SlotWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-4b SLOT-5b no more are planned than its frames list; then one that is idle goes, whatever memory is free."""
    for module in (round_input, runner_sessions):
        monkeypatch.setattr(module, "MOST_SLOTS", 3)
    world.model(memory=2, keep_warm=5)
    world.runner(memory=40)
    world.converge()
    assert len(world.slots()) == 3
    model = Model.objects.get()
    assert (model.lacking, model.reason) == (
        2,
        "each of these runners has as many slots as it may have, and none of them may be evicted now",
    )
    world.runner("n2", memory=1)
    world.round()
    assert Model.objects.get().reason == (
        "no GPU has 2Gi free; best n2/0 with 1Gi; other runners have as many slots as they may have"
    )
    Model.objects.update(keep_warm=2)
    world.model("new", memory=2)
    world.age(100)
    world.requests("new")
    world.round()
    new = Slot.objects.get(model_name="new")
    assert len(new.evicts) == 1
    told = {slot.id: slot.run for slot in runner_sessions.desired(node="n1", session=1, now=database_now())}
    assert (sorted(told.values()), new.pk in told) == ([False, True, True], False)
    world.converge()
    assert sorted(model for model, *_ in world.slots()) == ["chat", "chat", "new"]
    all_is_well()


def test_requests_of_a_lora_have_slots_of_their_own(world: SlotWorld) -> None:
    """SLOT-7b another LoRA is another slot, which does not count as kept warm."""
    world.model(keep_warm=1)
    world.runner(memory=40)
    world.requests()
    world.requests(lora="law")
    world.converge()
    assert sorted(Slot.objects.values_list("lora", flat=True)) == ["", "law"]


def test_ended_requests_need_nothing(world: SlotWorld) -> None:
    """SLOT-7b only what waits is a need."""
    world.model()
    world.runner()
    world.requests(count=3)
    Request.objects.update(state=RequestState.DONE)
    world.converge()
    assert world.slots() == []


def test_both_databases(ledger_db: TestDatabase, redis_url: str, settings: Settings) -> None:
    """SLOT-7b SLOT-5b the whole way with real commits: start, evict, start."""
    assert ledger_db
    settings.GPUPLANE_REDIS_URL = redis_url
    world = SlotWorld()
    world.model("old", memory=30)
    world.model("new", memory=15, memory_per_gpu={"2": [8 * GI, 9 * GI]}, gpu_counts=[2])
    world.runner(gpus=2, memory=40)
    world.ready("old", 2)
    world.age(100)
    world.requests("new", 3)
    world.converge()
    assert world.slots() == [("new", "n1", [0, 1], "ready")] * 3
    assert sum(world.used()) == 3 * 17
    all_is_well()
