"""A process killed between any two steps of bind or release leaves nothing behind that collection does not mend.

Without a cluster; with one, through the door, in tests/integration/cluster/test_kills.py.
"""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from allocations.backends import current_backends
from allocations.choices import LIVE, State
from allocations.models import Allocation, Lease
from allocations.reconcile.garbage_collection import collect_garbage
from nodes.models import Device
from tests.databases import TestDatabase
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.ledger_truth import problems
from tests.servers import forked

POD = pod_manifest("pod", claim="two")


def die(deed: str, steps: int, database: TestDatabase, pod: dict[str, Any] = POD, **environment: str) -> None:
    """Run the process of `killed.py` and see it die by SIGKILL."""
    ended = forked.run(
        "tests.integration.allocations.killed",
        *(deed, str(steps), json.dumps(pod), "node-a"),
        environment={**database.environment, **environment},
        seconds=60,
    )
    assert ended.poll() == -signal.SIGKILL, ended.errors[-3000:]


def collect(minutes: int = 2) -> None:
    """One turn of garbage collection, some minutes later."""
    collect_garbage(now=datetime.now(UTC) + timedelta(minutes=minutes), backends=current_backends())


@pytest.fixture
def fleet_of_one(ledger_db: TestDatabase) -> TestDatabase:
    """node-a with 4 GPUs and a claim for two."""
    NodeFactory(name="node-a", gpus=4)
    GpuClaimFactory(name="two", spec={"devices": {"count": 2}})
    return ledger_db


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(0, id="after the hold"),
        pytest.param(1, id="after reserved"),
        pytest.param(3, id="after the leases"),
        pytest.param(5, id="before bound is written"),
    ],
)
def test_killed_within_bind(fleet_of_one: TestDatabase, steps: int) -> None:
    """LEASE-3 kill -9 between two steps of bind: after collection nothing is held."""
    die("bind", steps, fleet_of_one)
    assert Allocation.objects.get().state in LIVE
    assert Device.objects.exclude(core_used=0).count() == 2, "what was decided is not given away meanwhile"
    collect()
    assert Allocation.objects.get().state == State.FAILED
    assert not Device.objects.exclude(core_used=0, memory_used=0).exists()
    assert not Lease.objects.exists()
    assert not problems()
    assert filtered(pod_manifest("other", claim="two"), ["node-a"]) == "node-a"


def test_killed_after_bound(fleet_of_one: TestDatabase) -> None:
    """LEASE-3 once bound is written the devices stay with the pod."""
    die("bind", 6, fleet_of_one)
    collect()
    assert Allocation.objects.get().state == State.BOUND
    assert Lease.objects.count() == 2
    assert not problems()


def test_young_rows_are_left_alone(fleet_of_one: TestDatabase) -> None:
    """LEASE-3 a reservation that a bind may still be working on is not collected."""
    die("bind", 3, fleet_of_one)
    collect(minutes=0)
    assert Allocation.objects.get().state == State.RESERVED
    assert Lease.objects.count() == 2


@pytest.mark.parametrize("steps", [pytest.param(1, id="before the leases went"), pytest.param(2, id="after")])
def test_killed_within_release(fleet_of_one: TestDatabase, steps: int) -> None:
    """LEASE-3 kill -9 between two steps of release: collection finishes it."""
    assert bound(POD, filtered(POD, ["node-a"]) or "") == ""
    die("release", steps, fleet_of_one)
    assert Allocation.objects.get().state == State.RELEASING
    collect()
    assert Allocation.objects.get().state == State.RELEASED
    assert not Device.objects.exclude(core_used=0, memory_used=0).exists()
    assert not Lease.objects.exists()
    assert not problems()
