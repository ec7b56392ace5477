"""Whatever happens to the cluster and to gpuplane in it, in whatever order: nothing is given twice, nothing is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis.stateful import run_state_machine_as_test

from allocations.scheduling import limits
from kube.retry import RetryRule
from tests.databases import TestDatabase
from tests.deaths import Deaths
from tests.exploring import examples
from tests.integration.cluster.conftest import World
from tests.integration.cluster.machine import GPUS, NODES, ClusterMachine

HISTORIES = {"sqlite": 25, "postgresql": 15}
STEPS = 30


def hurried(patch: pytest.MonkeyPatch, world: World) -> None:
    """Waits of a bind, short: its deadline, its pauses, and those between two tries of a request.

    What is done is the same.
    """
    patch.setattr(limits, "BIND_DEADLINE", timedelta(seconds=1))
    patch.setattr(limits, "COLLECTING_DEADLINE", timedelta(seconds=0.2))
    patch.setattr(limits, "PAUSE_SECONDS", 0.05)
    patch.setattr(world.backends.cluster, "_retry", RetryRule(attempts=2, base_seconds=0.002, cap_seconds=0.005))


def machine_of(world: World, database: TestDatabase, patch: pytest.MonkeyPatch) -> type[ClusterMachine]:
    """The machine in this world."""
    hurried(patch, world)
    return type("Machine", (ClusterMachine,), {"world": world, "database": database, "deaths": Deaths(patch)})


@pytest.mark.heavy
@pytest.mark.hypothesis
@pytest.mark.timeout(900)
def test_any_history_keeps_the_ledger_whole(
    world: World, ledger_db: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-2 LEASE-3 LEASE-4 CLAIM-2 no order of arrivals, ends, failures, deaths and late requests gives a device
    twice or loses one.
    """
    machine = machine_of(world, ledger_db, monkeypatch)
    run_state_machine_as_test(machine, settings=examples(HISTORIES[ledger_db.vendor], stateful_step_count=STEPS))


@pytest.mark.parametrize("claim", ["one", "half", "brief"])
def test_a_binding_that_arrives_after_collection(
    world: World, ledger_db: TestDatabase, monkeypatch: pytest.MonkeyPatch, claim: str
) -> None:
    """LEASE-2 LEASE-3 one of its histories by hand: a Binding is on the way while collection comes and others ask for
    the devices; it arrives last.
    """
    history = machine_of(world, ledger_db, monkeypatch)()
    history.begin()
    history.a_binding_is_on_the_way(claim)
    assert history.late[0].held
    history.somebody_comes_to_mend(40.0, "both")
    for _ in range(2 * GPUS * len(NODES)):
        history.a_pod_comes_and_is_bound(claim)
    history.late_ones_arrive(0)
    history.no_device_is_given_twice()
    history.teardown()
