"""Threads at once on the last devices: the database refuses a second holder, whatever the code does.

Whole processes race through their doors in tests/integration/cluster/test_races.py.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import pytest
from django.db import IntegrityError, transaction

from allocations import fleet, ledger
from allocations.choices import LIVE, State
from allocations.engine.plan import plan
from allocations.errors import LostRace
from allocations.models import Allocation, AllocationDevice
from claims.dialects.request import DeviceAsk, DeviceRequest
from nodes.models import Device
from nodes.revisions import next_revision
from tests.databases import TestDatabase
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.ledger_truth import problems


def test_threads_race_for_one_device(ledger_db: TestDatabase) -> None:
    """LEASE-2 HAMi #2232: filters at the same time never give one device twice."""
    NodeFactory(name="node-a", gpus=1)
    GpuClaimFactory(name="one", spec={"devices": {"count": 1}})
    answers = ledger_db.race(
        [partial(filtered, pod_manifest(f"pod-{number}", claim="one"), ["node-a"]) for number in range(8)]
    )
    assert sorted(answers, key=str) == [None] * 7 + ["node-a"]
    assert not problems()


def test_one_pod_asked_for_by_two_replicas_has_one_hold(ledger_db: TestDatabase) -> None:
    """LEASE-2 the same pod filtered by several replicas at once has one live allocation."""
    NodeFactory(name="node-a", gpus=4)
    GpuClaimFactory(name="one", spec={"devices": {"count": 1}})
    pod = pod_manifest("pod", claim="one")
    answers = ledger_db.race([lambda: filtered(pod, ["node-a"]) for _ in range(6)])
    assert set(answers) == {"node-a"}
    assert Allocation.objects.filter(state__in=LIVE).count() == 1
    assert not problems()


def test_the_database_itself_refuses(ledger_db: TestDatabase) -> None:
    """LEASE-2 without any of our code: constraints keep use within the device and a whole device to one holder."""
    assert ledger_db
    node = NodeFactory(name="node-a", gpus=1)
    GpuClaimFactory(name="one", spec={"devices": {"count": 1}})
    assert bound(pod_manifest("pod", claim="one"), filtered(pod_manifest("pod", claim="one"), ["node-a"]) or "") == ""
    device = Device.objects.get(node=node)
    for change in ({"core_used": 101}, {"core_used": -1}, {"memory_used": device.memory_bytes + 1}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Device.objects.filter(pk=device.pk).update(**change)
    grant = AllocationDevice.objects.get()
    other = Allocation.objects.get()
    with pytest.raises(IntegrityError), transaction.atomic():
        AllocationDevice.objects.create(
            allocation=Allocation.objects.create(
                state=State.BOUND,
                namespace="research",
                holder="x",
                node=node,
                dialect="rest",
                request={},
                created_at=datetime.now(UTC),
                changed_at=datetime.now(UTC),
            ),
            device=device,
            uuid=device.uuid,
            type="gpu",
            minor=0,
            core_percent=100,
            memory_bytes=device.memory_bytes,
            whole=True,
        )
    with pytest.raises(IntegrityError), transaction.atomic():
        Allocation.objects.filter(pk=other.pk).update(state="nonsense")
    assert grant.live


def test_a_decision_from_an_old_snapshot_loses_cleanly(ledger_db: TestDatabase) -> None:
    """LEASE-2 a hold decided on a picture that is no longer true changes nothing."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=2)
    request = DeviceRequest(asks=(DeviceAsk(type="gpu", count=2),))
    picture, now, *_ = fleet.current()
    decision = plan(picture, request)
    holders = (ledger.pod_holder("research", name, name) for name in ("first", "second"))
    first, second = (ledger.Terms(holder=holder, request=request) for holder in holders)
    ledger.hold(first, decision=decision, previous=None, now=now, hold_seconds=30)
    with pytest.raises(LostRace) as lost:
        ledger.hold(second, decision=decision, previous=None, now=now, hold_seconds=30)
    assert len(lost.value.device_ids) == 2
    assert Allocation.objects.count() == 1
    assert not problems()


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
def test_a_writer_that_commits_late_is_not_missed(ledger_db: TestDatabase) -> None:
    """LEASE-2 two writers commit in reverse order of their revisions: the picture shows both."""
    NodeFactory(name="node-a", gpus=2)
    picture = fleet.current().snapshot
    assert picture.core_used.tolist() == [0, 0]
    early, late = Device.objects.order_by("minor")

    def use(device: Device) -> None:
        Device.objects.filter(pk=device.pk).update(core_used=40, revision=next_revision())

    with transaction.atomic():
        use(early)

        def overtake() -> list[int]:
            with transaction.atomic():
                use(late)
            seen: list[int] = fleet.current().snapshot.core_used.tolist()
            return seen

        assert ledger_db.race([overtake]) == [[0, 40]]
    assert fleet.current().snapshot.core_used.tolist() == [40, 40]
