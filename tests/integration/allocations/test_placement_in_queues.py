"""Claims over REST that a queue admits go through the same placement: expired holds, lost races, foreign Leases."""

from __future__ import annotations

import ast
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from access.actors import SYSTEM
from allocations import fleet, ledger
from allocations.choices import State
from allocations.errors import LostRace, MovedOn
from allocations.leases.port import LeaseTaken, Want
from allocations.ledger.hold import hold_all
from allocations.ledger.queue_fence import raise_fence
from allocations.models import Allocation
from allocations.pod_request import PodRequest
from allocations.scheduling import placement
from allocations.scheduling.placement import (
    TRIES,
    LostEveryRace,
    Placed,
    PlacementRequest,
    RefusedByQueues,
    place,
)
from allocations.scheduling.queueing.rest_claims import place_in_queue
from claims.dialects.request import DeviceAsk, DeviceRequest
from claims.kinds import QUEUE
from claims.membership import Membership
from claims.queues import DIRECTORY
from claims.services import manifest_create
from nodes.models import Device
from storage.clock import database_now
from tests.databases import TestDatabase
from tests.factories import NodeFactory
from tests.ledger_truth import problems

ROOT = Path(__file__).parents[3]
ALL = DeviceRequest(asks=(DeviceAsk(type="gpu", count=2),))
ONE = DeviceRequest(asks=(DeviceAsk(type="gpu", count=1),))
SOMEBODY = ledger.Holder(namespace="research", identity="research/desk/1")


@pytest.fixture(autouse=True)
def queue_of_two_gpus(ledger_db: TestDatabase) -> Iterator[None]:
    """One node of two GPUs, and a queue that deserves both."""
    assert ledger_db
    NodeFactory(name="n1", gpus=2)
    fleet.forget()
    DIRECTORY.forget()
    spec = {"metadata": {"name": "desk"}, "spec": {"quotas": [{"deserved": 2}]}}
    manifest_create(QUEUE, manifest=spec, actor=SYSTEM, now=database_now())
    DIRECTORY.forget()
    yield
    DIRECTORY.forget()


def wanted(request: DeviceRequest = ONE) -> PlacementRequest:
    membership = Membership(queue="desk", preemptible=False)
    return PlacementRequest(SOMEBODY, PodRequest(request, None, 60, confined=True, membership=membership))


def bound(_: uuid.UUID) -> None:
    """The next step, which succeeds."""


def test_an_expired_hold_makes_room_before_a_refusal() -> None:
    """LEASE-3 QUEUE-1 as for everybody else."""
    pod = PlacementRequest(ledger.pod_holder("research", "pod", "uid"), PodRequest(ALL, None, 60, confined=True))
    assert isinstance(place(pod, lambda *_: None), Placed)
    refused = place_in_queue(wanted(), then=bound)
    assert isinstance(refused, RefusedByQueues)
    Allocation.objects.update(hold_until=database_now() - timedelta(seconds=1))
    assert isinstance(place_in_queue(wanted(), then=bound), Placed)
    assert dict(Allocation.objects.values_list("holder", "state")) == {
        "research/pod/uid": State.FAILED,
        SOMEBODY.identity: State.HELD,
    }
    assert problems() == []


def test_a_device_whose_lease_somebody_else_has_is_left_out() -> None:
    """QUEUE-1 LEASE-2 the claim is decided about again, without it."""
    seen: list[uuid.UUID] = []

    def then(allocation_id: uuid.UUID) -> None:
        seen.append(allocation_id)
        live = ledger.read_live(allocation_id)
        if len(seen) > 1 or live is None:
            return
        ledger.drop_hold(
            allocation_id=allocation_id, outcome=State.RELEASED, reason="test", now=database_now(), actor="test"
        )
        grant = live.grants[0]
        raise LeaseTaken(Want(f"gpu-n1-{grant.minor}", "n1", grant.uuid, whole=True), "somebody/else")

    outcome = place_in_queue(wanted(), then=then)
    assert isinstance(outcome, Placed)
    assert seen == [seen[0], outcome.allocation_id]
    held = Allocation.objects.get(pk=outcome.allocation_id).devices.get()
    assert held.uuid not in set(Device.objects.exclude(stranger="").values_list("uuid", flat=True))
    assert problems() == []


@pytest.mark.parametrize(
    "error", [pytest.param(LostRace((1,)), id="a race lost"), pytest.param(MovedOn("x"), id="another admission")]
)
def test_lost_races_end(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """QUEUE-1 each is decided about again, a bounded number of times, and nothing stays held."""
    tried: list[object] = []

    def lose(*_: object, **__: object) -> list[uuid.UUID]:
        tried.append(None)
        raise error

    monkeypatch.setattr(placement, "hold_all", lose)
    assert isinstance(place_in_queue(wanted(), then=bound), LostEveryRace)
    assert len(tried) == TRIES
    assert not Allocation.objects.exists()


def test_a_race_lost_once_is_decided_about_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """QUEUE-1 an admission by another process between decision and hold."""
    tried: list[object] = []

    def lose_once(*arguments: Any, **named: Any) -> list[uuid.UUID]:
        tried.append(None)
        if len(tried) == 1:
            raise_fence()
        return hold_all(*arguments, **named)

    monkeypatch.setattr(placement, "hold_all", lose_once)
    assert isinstance(place_in_queue(wanted(), then=bound), Placed)
    assert len(tried) == 2
    assert problems() == []


@pytest.mark.parametrize(
    ("pods", "want"),
    [
        pytest.param(1, "waits for 1 pod that holds the devices; none is evicted for it", id="one"),
        pytest.param(2, "waits for 2 pods that hold the devices; none is evicted for it", id="two"),
    ],
)
def test_pods_that_leave_are_counted(pods: int, want: str) -> None:
    """QUEUE-5 a claim does not wait; the refusal says for how many it would."""
    for number in range(pods):
        holder = ledger.pod_holder("research", f"pod-{number}", f"uid-{number}")
        pod = PlacementRequest(holder, PodRequest(ONE, None, 60, confined=True))
        assert isinstance(place(pod, lambda *_: None), Placed)
    Allocation.objects.update(leaving_at=database_now())
    refused = place_in_queue(wanted(ALL), then=bound)
    assert isinstance(refused, RefusedByQueues)
    assert refused.reason == want


HOLDS = {"hold", "hold_all"}


def test_only_placement_holds() -> None:
    """LEASE-3 CLAIM-8 the ledger's holds are made by one module; nobody else plans, holds and tries again."""
    users = set()
    for path in (ROOT / "allocations").rglob("*.py"):
        if path.is_relative_to(ROOT / "allocations" / "ledger"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("allocations.ledger"):
                held = {one.name for one in node.names} & HOLDS
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ledger":
                held = {node.attr} & HOLDS
            else:
                held = set()
            if held:
                users.add(path.relative_to(ROOT).as_posix())
    assert users == {"allocations/scheduling/placement.py"}
