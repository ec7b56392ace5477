"""The worker of the slots' loop killed between any two of its steps: the next worker ends where it would have ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from allocations.choices import LIVE
from allocations.models import Allocation
from inference.choices import State
from inference.models import Model, Slot
from tests.deaths import Deaths, Died
from tests.integration.cluster.comparing import differences, given_twice
from tests.integration.cluster.slots.conftest import SlotsInCluster
from tests.integration.inference.deaths import SlotDeaths
from tests.slots import problems

START = (
    "planned, with its eviction",
    "the evicted one's memory releasing",
    "its lease gone",
    "its memory released",
    "the hold, not yet committed",
    "held",
    "reserved",
    "the lease",
    "bound",
    "its GPUs noted",
)
STOP = ("draining", "releasing", "lease gone", "released")


def lived(slots: SlotsInCluster, deaths: Deaths, steps: int) -> bool:
    """Rounds of one worker until it dies, with runners that obey all along; whether it died."""
    deaths.arm(steps)
    for _ in range(4):
        try:
            slots.round()
        except Died:
            return True
        slots.obey()
    return False


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Deaths:
    return SlotDeaths(monkeypatch)


def evicting(slots: SlotsInCluster) -> None:
    """An idle slot stands where another one is to be."""
    slots.model("old", memory=30)
    slots.model("new", memory=30)
    slots.runner_node(memory=40)
    slots.ready("old")
    slots.age(100)
    slots.requests("new")


def stopping(slots: SlotsInCluster) -> None:
    """The model of a ready slot is deleted."""
    slots.model()
    slots.runner_node(memory=40)
    slots.ready()
    Model.objects.all().delete()


@pytest.mark.parametrize(
    ("scene", "steps", "want"),
    [
        *(
            pytest.param(evicting, number, [("new", "n1", [0], "ready")], id=f"start, after {what}")
            for number, what in enumerate(START, start=1)
        ),
        *(pytest.param(stopping, number, [], id=f"stop, after {what}") for number, what in enumerate(STOP, start=1)),
    ],
)
def test_killed_between_two_steps(
    slots: SlotsInCluster,
    deaths: Deaths,
    scene: Callable[[SlotsInCluster], None],
    steps: int,
    want: list[tuple[str, str, list[int], str]],
) -> None:
    """SLOT-2 whatever was begun is completed, once; nothing is held that no slot has, nothing runs without memory."""
    scene(slots)
    assert lived(slots, deaths, steps), "the worker died"
    assert given_twice(slots.cluster.server) == []
    deaths.rise()
    for later in (0, 120):
        slots.cluster.collect_garbage(later=later)
        slots.converge()
    assert slots.slots() == want
    assert slots.sharers() == len(want) == Allocation.objects.filter(state__in=LIVE).count()
    assert problems() == []
    assert differences(slots.cluster.server) == []


@pytest.mark.parametrize(
    ("scene", "steps"),
    [pytest.param(evicting, len(START) + 1, id="start"), pytest.param(stopping, len(STOP) + 1, id="stop")],
)
def test_there_is_no_further_step(
    slots: SlotsInCluster, deaths: Deaths, scene: Callable[[SlotsInCluster], None], steps: int
) -> None:
    """The table above is whole: one step more, and the worker lives."""
    scene(slots)
    assert not lived(slots, deaths, steps)
    assert Slot.objects.filter(state=State.PLANNED).count() == 0
