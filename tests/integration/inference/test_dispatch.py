"""Rounds of requests: which request gets which slot, what is given back, and what becomes of gateways that ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from inference import tasks
from inference.choices import REQUEST_EDGES, RequestState, RunnerState, State
from inference.dispatch import gateways
from inference.dispatch.records import Place, Recheck, Step, StepResult
from inference.models import Gateway, Model, Request, Runner, Slot, Turn
from storage.clock import StepClock, database_now
from tests.gateway import LENGTH, Gateways, miscounted, ready_slots, said
from tests.slots import SlotWorld


@pytest.fixture
def world(db: None, redis_url: str, settings: Any) -> SlotWorld:
    settings.GPUPLANE_REDIS_URL = redis_url
    world = SlotWorld()
    world.runner(gpus=2, memory=80)
    return world


@pytest.fixture
def desk() -> Gateways:
    return Gateways()


def test_a_slot_never_has_more_than_parallel(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-3b SLOT-9 the third of two at once waits, and gets the place of the one that ends."""
    world.model(parallel=2)
    (slot,) = ready_slots(world, "127.0.0.1:1")
    assert desk.arrive("a", "b", "c") == [slot.pk, slot.pk, StepResult.WAITS]
    assert Slot.objects.get().active == 2
    assert desk.end("a", tokens=7) == ["c"]
    assert desk.states() == {"a": "done", "b": "running", "c": "running"}
    done = Request.objects.get(pk=desk.ids["a"])
    assert (done.tokens, done.ended_at is not None, done.slot_id) == (7, True, slot.pk)
    assert miscounted() == []


@pytest.mark.parametrize(
    ("active", "want"),
    [
        pytest.param([1, 2], 1, id="the busiest with room"),
        pytest.param([3, 0], 1, id="not one that is full"),
        pytest.param([1, 1], 0, id="of equals the one used last"),
    ],
)
def test_which_slot_serves(world: SlotWorld, desk: Gateways, active: list[int], want: int) -> None:
    """SLOT-3b"""
    world.model(parallel=3)
    slots = ready_slots(world, "127.0.0.1:1", "127.0.0.1:2")
    now = database_now()
    for place, (slot, count) in enumerate(zip(slots, active, strict=True)):
        used = now - timedelta(milliseconds=100 * (1 + place))
        Slot.objects.filter(pk=slot.pk).update(active=count, last_used_at=used, ready_at=now - timedelta(hours=1))
    assert desk.arrive("a") == [slots[want].pk]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"state": State.DRAINING, "draining_at": database_now}, id="it drains"),
        pytest.param({"lora": "other"}, id="it has another LoRA"),
        pytest.param({"runner": RunnerState.SILENT}, id="its runner is silent"),
        pytest.param({"launch": {"runtime": "vllm", "parallel": 4}}, id="it was started by another runtime"),
    ],
)
def test_slots_that_serve_nobody(world: SlotWorld, desk: Gateways, change: dict[str, Any]) -> None:
    """SLOT-3b only what is ready, has the LoRA and the runtime, and is heard of."""
    world.model()
    ready_slots(world, "127.0.0.1:1")
    if "runner" in change:
        Runner.objects.update(state=change["runner"])
    else:
        Slot.objects.update(**{name: value() if callable(value) else value for name, value in change.items()})
    assert desk.arrive("a") == [StepResult.WAITS]
    assert Slot.objects.get().active == 0


def test_a_slot_that_is_a_pod_serves(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-3b it has no runner that could be silent."""
    world.model(parallel=2)
    (slot,) = ready_slots(world, "10.0.0.7:8000")
    Slot.objects.update(runner=None)
    assert desk.arrive("a") == [StepResult.WAITS]
    Slot.objects.update(pod_name="slot-a")
    assert desk.arrive("b") == [slot.pk]


def test_a_lora_has_slots_of_its_own(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-3b"""
    world.model()
    (slot,) = ready_slots(world, "127.0.0.1:1", lora="legal")
    assert desk.arrive("a") == [StepResult.WAITS]
    assert desk.arrive("b", lora="legal") == [slot.pk]


@pytest.mark.parametrize(
    ("waiting", "want"),
    [
        pytest.param([("a", "t1", 0), ("b", "t1", 0), ("c", "t1", 0)], "abc", id="one token: as they came"),
        pytest.param([("a", "t1", 0), ("b", "t1", 0), ("c", "t2", 0)], "acb", id="tokens take turns"),
        pytest.param([("a", "t1", 0), ("b", "t1", 5), ("c", "t2", 0)], "bca", id="the higher priority first"),
        pytest.param(
            [("a", "t1", 0), ("b", "t1", 0), ("c", "t1", 0), ("d", "t2", 0), ("e", "t3", 0), ("f", "t2", 0)],
            "adebfc",
            id="three tokens",
        ),
    ],
)
def test_the_order_of_those_that_wait(
    world: SlotWorld, desk: Gateways, waiting: list[tuple[str, str, int]], want: str
) -> None:
    """SLOT-9 by priority, and within it round robin of API tokens, whatever the number of requests of each."""
    world.model(parallel=1)
    ready_slots(world, "127.0.0.1:1")
    desk.arrive("first")
    for name, token, priority in waiting:
        assert desk.arrive(name, token=token, priority=priority) == [StepResult.WAITS]
    served, now = "", "first"
    while started := desk.end(now):
        (now,) = started
        served += now
    assert served == want
    assert miscounted() == []


def test_who_arrives_does_not_overtake(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-9 a token that asks again and again has one turn between two of a token that waits."""
    world.model(parallel=1)
    ready_slots(world, "127.0.0.1:1")
    desk.arrive("b0", token="b")
    desk.arrive("b1", "b2", token="b")
    order, now = [], "b0"
    for number in range(4):
        done = desk.round([desk.ending(now), desk.arrival(f"a{number}", token="a")])
        (now,) = [
            *[desk.name(one.request) for one in done.started],
            *[f"a{number}" for outcome in done.outcomes[1:] if outcome is not StepResult.WAITS],
        ]
        order.append(now)
    assert order[:4] in (["a0", "b1", "a1", "b2"], ["b1", "a0", "b2", "a1"])


@pytest.mark.parametrize(
    ("length", "want"),
    [
        pytest.param(0, [StepResult.QUEUE_FULL] * 3, id="nobody may wait"),
        pytest.param(2, [StepResult.WAITS, StepResult.WAITS, StepResult.QUEUE_FULL], id="two may wait"),
    ],
)
def test_the_queue_of_a_model_is_bounded(world: SlotWorld, desk: Gateways, length: int, want: list[StepResult]) -> None:
    """SLOT-9 others are refused, and leave no row; the queue of another model is its own."""
    world.model(keep_warm=0)
    world.model("other")
    assert [desk.round([desk.arrival(name)], length=length).outcomes[0] for name in "abc"] == want
    assert desk.round([desk.arrival("d", "other")], length=1).outcomes == [StepResult.WAITS]
    assert Request.objects.filter(model_name="chat").count() == want.count(StepResult.WAITS)


def test_steps_of_one_moment_are_one_round(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-9 an ending and an arrival of one round share the place; who came and left in it is over."""
    world.model(parallel=1)
    (slot,) = ready_slots(world, "127.0.0.1:1")
    desk.arrive("a")
    steps: list[Step] = [desk.arrival("b"), desk.ending("a"), desk.arrival("c"), desk.arrival("d", "nobody")]
    steps.append(desk.ending("c", state=RequestState.CANCELLED))
    outcomes = [said(one) for one in desk.round(steps).outcomes]
    assert outcomes == [slot.pk, StepResult.OVER, StepResult.OVER, StepResult.UNKNOWN_MODEL, StepResult.OVER]
    assert desk.states() == {"a": "done", "b": "running", "c": "cancelled"}
    assert miscounted() == []


def test_a_request_that_its_slot_did_not_take_goes_elsewhere(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-9 at once where there is another slot, back to the same one only after a while."""
    world.model(parallel=2)
    slots = {slot.pk for slot in ready_slots(world, "127.0.0.1:1", "127.0.0.1:2")}
    (first,) = desk.arrive("a")
    (second,) = [said(one) for one in desk.round([desk.again("a", first)]).outcomes]
    assert {first, second} == slots
    assert desk.round([desk.again("a", second, first)]).outcomes == [StepResult.WAITS]
    assert miscounted() == []
    row = Request.objects.get(pk=desk.ids["a"])
    assert (row.state, row.reason, row.slot_id, row.started_at) == ("waiting", "refused", None, None)
    assert desk.round([Recheck(model="chat")]).started == []
    row.tried = {slot: at - 10 for slot, at in row.tried.items()}
    row.save(update_fields=["tried"])
    (again,) = desk.round([Recheck(model="chat")]).started
    assert again.request == row.pk


def test_what_is_over_stays_over(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-9 a second ending, and a slot's refusal after it, give nothing back twice."""
    world.model(parallel=2)
    (slot,) = ready_slots(world, "127.0.0.1:1")
    desk.arrive("a", "b")
    for step in (desk.ending("a"), desk.ending("a", state=RequestState.FAILED), desk.again("a", slot.pk)):
        assert desk.round([step]).outcomes == [StepResult.OVER]
    assert desk.states() == {"a": "done", "b": "running"}
    assert miscounted() == []


def _again_or_over(desk: Gateways, after: RequestState, slot: str) -> Step:
    return desk.again("a", slot) if after == RequestState.WAITING else desk.ending("a", state=after)


@pytest.mark.parametrize("before", RequestState)
@pytest.mark.parametrize("after", [state for state in RequestState if state != RequestState.RUNNING])
def test_every_edge_of_a_request(world: SlotWorld, desk: Gateways, before: RequestState, after: RequestState) -> None:
    """SLOT-1b it moves along an edge of the table or stays; what is over stays as it ended, and its place is free."""
    world.model(parallel=1)
    (slot,) = ready_slots(world, "127.0.0.1:1")
    desk.arrive("a")
    if before != RequestState.RUNNING:
        desk.round([_again_or_over(desk, before, slot.pk)])
    if before == RequestState.WAITING:  # its slot refused it, so it is not given there again at once
        assert desk.states() == {"a": "waiting"}
    desk.round([_again_or_over(desk, after, slot.pk)])
    assert desk.states() == {"a": after if after in REQUEST_EDGES[before] else before}
    assert miscounted() == []


def test_a_gateway_that_was_killed_gives_its_places_back(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-9 what it served fails once it is silent for long, and who waits elsewhere gets the places."""
    world.model(parallel=1)
    ready_slots(world, "127.0.0.1:1")
    desk.arrive("a", "b", gateway="killed")
    desk.arrive("c", gateway="alive")
    now = database_now()
    seen = now - timedelta(seconds=gateways.SILENT_SECONDS + 1)
    assert gateways.end_silent(now=now) == 0
    Gateway.objects.filter(pk="killed").update(seen_at=seen)
    assert gateways.end_silent(now=now) == 1
    (started,) = gateways.fail_orphans(now=now, queue_length=LENGTH)
    assert (started.request, started.gateway) == (desk.ids["c"], "alive")
    assert desk.states() == {"a": "failed", "b": "failed", "c": "running"}
    assert not gateways.renew("killed", now=now)
    assert gateways.renew("alive", now=now)
    assert miscounted() == []


def test_a_lost_message_costs_one_beat(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-2 the task gives places to requests that wait beside a slot with room."""
    world.model(parallel=1)
    desk.arrive("a")
    slot = world.ready("chat")[0]
    assert desk.states() == {"a": "waiting"}
    (started,) = gateways.dispatch_waiting(now=database_now(), queue_length=LENGTH)
    assert (started.request, started.place.slot) == (desk.ids["a"], slot.pk)


def test_the_task(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-2 SLOT-9 one beat ends a silent gateway and gives its place to who waits; a second one changes nothing."""
    world.model(parallel=1)
    ready_slots(world, "127.0.0.1:1")
    desk.arrive("a", gateway="killed")
    desk.arrive("b", gateway="alive")
    seen = database_now() - timedelta(seconds=gateways.SILENT_SECONDS + 1)
    Gateway.objects.filter(pk="killed").update(seen_at=seen)
    for _ in range(2):
        tasks.dispatch_requests()
        assert desk.states() == {"a": "failed", "b": "running"}
    assert miscounted() == []


def test_a_clock_that_was_set_forward_ends_no_gateway(
    world: SlotWorld, desk: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-9 those that live renew their rows in seconds; one that is dead ends as long after the step as ever."""
    world.model(parallel=1)
    ready_slots(world, "127.0.0.1:1")
    desk.arrive("a", gateway="dead")
    began, ahead, monotonic = database_now(), [0.0], [0.0]
    clock = StepClock(read=lambda: began + timedelta(seconds=ahead[0] + monotonic[0]), monotonic=lambda: monotonic[0])
    monkeypatch.setattr(tasks, "CLOCK", clock)
    tasks.dispatch_requests()
    ahead[0] = 3600.0
    for passed, want in ((0.0, "running"), (gateways.SILENT_SECONDS - 1, "running"), (31.0, "failed")):
        monotonic[0] = 5.0 + passed
        tasks.dispatch_requests()
        assert desk.states() == {"a": want}
    assert miscounted() == []


@pytest.mark.parametrize(
    ("fields", "lora", "want"),
    [
        pytest.param({}, "", "chat", id="the model's name"),
        pytest.param({}, "legal", "legal", id="the LoRA's"),
        pytest.param({"runtime": "ollama", "source": "qwen3:8b"}, "", "qwen3:8b", id="Ollama's own"),
    ],
)
def test_what_the_runtime_is_asked_for(
    world: SlotWorld, desk: Gateways, fields: dict[str, Any], lora: str, want: str
) -> None:
    """SLOT-9"""
    world.model(**{"runtime": "simulated", **fields})
    ready_slots(world, "127.0.0.1:1", lora=lora)
    (place,) = desk.round([desk.arrival("a", lora=lora)]).outcomes
    assert isinstance(place, Place)
    assert (place.address, place.model_name) == ("127.0.0.1:1", want)


def test_old_rows_go(world: SlotWorld, desk: Gateways) -> None:
    """Rows of gateways that ended, and turns, are kept for a day."""
    now = database_now()
    long_ago = now - timedelta(seconds=gateways.KEPT_SECONDS + 1)
    desk.register("alive")
    for name, ended in (("old", long_ago), ("new", now)):
        Gateway.objects.create(pk=name, started_at=long_ago, seen_at=long_ago, ended_at=ended)
        Turn.objects.create(model_name="chat", token=name, served_at=ended)
    assert gateways.prune(now=now) == 2
    assert set(Gateway.objects.values_list("pk", flat=True)) == {"alive", "new"}
    assert [turn.token for turn in Turn.objects.all()] == ["new"]


def test_a_model_that_was_deleted_lets_its_requests_end(world: SlotWorld, desk: Gateways) -> None:
    """SLOT-2 nothing is given any more, and what ran gives its place back."""
    world.model(parallel=1)
    (slot,) = ready_slots(world, "127.0.0.1:1")
    desk.arrive("a", "b")
    Model.objects.all().delete()
    assert desk.arrive("c") == [StepResult.UNKNOWN_MODEL]
    assert desk.end("a") == []
    assert Slot.objects.get(pk=slot.pk).active == 0
