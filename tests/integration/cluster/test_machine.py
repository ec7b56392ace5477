"""Whatever happens to the cluster and to gpuplane in it, in whatever order: nothing is given twice, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.databases import TestDatabase
from tests.deaths import Deaths
from tests.exploring import examples
from tests.integration.cluster.conftest import World
from tests.integration.cluster.machine import ClusterMachine, hurried

HISTORIES = {"sqlite": 25, "postgresql": 15}
STEPS = 25


@pytest.mark.hypothesis
@pytest.mark.timeout(900)
def test_any_history_keeps_the_ledger_whole(
    world: World, ledger_db: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-2 LEASE-3 LEASE-4 CLAIM-2 no order of arrivals, ends, failures, deaths and late requests gives a device twice or loses one."""
    hurried(monkeypatch, world)
    given = {"world": world, "database": ledger_db, "deaths": Deaths(monkeypatch)}
    machine = type("Machine", (ClusterMachine,), given)
    run_state_machine_as_test(machine, settings=examples(HISTORIES[ledger_db.vendor], stateful_step_count=STEPS))
