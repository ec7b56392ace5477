"""What runners say and are told, over the tables: which session counts, and where each report moves a slot."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from pytest_django import Settings

from access.errors import NotFound
from inference.choices import RunnerState, State
from inference.models import Model, Runner, Slot
from inference.runner_sessions import NO_ROOM, Superseded, Taken, desired, offer_put, report_put, session_begin
from nodes.models import Node
from runner.protocol import DESIRED_LIMIT, Desired, Gpu, Hello, Offer, SlotIs, SlotReport, encode
from storage.clock import database_now
from tests import ledger_truth
from tests.runner_machine import moment
from tests.slots import GI, SlotWorld, problems


@pytest.fixture
def world(db: None, redis_url: str, settings: Settings) -> SlotWorld:
    settings.GPUPLANE_REDIS_URL = redis_url
    settings.GPUPLANE_SLOT_DRAIN_SECONDS = 60
    return SlotWorld()


def hello(node: str = "n1", instance: str = "machine-1") -> Hello:
    return Hello("boot-1", 1, 1.0, node, instance, "1", "10.0.0.1")


def begin(node: str = "n1", instance: str = "machine-1", *, seconds: float = 0) -> int:
    return session_begin(hello=hello(node, instance), now=moment(seconds))


def planned(world: SlotWorld, **model: Any) -> Slot:
    """A slot whose memory is bound, and that its runner has not heard of."""
    world.model(keep_warm=1, **model)
    world.runner(gpus=2)
    world.round()
    return Slot.objects.get()


def report(*slots: SlotReport, session: int = 1) -> None:
    report_put(node="n1", session=session, slots=slots, now=database_now())


def in_state(slot: Slot, state: State, **fields: Any) -> None:
    """Put the slot there, as its runner or the loop would have."""
    now = database_now()
    times = {State.STARTING: "starting_at", State.READY: "ready_at", State.DRAINING: "draining_at"}
    values = {times[state]: now} if state in times else {"failed_at": now} if state == State.FAILED else {}
    Slot.objects.filter(pk=slot.pk).update(state=state, **{"address": "h:1", **values, **fields})


def said(state: SlotIs, address: str = "", reason: str = "") -> SlotReport:
    """What a runner says of the slot of a test."""
    return SlotReport("s", state, address, reason)


S = State
FAILED_WHY = "its process ended with status 1: no"


@pytest.mark.parametrize(
    ("before", "told", "want", "want_reason"),
    [
        pytest.param(S.PLANNED, said("starting"), S.STARTING, "", id="it starts"),
        pytest.param(S.PLANNED, said("ready", "10.0.0.1:7"), S.READY, "", id="it was quick"),
        pytest.param(S.PLANNED, None, S.PLANNED, "", id="it was not told yet"),
        pytest.param(S.PLANNED, said("failed", "", FAILED_WHY), S.FAILED, FAILED_WHY, id="it died at once"),
        pytest.param(S.STARTING, said("starting"), S.STARTING, "", id="it still starts"),
        pytest.param(S.STARTING, said("ready", "10.0.0.1:7"), S.READY, "", id="it is ready"),
        pytest.param(S.STARTING, said("stopping", "", "it was not ready"), S.FAILED, "it was not ready", id="given up"),
        pytest.param(S.STARTING, None, S.FAILED, "its runner does not have it any more", id="lost at its start"),
        pytest.param(S.READY, said("starting"), S.READY, "", id="found again, and asked whether it is ready"),
        pytest.param(S.READY, said("ready", "10.0.0.2:8"), S.READY, "", id="at another address"),
        pytest.param(S.READY, said("stopping", "", "it did not answer"), S.FAILED, "it did not answer", id="hangs"),
        pytest.param(S.READY, said("stopped"), S.FAILED, "its runner says that it is stopped", id="it was stopped"),
        pytest.param(S.READY, None, S.FAILED, "its runner does not have it any more", id="lost"),
        pytest.param(S.DRAINING, said("ready", "10.0.0.1:7"), S.DRAINING, "", id="it was not told to end yet"),
        pytest.param(S.DRAINING, said("stopping"), S.DRAINING, "", id="its process ends"),
        pytest.param(S.DRAINING, said("stopped"), S.STOPPED, "", id="its process is gone"),
        pytest.param(S.DRAINING, said("failed", "", FAILED_WHY), S.STOPPED, FAILED_WHY, id="it died meanwhile"),
        pytest.param(S.DRAINING, None, S.DRAINING, "", id="nothing is said of it"),
        pytest.param(S.FAILED, said("stopping"), S.FAILED, "", id="it has failed, and ends"),
        pytest.param(S.FAILED, said("ready", "10.0.0.1:7"), S.FAILED, "", id="it has failed and serves"),
        pytest.param(S.FAILED, said("stopped"), S.STOPPED, "", id="it has failed, and is gone"),
    ],
)
def test_where_a_report_moves_a_slot(
    world: SlotWorld, before: State, told: SlotReport | None, want: State, want_reason: str
) -> None:
    """SLOT-2 SLOT-5b every state of a slot with everything that its runner may say; its memory stays meanwhile."""
    slot = planned(world)
    if before != S.PLANNED:
        in_state(slot, before)
    reports = [] if told is None else [msgspec.structs.replace(told, id=slot.pk)]
    report(*reports)
    slot.refresh_from_db()
    assert (slot.state, slot.reason) == (want, want_reason)
    assert world.used() == [10, 0]
    if told is not None and told.address and want == S.READY:
        assert slot.address == told.address
    report(*reports)
    assert ledger_truth.problems() == []


def test_what_a_runner_is_told(world: SlotWorld) -> None:
    """SLOT-4c the slots whose memory is bound, with their GPUs as the ledger gave them; those that end come first."""
    world.model("big", memory=60, runtime="vllm", keep_warm=1, args=["--x"], source="org/big", context_length=5)
    world.model("small", memory=5, keep_warm=1, source="small:1b")
    world.runner(gpus=2, memory=80)
    world.round()
    big, small = Slot.objects.get(model_name="big"), Slot.objects.get(model_name="small")
    told = {slot.id: slot for slot in desired(node="n1", session=1, now=database_now())}
    assert set(told) == {big.pk, small.pk}
    found = told[big.pk]
    uuid = Node.objects.get().devices.get(minor=big.gpus[0]).uuid
    assert found.gpus == [Gpu(big.gpus[0], uuid, 60 * GI, 80 * GI)]
    want = ("big", "vllm", "org/big", ["--x"], 5, True)
    assert (found.model, found.runtime, found.source, found.args, found.context_length, found.run) == want
    in_state(small, S.DRAINING)
    told_then = desired(node="n1", session=1, now=database_now())
    assert [(slot.id, slot.run) for slot in told_then] == [(small.pk, False), (big.pk, True)]


def test_a_slot_without_its_memory_is_not_told(world: SlotWorld) -> None:
    """SLOT-1c what waits for an eviction is not started, and what a runner says of it changes nothing."""
    slot = planned(world)
    allocation = slot.allocation
    Slot.objects.filter(pk=slot.pk).update(allocation=None)
    assert desired(node="n1", session=1, now=database_now()) == []
    report(SlotReport(slot.pk, "ready", "10.0.0.1:7"))
    slot.refresh_from_db()
    assert slot.state == S.PLANNED
    Slot.objects.filter(pk=slot.pk).update(allocation=allocation)
    assert [one.run for one in desired(node="n1", session=1, now=database_now())] == [True]


@pytest.mark.parametrize(
    ("active", "seconds", "want"),
    [
        pytest.param(0, 0, False, id="idle"),
        pytest.param(2, 0, True, id="with requests"),
        pytest.param(2, 61, False, id="with requests, for too long"),
    ],
)
def test_a_draining_slot_finishes_its_requests(world: SlotWorld, active: int, seconds: int, want: bool) -> None:
    """SLOT-5b"""
    slot = planned(world)
    in_state(slot, S.DRAINING, active=active, draining_at=moment(-seconds))
    told = desired(node="n1", session=1, now=database_now())
    assert [(one.id, one.run) for one in told] == [(slot.pk, want)]


def test_arguments_that_leave_the_frame_no_room(world: SlotWorld) -> None:
    """SLOT-2 the slot that came last fails and says why; the runner is sent what it runs, in a frame that it takes."""
    world.model(args=["x" * 4096] * 64, keep_warm=3)
    world.runner(gpus=4)
    world.round()
    Slot.objects.update(state=S.STARTING, starting_at=database_now())
    first = {slot.pk for slot in Slot.objects.all()}
    Model.objects.update(keep_warm=4)
    world.round()
    last = Slot.objects.exclude(pk__in=first).get()
    Slot.objects.filter(pk=last.pk).update(planned_at=moment(-60))
    for want_run in ({*first}, {*first}):
        told = desired(node="n1", session=1, now=database_now())
        assert len(encode(Desired(told))) <= DESIRED_LIMIT
        assert {one.id for one in told if one.run} == want_run
    last.refresh_from_db()
    assert (last.state, last.reason) == (S.FAILED, NO_ROOM)
    report(*(SlotReport(slot, "starting") for slot in first), SlotReport(last.pk, "stopped"))
    assert set(Slot.objects.exclude(pk=last.pk).values_list("state", flat=True)) == {S.STARTING}


def test_sessions(world: SlotWorld) -> None:
    """SLOT-2 the newer session of a program counts, and a node's second program waits until the first is silent."""
    with pytest.raises(NotFound):
        begin()
    world.node()
    assert begin() == 1
    assert begin() == 2
    with pytest.raises(Superseded):
        report(session=1)
    with pytest.raises(Superseded):
        desired(node="n1", session=1, now=database_now())
    with pytest.raises(Superseded):
        offer_put(node="n1", session=1, offer=Offer("b", 1, 1.0, ["vllm"]), now=database_now())
    with pytest.raises(Taken, match="another runner of n1 is connected"):
        begin(instance="machine-2", seconds=14)
    report(session=2)
    assert begin(instance="machine-2", seconds=16) == 3
    with pytest.raises(Superseded):
        report(session=2)
    runner = Runner.objects.get()
    assert (runner.state, runner.address, runner.version) == (RunnerState.CONNECTED, "10.0.0.1", "1")


def test_offers(world: SlotWorld) -> None:
    """SLOT-1c"""
    world.node()
    begin()
    offer_put(node="n1", session=1, offer=Offer("b", 1, 1.0, ["ollama"], ["qwen3:8b"]), now=database_now())
    runner = Runner.objects.get()
    assert (runner.runtimes, runner.models_on_disk) == (["ollama"], ["qwen3:8b"])


def test_a_runner_that_was_silent(world: SlotWorld) -> None:
    """SLOT-2 the report of one that was taken for silent connects it, and the next look finds it heard."""
    world.node()
    begin()
    Runner.objects.update(state=RunnerState.SILENT, seen_at=moment(-30))
    report()
    runner = Runner.objects.get()
    assert runner.state == RunnerState.CONNECTED
    assert database_now() - runner.seen_at < timedelta(seconds=10)


def test_slots_of_another_runner(world: SlotWorld) -> None:
    """SLOT-2 a runner says nothing about slots of another one."""
    slot = planned(world)
    in_state(slot, S.READY)
    world.runner("n2")
    report_put(node="n2", session=1, slots=[SlotReport(slot.pk, "stopped")], now=database_now())
    slot.refresh_from_db()
    assert slot.state == S.READY
    assert Model.objects.count() == 1
    assert problems() == []
