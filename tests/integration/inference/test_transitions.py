"""The tables of states of slots and runners: every move that they name is made with its event, and no other one."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from pytest_django import Settings

from allocations.engine.slots.records import Runtime, SlotState
from audit.models import Event
from inference.choices import (
    EDGES,
    HOLDING,
    RUNNER_EDGES,
    ModelRuntime,
    RequestState,
    RunnerState,
    State,
)
from inference.models import Request, Runner, Slot
from inference.tasks import prune
from inference.transitions import runner_moved, slot_moved
from storage.clock import database_now
from tests.slots import SlotWorld

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "inference.md").read_text()


@pytest.fixture
def slot(world: SlotWorld) -> Slot:
    world.model()
    world.runner()
    (slot,) = world.ready()
    return slot


def test_the_plan_has_the_same_words() -> None:
    """SLOT-1b states and runtimes of rows are those of the plan."""
    assert [state.value for state in SlotState] == [str(value) for value in State.values]
    assert {runtime.value for runtime in Runtime} == set(ModelRuntime.values)


@pytest.mark.parametrize("before", State)
def test_moves_of_slots(slot: Slot, before: State) -> None:
    """SLOT-1b a move that the table names is made, once, with one event; every other one is refused."""
    now = database_now()
    for after in State:
        Slot.objects.update(state=before, stopped_at=now if before == State.STOPPED else None)
        slot.refresh_from_db()
        again, events = Slot.objects.get(), Event.objects.count()
        moved = slot_moved(slot, after, now=now, reason="a test")
        assert moved == (after in EDGES[before])
        assert not slot_moved(again, after, now=now), "of two who saw the same state one moves it"
        assert Slot.objects.get().state == (after if moved else before)
        assert Event.objects.count() - events == int(moved)
        if moved:
            assert Event.objects.latest("id").kind == f"slot.{after}"


def test_moves_of_runners(world: SlotWorld) -> None:
    """SLOT-1b the same of runners."""
    runner = world.runner()
    for before, after in itertools.product(RunnerState, RunnerState):
        Runner.objects.update(state=before)
        runner.refresh_from_db()
        assert runner_moved(runner, after, now=database_now(), reason="a test") == (after in RUNNER_EDGES[before])


def test_a_slot_with_a_request_is_not_idle(slot: Slot) -> None:
    """SLOT-5b a request that began since the slot was read keeps it."""
    now = database_now()
    Slot.objects.update(active=1)
    assert not slot_moved(slot, State.DRAINING, now=now, only_idle=True)
    Slot.objects.update(active=0, last_used_at=now)
    assert not slot_moved(slot, State.DRAINING, now=now, only_idle=True)
    slot.refresh_from_db()
    assert slot_moved(slot, State.DRAINING, now=now, only_idle=True)


def test_the_page_has_the_table() -> None:
    """SLOT-1b docs/inference.md names every move of a slot."""
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE)
    named = {(before, after) for before, after, _ in rows}
    assert named == {(before.value, after.value) for before, some in EDGES.items() for after in some}


def test_old_rows_go(slot: Slot, world: SlotWorld, settings: Settings) -> None:
    """SLOT-1b ended requests after two days, stopped slots with the audit trail; nothing that is there still."""
    Slot.objects.update(state=State.STOPPED, stopped_at=database_now())
    world.requests()
    old, new, waiting = Request.objects.first(), world.requests()[0], world.requests()[0]
    assert old is not None
    for request, days in ((old, 3), (new, 1)):
        at = database_now().replace(year=database_now().year - (days > 2))
        Request.objects.filter(pk=request.pk).update(state=RequestState.DONE, ended_at=at)
    prune()
    assert not Request.objects.filter(pk=old.pk).exists()
    assert Request.objects.filter(pk__in=[new.pk, waiting.pk]).count() == 2
    assert Slot.objects.filter(pk=slot.pk).exists()
    world.age(86_400 * (settings.GPUPLANE_AUDIT_DAYS + 1))
    prune()
    assert not Slot.objects.filter(pk=slot.pk).exists()
    assert State.STOPPED not in HOLDING
