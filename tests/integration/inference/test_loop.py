"""The loop as tasks run it, and the count of requests."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from pytest_django import Settings

from inference import loop, tasks
from inference.activity import recount_active
from inference.choices import RequestState, RunnerState, State
from inference.models import Model, Request, Runner, Slot
from inference.rounds.run import Rounds, is_in_use
from inference.wake import wake_slots
from kube.watch_loop import Followed
from nodes.live import agent_liveness
from storage import leader_lock
from storage.clock import StepClock, database_now
from storage.redis_client import Purpose, client
from tests.databases import TestDatabase
from tests.slots import SlotWorld, problems


@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
def test_the_loop_is_woken(
    ledger_db: TestDatabase, redis_url: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLOT-2 at once when something changes; a second worker leaves it to the first."""
    assert ledger_db
    settings.GPUPLANE_REDIS_URL = redis_url
    monkeypatch.setattr(loop, "MOST_SECONDS", 600.0)
    monkeypatch.setattr(loop, "BUSY_SECONDS", 600.0)
    world = SlotWorld()
    world.model()
    world.runner()
    begun, rounds = threading.Event(), Rounds.run

    def run(self: Rounds) -> object:
        found = rounds(self)
        begun.set()
        return found

    monkeypatch.setattr(Rounds, "run", run)
    ended: list[Followed] = []

    thread = threading.Thread(target=lambda: ended.append(loop.run_slots(seconds=600)))
    thread.start()
    try:
        assert begun.wait(30)
        assert loop.run_slots(seconds=1) is Followed.ELSEWHERE
        begun.clear()
        world.requests()
        wake_slots()
        assert begun.wait(30), "nothing else would have woken it for ten minutes"
        assert Slot.objects.exists()
    finally:
        leader_lock.stop_all()
        thread.join(30)
    assert ended == [Followed.STOPPED]


@pytest.mark.parametrize("in_use", [False, True])
def test_a_turn(db: None, redis_url: str, settings: Settings, in_use: bool) -> None:
    """SLOT-2 one turn ends by itself, with or without anything to do."""
    settings.GPUPLANE_REDIS_URL = redis_url
    if in_use:
        SlotWorld().model()
    assert loop.run_slots(seconds=0.3) is Followed.DONE


@pytest.mark.parametrize(
    ("active", "running", "corrected"),
    [
        pytest.param(0, 0, False, id="idle"),
        pytest.param(2, 2, False, id="as counted"),
        pytest.param(3, 1, True, id="a gateway died with two"),
        pytest.param(0, 1, True, id="one was not counted"),
    ],
)
def test_requests_are_counted_anew(world: SlotWorld, active: int, running: int, corrected: bool) -> None:
    """SLOT-2 a count that a killed process left is put right; the slot counts as used until then."""
    world.model(parallel=4)
    world.runner()
    (slot,) = world.ready()
    world.age(100)
    Slot.objects.update(active=active)
    for request in world.requests(count=running):
        Request.objects.filter(pk=request.pk).update(state=RequestState.RUNNING, slot=slot)
    assert recount_active(now=database_now()) == ([slot.pk] if corrected else [])
    slot.refresh_from_db()
    assert slot.active == running
    assert (slot.last_used_at is not None) == corrected
    tasks.recount_active()
    assert Slot.objects.get().active == running


@pytest.mark.parametrize(
    ("marks", "want"),
    [
        pytest.param({}, RunnerState.FAILED, id="no agents: by silence alone"),
        pytest.param({"web": (-300, -1)}, RunnerState.FAILED, id="somebody has listened all along"),
        pytest.param({"web": (-5, -1)}, RunnerState.CONNECTED, id="somebody listens since five seconds"),
        pytest.param({"web": (-300, -30)}, RunnerState.CONNECTED, id="nobody listens"),
    ],
)
def test_the_task_of_silence(
    world: SlotWorld, settings: Settings, marks: dict[str, tuple[float, float]], want: RunnerState
) -> None:
    """SLOT-2 runners are silent only while somebody could have heard them."""
    world.runner()
    Runner.objects.update(seen_at=database_now() - timedelta(seconds=200))
    now = database_now().timestamp()
    with client(settings.GPUPLANE_REDIS_URL, Purpose.WORK) as connection:
        for name, (started, last) in marks.items():
            mark = agent_liveness.listener_mark(started=now + started, last=now + last)
            connection.hset(agent_liveness.LISTENERS_KEY, name, mark)
    tasks.notice_silent_runners()
    assert Runner.objects.get().state == want


def test_a_clock_that_was_set_forward_fails_no_runner(world: SlotWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLOT-2 its next report comes in seconds; one that says nothing is silent as long after the step as ever."""
    world.model()
    world.runner()
    (slot,) = world.ready()
    began, ahead, monotonic = database_now(), [0.0], [0.0]
    clock = StepClock(read=lambda: began + timedelta(seconds=ahead[0] + monotonic[0]), monotonic=lambda: monotonic[0])
    monkeypatch.setattr(tasks, "CLOCK", clock)
    tasks.notice_silent_runners()
    ahead[0] = 3600.0
    for passed, want in ((0, "connected"), (14, "connected"), (16, "silent"), (61, "failed")):
        monotonic[0] = 5.0 + passed
        tasks.notice_silent_runners()
        assert Runner.objects.get().state == want
    slot.refresh_from_db()
    assert slot.state == State.FAILED


@pytest.mark.django_db(transaction=True)
def test_memory_of_the_last_slot_after_a_pause_of_the_workers(world: SlotWorld) -> None:
    """SLOT-2 its model is gone and it has stopped for long, but nobody was there to return its memory."""
    world.runner(gpus=1, memory=40)
    world.model()
    (slot,) = world.ready()
    Model.objects.all().delete()
    world.round()
    world.obey()
    slot.refresh_from_db()
    assert slot.state == State.STOPPED
    world.age(11 * 60, slot)
    assert is_in_use()
    world.round()
    assert (world.used(), problems(), is_in_use()) == ([0], [], False)
