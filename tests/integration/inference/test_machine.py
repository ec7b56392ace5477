"""Whatever happens to models, requests, runners, pods and workers, in whatever order: memory is given once, and all
comes to rest.
"""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test
from pytest_django import Settings

from tests.databases import TestDatabase
from tests.exploring import examples
from tests.integration.inference.slots_machine import SlotsMachine

HISTORIES = 8
STEPS = 30


@pytest.mark.heavy
@pytest.mark.hypothesis
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
def test_any_history_of_slots_converges(ledger_db: TestDatabase, redis_url: str, settings: Settings) -> None:
    """SLOT-1b SLOT-2 SLOT-7b pods and slots never have the same memory; orphans go; what waits has a reason."""
    settings.GPUPLANE_REDIS_URL = redis_url
    machine = type("Machine", (SlotsMachine,), {"database": ledger_db})
    run_state_machine_as_test(machine, settings=examples(HISTORIES, stateful_step_count=STEPS))
