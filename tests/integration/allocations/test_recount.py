"""A device whose use was changed behind the ledger's back says what its holders were given again, and nothing else is
ever touched.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from access.actors import SYSTEM
from allocations import fleet, ledger
from allocations.backends import current_backends
from allocations.models import Allocation, AllocationDevice
from allocations.reconcile import reconcile
from allocations.services import allocation_release
from audit.choices import EventKind
from audit.models import Event
from nodes.choices import Presence
from nodes.models import Device
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.extender import bound, filtered, pod_manifest
from tests.factories import GpuClaimFactory, NodeFactory
from tests.ledger_truth import problems
from tests.servers import forked

GIB = 2**30
RACERS = 3
ATTEMPTS = 300


def placed(name: str, claim: str) -> Allocation:
    """A pod bound through the claim; its allocation."""
    pod = pod_manifest(name, claim=claim)
    node = filtered(pod, ["node-a"])
    assert node == "node-a"
    assert bound(pod, node) == ""
    return Allocation.objects.get(pod_uid=pod["metadata"]["uid"])


def use() -> list[tuple[int, int]]:
    """(core, GiB) of every device, by minor."""
    return [
        (core, memory // GIB)
        for core, memory in Device.objects.order_by("minor").values_list("core_used", "memory_used")
    ]


def told() -> list[str]:
    """What was reported."""
    return list(Event.objects.filter(kind=EventKind.DIFFERENCE).order_by("id").values_list("message", flat=True))


@pytest.mark.parametrize(
    ("core", "memory"),
    [
        pytest.param(0, 0, id="nothing"),
        pytest.param(100, 80 * GIB, id="too much"),
        pytest.param(60, 0, id="half of the truth"),
    ],
)
def test_a_wrong_use_is_corrected(ledger_db: TestDatabase, core: int, memory: int) -> None:
    """LEASE-6 a device says what its holders were given, one event tells, and everything can be given back."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=2)
    GpuClaimFactory(name="share", spec={"devices": {"count": 1, "core": 30, "memory": "10Gi"}})
    holders = [placed("one", "share"), placed("two", "share")]
    assert use() == [(60, 20), (0, 0)]
    fleet.current()
    Device.objects.filter(minor=0).update(core_used=core, memory_used=memory)

    done = reconcile(backends=current_backends(), now=database_now())

    assert done.recounted == 1
    assert use() == [(60, 20), (0, 0)]
    assert told() == [
        (
            f"gpu 0 of node-a counted {core} core and {memory} bytes as used; its holders were given 60 and {20 * GIB}:"
            " corrected"
        )
    ]
    assert not problems()  # the pictures of processes among it: they were told by the revision
    for one in holders:
        allocation_release(allocation=one, actor=SYSTEM, evict=False, now=database_now())
    assert use() == [(0, 0), (0, 0)]
    assert reconcile(backends=current_backends(), now=database_now()).quiet


def test_a_use_without_holders_is_taken_back(ledger_db: TestDatabase) -> None:
    """LEASE-6 nobody holds it, so it is free; one that had left meanwhile is gone for good."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=2)
    Device.objects.filter(minor=0).update(core_used=100, memory_used=80 * GIB)
    Device.objects.filter(minor=1).update(core_used=1, presence=Presence.VANISHED)

    assert [one.corrected for one in ledger.recount(now=database_now(), actor="test")] == [True, True]

    assert use() == [(0, 0), (0, 0)]
    assert Device.objects.get(minor=1).presence == Presence.REMOVED
    assert ledger.recount(now=database_now(), actor="test") == []


def test_more_than_there_is_is_reported(ledger_db: TestDatabase) -> None:
    """LEASE-6 grants beyond the device cannot be made true: they are reported, once, and nothing is written."""
    assert ledger_db
    NodeFactory(name="node-a", gpus=1)
    GpuClaimFactory(name="share", spec={"devices": {"count": 1, "core": 60, "memory": "10Gi"}})
    placed("one", "share")
    AllocationDevice.objects.update(core_percent=90, memory_bytes=90 * GIB)

    for _ in range(2):
        done = reconcile(backends=current_backends(), now=database_now())
        assert (done.recounted, done.differences) == (0, 1)

    assert use() == [(60, 10)]
    assert told() == [
        f"gpu 0 of node-a counted 60 core and {10 * GIB} bytes as used; its holders were given 90 and {90 * GIB}"
    ]


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
def test_takers_and_givers_are_never_corrected(ledger_db: TestDatabase) -> None:
    """LEASE-2 LEASE-6 comparing while others take and return devices finds nothing, ever."""
    NodeFactory(name="node-a", gpus=4)
    for name, spec in (("one", {"count": 1}), ("two", {"count": 2}), ("half", {"count": 1, "core": 50})):
        GpuClaimFactory(name=name, spec={"devices": spec})
    module, environment = "tests.integration.allocations.taker", ledger_db.environment
    with ExitStack() as ends:
        racers = [
            ends.enter_context(forked.start(module, str(number), str(ATTEMPTS), environment=environment))
            for number in range(RACERS)
        ]
        compared = 0
        while any(racer.poll() is None for racer in racers):
            assert ledger.recount(now=database_now(), actor="test") == []
            compared += 1
        assert [racer.poll() for racer in racers] == [0] * RACERS, [racer.errors[-2000:] for racer in racers]
    assert compared > RACERS
    assert not problems()
