"""What is answered: in the right list of nodes, at a fixed number of queries, down to the device, and never wrongly
"done".
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from access.actors import Actor
from access.choices import Role
from access.errors import Conflict
from allocations import fleet, ledger, services
from allocations.choices import State
from allocations.explain import claim_explain, pod_explain
from allocations.models import Allocation
from nodes.models import Device
from nodes.revisions import next_revision
from storage.clock import database_now
from storage.revisioned_rows import Changes, Source
from tests.databases import TestDatabase
from tests.extender import bound, filter_answer, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory

ADMIN = Actor(name="root", role=Role.ADMIN, namespaces=None)
sqlite = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)


@sqlite
def test_what_is_being_undone_evicts_nobody(ledger_db: TestDatabase) -> None:
    """An attempt that is still being undone is no reason to preempt others: not in FailedNodes."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    GpuClaimFactory(name="train")
    pod = pod_manifest("trainer", claim="train", uid=str(uuid.uuid4()))
    assert bound(pod, filtered(pod, ["node-a"])) == ""
    assert ledger.begin_release(
        allocation_id=Allocation.objects.get().pk,
        sources=(State.BOUND,),
        outcome=State.RELEASED,
        reason="test",
        now=database_now(),
        actor="test",
    )
    answer = filter_answer(pod, ["node-a"])
    assert (answer["NodeNames"], answer["FailedNodes"]) == ([], {})
    assert list(answer["FailedAndUnresolvableNodes"]) == ["node-a"]


@sqlite
def test_a_release_that_came_too_late_is_reported(ledger_db: TestDatabase) -> None:
    """CLAIM-10 a hold that bind took up while its release was asked for is not said to be released."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    GpuClaimFactory(name="train")
    pod = pod_manifest("trainer", claim="train", uid=str(uuid.uuid4()))
    filtered(pod, ["node-a"])
    seen = Allocation.objects.get()
    assert ledger.reserve([seen.pk], now=database_now())
    with pytest.raises(Conflict):
        services.allocation_release(allocation=seen, actor=ADMIN, evict=False, now=database_now())


@sqlite
def test_explaining_a_claim_costs_the_same_for_any_number_of_pods(ledger_db: TestDatabase) -> None:
    """VIEW-3 one look at the fleet answers for all pods that wait."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    GpuClaimFactory(name="train", spec={"devices": {"count": 2}})
    costs = []
    for number in range(6):
        pod = pod_manifest(f"trainer-{number}", claim="train", uid=str(uuid.uuid4()))
        assert filtered(pod, ["node-a"]) is None
        with CaptureQueriesContext(connection) as queries:
            told = claim_explain("research", "train", ADMIN)
        assert len(told["pods"]) == number + 1
        costs.append(len(queries))
    assert len(set(costs)) == 1, costs


@sqlite
def test_a_waiting_pod_is_explained_device_by_device(ledger_db: TestDatabase) -> None:
    """VIEW-3 node by node and device by device."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=2)
    GpuClaimFactory(name="one")
    GpuClaimFactory(name="two", spec={"devices": {"count": 2}})
    filtered(pod_manifest("small", claim="one", uid=str(uuid.uuid4())), ["node-a"])
    assert filtered(pod_manifest("large", claim="two", uid=str(uuid.uuid4())), ["node-a"]) is None
    told = pod_explain("research", "large", ADMIN)
    assert told["reasons"] == [{"reason": "fewer than 2 whole gpu devices free", "nodes": 1}]
    devices = {device["minor"]: device["reason"] for device in told["nodes"][0]["devices"]}
    assert sorted(devices.values()) == ["", "in use, a whole device is asked"]


def test_what_commits_during_a_comparison_is_no_difference(
    ledger_db: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEASE-6 the alarm that a picture has gone wrong is not raised by work going on."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=4)
    fleet.current()
    read, minors = Source.since, iter(range(4))

    def followed_by_a_commit(source: Source[Any], mark: int) -> Changes[Any]:
        rows = read(source, mark)
        with transaction.atomic():
            Device.objects.filter(minor=next(minors)).update(core_used=50, revision=next_revision())
        return rows

    monkeypatch.setattr(Source, "since", followed_by_a_commit)
    assert fleet.compare() == 0
