"""Resizes of shares among holds and releases: capacity is conserved, whoever races."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from access.actors import SYSTEM
from access.errors import Conflict
from allocations import fleet
from allocations.backends import current_backends
from allocations.choices import LIVE, State
from allocations.engine.resize import Amounts
from allocations.models import Allocation, AllocationDevice
from allocations.scheduling.resizing import resize_share
from allocations.services import allocation_release
from audit.models import Event
from nodes.models import Device
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.extender import bound, filtered, pod_manifest
from tests.factories import NodeFactory
from tests.ledger_truth import problems

GI = 1 << 30
CORE, MEMORY = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory"
TOTAL = 80


@pytest.fixture(autouse=True)
def _picture() -> Iterator[None]:
    fleet.forget()
    yield
    fleet.forget()


def hold(name: str, core: int, memory: int) -> str | None:
    """The node on which the pod holds a share, None where it has no room."""
    return filtered(_pod(name, core, memory), ["node-a"])


def _pod(name: str, core: int, memory: int) -> dict[str, object]:
    return pod_manifest(name, resources={CORE: str(core), MEMORY: f"{memory}Gi"})


def place(name: str, core: int, memory: int) -> bool:
    node = hold(name, core, memory)
    return node is not None and bound(_pod(name, core, memory), node) == ""


def resize(name: str, core: int | None = None, memory: int | None = None) -> bool:
    """Whether the pod's share has these amounts now. Raises Conflict."""
    allocation = Allocation.objects.get(pod_name=name, state__in=LIVE)
    amounts = Amounts(core, None if memory is None else memory * GI)
    resize_share(allocation.pk, amounts, backends=current_backends(), now=database_now(), actor="jane")
    return True


def release(name: str) -> None:
    allocation = Allocation.objects.get(pod_name=name, state__in=LIVE)
    allocation_release(allocation=allocation, actor=SYSTEM, evict=False, now=database_now())


def used() -> tuple[int, int]:
    device = Device.objects.get()
    return device.core_used, device.memory_used // GI


AMOUNT = st.tuples(st.integers(1, 100), st.integers(1, TOTAL))
STEP = st.one_of(
    st.tuples(st.just("hold"), AMOUNT, st.integers(0, 3)),
    st.tuples(st.just("place"), AMOUNT, st.integers(0, 3)),
    st.tuples(st.just("resize"), AMOUNT, st.integers(0, 3)),
    st.tuples(st.just("resize"), AMOUNT, st.integers(0, 3)),
    st.tuples(st.just("release"), AMOUNT, st.integers(0, 3)),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, min_size=6, max_size=14))
def test_capacity_is_conserved(ledger_db: TestDatabase, steps: list[tuple[str, tuple[int, int], int]]) -> None:
    """SHARE-6b LEASE-2 a share grows exactly where there is room, shrinks always, and what a device counts as used is
    what its holders have; at the end all of it comes back.
    """
    ledger_db.fresh()
    fleet.forget()
    NodeFactory(name="node-a", gpus=1)
    have: dict[str, tuple[int, int]] = {}
    held: set[str] = set()
    for number, (what, (core, memory), pick) in enumerate(steps):
        others = sorted(have)
        if what in ("hold", "place"):
            name = f"pod-{number}"
            fits = _sum(have, 0) + core <= 100 and _sum(have, 1) + memory <= TOTAL
            done = hold(name, core, memory) is not None if what == "hold" else place(name, core, memory)
            assert done == fits or (core == 100 and memory == TOTAL)  # both say a whole device
            if done:
                have[name] = core, memory
                held |= {name} if what == "hold" else set()
        elif others and what == "resize":
            name = others[pick % len(others)]
            room = all(
                _sum(have, part) - have[name][part] + wanted <= most
                for part, wanted, most in (
                    (0, core, 100),
                    (1, memory, TOTAL),
                )
            )
            shrinks = core <= have[name][0] and memory <= have[name][1]
            if name not in held and (room or shrinks):
                resize(name, core, memory)
                have[name] = core, memory
            else:
                with pytest.raises(Conflict):
                    resize(name, core, memory)
        elif others:
            name = others[pick % len(others)]
            release(name)
            held.discard(name)
            del have[name]
        assert used() == (_sum(have, 0), _sum(have, 1))
        assert not problems()
    for name in list(have):
        release(name)
    assert used() == (0, 0)
    assert not problems()


def _sum(have: dict[str, tuple[int, int]], part: int) -> int:
    return sum(amounts[part] for amounts in have.values())


def test_resizes_and_a_hold_race_for_the_rest(ledger_db: TestDatabase) -> None:
    """SHARE-6b LEASE-2 what is left of a device goes to one of them, never to two."""
    NodeFactory(name="node-a", gpus=1)
    assert place("a", 30, 20)
    assert place("b", 30, 20)
    answers: list[object] = ledger_db.race(
        [
            partial(resize, "a", core=60),
            partial(resize, "b", core=60),
            partial(hold, "c", 30, 20),
            partial(resize, "a", memory=60),
        ]
    )
    grown = [answer is True for answer in answers[:2]] + [answers[2] == "node-a"]
    assert sum(grown) == 1, answers
    assert all(answer in (True, None, "node-a") or isinstance(answer, Conflict) for answer in answers)
    assert not problems()
    core, memory = used()
    assert core == 90
    assert memory == 40 + (20 if grown[2] else 0) + (40 if answers[3] is True else 0)
    assert memory <= TOTAL


def test_resizes_of_one_share_race(ledger_db: TestDatabase) -> None:
    """SHARE-6b each is done or refused as a whole, one after another."""
    NodeFactory(name="node-a", gpus=1)
    assert place("a", 30, 20)
    wanted = [(40, 10), (50, 30), (60, 5), (20, 70)]
    answers = ledger_db.race([partial(resize, "a", core=core, memory=memory) for core, memory in wanted])
    done = [amounts for amounts, answer in zip(wanted, answers, strict=True) if answer is True]
    assert done
    assert all(answer is True or isinstance(answer, Conflict) for answer in answers), answers
    assert used() in done
    assert Event.objects.filter(kind="allocation.resized").count() == len(done)
    assert not problems()


def test_a_resize_and_a_release_race(ledger_db: TestDatabase) -> None:
    """SHARE-6b a share that is given back while it grows leaves nothing behind."""
    NodeFactory(name="node-a", gpus=1)
    assert place("a", 30, 20)
    racers: list[Callable[[], object]] = [partial(release, "a")]
    racers += [partial(resize, "a", core=core) for core in (50, 70)]
    answers = ledger_db.race(racers)
    assert answers[0] is None
    assert Allocation.objects.get().state == State.RELEASED
    assert used() == (0, 0)
    assert not AllocationDevice.objects.filter(live=True).exists()
    assert not problems()
