"""Whatever happens to reservation pods, their sharers and plain pods, in whatever order: nothing is given twice."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis.stateful import run_state_machine_as_test

from allocations import fleet, ledger
from allocations.choices import GROUP_LIVE, LIVE
from allocations.engine.plan import plan
from allocations.errors import LostRace
from allocations.ledger.group_joining import join_groups
from allocations.models import Allocation, GpuGroup
from nodes.choices import Mode
from nodes.models import Device
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.exploring import examples
from tests.factories import NodeFactory
from tests.integration.allocations.group_machine import PLAIN, WORDS, GroupMachine
from tests.ledger_truth import problems

HISTORIES = {"sqlite": 15, "postgresql": 6}
STEPS = 30


@pytest.mark.heavy
@pytest.mark.hypothesis
@pytest.mark.timeout(900)
def test_any_history_of_groups_gives_nothing_twice(ledger_db: TestDatabase) -> None:
    """SHARE-2 SHARE-5 SHARE-7 LEASE-2 groups, sharers and plain pods in any order, with kubelets that choose at random,
    refuse and lie.
    """
    machine = type("Machine", (GroupMachine,), {"database": ledger_db})
    run_state_machine_as_test(machine, settings=examples(HISTORIES[ledger_db.vendor], stateful_step_count=STEPS))


@pytest.mark.parametrize("seed", range(4))
def test_a_plain_pod_gets_the_guess_of_a_group_that_ends(ledger_db: TestDatabase, seed: int) -> None:
    """SHARE-2 DEV-8 the group's reservation pod has another GPU until it is gone: the group's guess moves there."""
    machine = type("Machine", (GroupMachine,), {"database": ledger_db})()
    machine.begin(seed=seed)
    machine.a_pod_is_bound(words="half", node="b", lie=0)  # a GPU of the other node: refused
    machine.a_plain_pod_comes(count=1, node="b", bound=True)
    machine.the_record_is_told(node="b")
    machine.groups_have_their_gpus()
    machine.nothing_is_given_twice()
    (group,) = GpuGroup.objects.filter(state__in=GROUP_LIVE)
    (kept,) = Device.objects.filter(gpu_group=group.name).values_list("uuid", flat=True)
    assert (kept,) == machine.kubelets["b"].record[group.pod_uid]
    machine.teardown()


def test_two_groups_of_one_pod_of_which_one_is_refused(ledger_db: TestDatabase) -> None:
    """SHARE-2 SHARE-5 the other one ends with it."""
    machine = type("Machine", (GroupMachine,), {"database": ledger_db})()
    machine.begin(seed=0)
    machine.a_pod_is_bound(words="two thirds", node="b", lie=0)
    assert set(GpuGroup.objects.values_list("state", flat=True)) == {"releasing"}
    machine.groups_have_their_gpus()
    machine.teardown()


def take(number: int, plain: bool) -> str:
    """Filter and the first steps of bind; the GPU's UUID, empty where nothing was left."""
    request = PLAIN[1] if plain else WORDS["half"]
    name = f"pod-{number}"
    for _ in range(20):
        look = fleet.current()
        decision = plan(look.snapshot, request, candidates=[look.snapshot.node_index["n"]])
        if decision.node is None:
            return ""
        terms = ledger.Terms(holder=ledger.pod_holder("research", name, name), request=request)
        try:
            held = ledger.hold(terms, decision=decision, previous=None, now=look.now, hold_seconds=30)
        except LostRace:
            continue
        assert ledger.reserve([held], now=database_now())
        if not plain:
            joined = join_groups([held], pod_namespace="gpuplane-reservation", now=database_now(), actor="race")[held]
            assert joined is not None
            assert len(joined) == 1
        return decision.grants[0].uuid
    raise AssertionError("lost every race")


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
@pytest.mark.parametrize("gpus", [1, 3, 6])
def test_halves_and_plain_pods_race_for_a_node(ledger_db: TestDatabase, gpus: int) -> None:
    """SHARE-2 LEASE-2 four halves and four plain pods at once on one node: each GPU is a plain pod's or a group's, and
    nobody waits while there is room.
    """
    NodeFactory(name="n", gpus=gpus, mode=Mode.DEVICE_PLUGIN)
    taken = ledger_db.race([partial(take, number, number % 2 == 0) for number in range(8)])
    assert not [one for one in taken if isinstance(one, Exception)], taken
    placed = Allocation.objects.filter(state__in=LIVE)
    plain = placed.filter(request__by_kubelet=True).count()
    groups = GpuGroup.objects.filter(state__in=GROUP_LIVE)
    assert groups.count() + plain <= gpus
    assert groups.count() == Device.objects.exclude(gpu_group="").count()
    halves = placed.count() - plain
    assert halves <= 2 * groups.count()
    if "" in taken:
        assert groups.count() + plain == gpus
    else:
        assert (plain, halves, groups.count()) == (4, 4, 2)
    assert problems(leases=False) == []
