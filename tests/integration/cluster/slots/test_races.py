"""Slots and pods at the same memory at the same time, and two workers of the loop: the memory has one holder, a need
one slot.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from allocations.choices import LIVE
from allocations.errors import MovedOn
from allocations.models import Allocation
from inference.choices import RunnerState, State
from inference.models import Slot
from inference.rounds.run import Rounds
from inference.runner_liveness import notice_silent
from storage.clock import database_now
from tests.integration.cluster.comparing import differences, given_twice
from tests.integration.cluster.slots.conftest import SlotsInCluster
from tests.slots import problems


@pytest.mark.parametrize(
    ("claim", "memory"),
    [
        pytest.param({"count": 1}, 30, id="a whole GPU"),
        pytest.param({"count": 1, "memory": "30Gi"}, 30, id="a share that does not fit beside a slot"),
        pytest.param({"count": 1, "core": 10, "memory": "15Gi"}, 14, id="shares of which some fit"),
    ],
)
def test_pods_and_slots_race(slots: SlotsInCluster, claim: dict[str, object], memory: int) -> None:
    """SLOT-1b whoever comes first has it; never both, and whoever waits has a reason."""
    slots.model(memory=memory)
    slots.runner_node(gpus=2, memory=40)
    slots.requests(count=4)
    slots.cluster.claim("some", **claim)
    names = [f"pod-{number}" for number in range(4)]
    for name in names:
        slots.cluster.pod(name, claim="some")

    def pod(name: str) -> Callable[[], object]:
        return lambda: slots.cluster.filter(name)

    rounds = Rounds()
    answers = slots.database.race([rounds.run, *map(pod, names)])
    assert not [answer for answer in answers if isinstance(answer, Exception)], answers
    assert given_twice(slots.cluster.server) == []
    held = [name for name, answer in zip(names, answers[1:], strict=True) if answer is not None]
    for name in held:
        assert slots.cluster.bind(name, "n1") == ""
    slots.converge()
    assert given_twice(slots.cluster.server) == []
    assert differences(slots.cluster.server) == []
    assert problems() == []
    free = [not has_slot and not reason for _, has_slot, reason in slots.waiting()]
    assert sum(free) == len(slots.slots(State.READY)), "who has neither slot nor reason goes to one that is ready"
    assert Allocation.objects.filter(state__in=LIVE).exists()


def test_two_beats(slots: SlotsInCluster) -> None:
    """SLOT-7b SLOT-2 of two workers the one that began last plans; a need has one slot."""
    slots.model(keep_warm=1)
    slots.runner_node(memory=40)
    slots.requests(count=2)
    first, second = Rounds(), Rounds()
    answers = slots.database.race([first.run, second.run])
    met = [type(answer) for answer in answers if isinstance(answer, Exception)]
    assert met in ([], [MovedOn]), answers
    slots.converge()
    assert Slot.objects.count() == 2, "two requests, of which one slot is kept warm as well"
    slots.requests(count=3)
    with pytest.raises(MovedOn):
        first.run()
    assert Slot.objects.count() == 2
    assert differences(slots.cluster.server) == []


def test_two_workers_notice_a_silent_runner(slots: SlotsInCluster) -> None:
    """SLOT-2 its slots fail once."""
    slots.model()
    slots.runner_node()
    slots.ready()
    later = database_now().replace(year=database_now().year + 1)
    answers = slots.database.race([lambda: notice_silent(now=later)] * 3)
    assert [found[RunnerState.FAILED] for found in answers if isinstance(found, dict)].count(["n1"]) == 1
    assert Slot.objects.get().state == State.FAILED
    assert len(slots.cluster.told("slot.failed")) == 1
