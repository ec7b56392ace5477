"""Placement: what comes of a request when nothing, something, or everything happens between planning and holding."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from allocations import fleet, ledger
from allocations.choices import State
from allocations.errors import LostRace, MovedOn
from allocations.leases.port import LeaseTaken, Want
from allocations.models import Allocation
from allocations.pod_request import PodRequest
from allocations.scheduling import placement
from allocations.scheduling.placement import (
    TRIES,
    TRUSTED_TRIES,
    Advised,
    AlreadyAllocated,
    LostEveryRace,
    Outcome,
    Placed,
    PlacementRequest,
    Unplaced,
    place,
)
from claims.dialects.request import DeviceAsk, DeviceRequest
from nodes.models import Device
from storage.clock import database_now
from tests.builders import told
from tests.databases import TestDatabase
from tests.factories import NodeFactory
from tests.ledger_truth import problems

ONE = DeviceRequest(asks=(DeviceAsk(type="gpu", count=1),))
ALL = DeviceRequest(asks=(DeviceAsk(type="gpu", count=2),))
HOLD_SECONDS = 77
POD = ledger.pod_holder("research", "pod", "uid-pod")
OTHER = ledger.pod_holder("research", "other", "uid-other")

pytestmark = pytest.mark.usefixtures("two_gpus")


@pytest.fixture
def two_gpus(ledger_db: TestDatabase) -> None:
    """One node of two GPUs."""
    assert ledger_db
    NodeFactory(name="n1", gpus=2)
    fleet.forget()


def wanted(holder: ledger.Holder = POD, request: DeviceRequest = ONE, **more: Any) -> PlacementRequest:
    """A request for one GPU."""
    return PlacementRequest(holder, PodRequest(request, None, HOLD_SECONDS, confined=True, **more))


def placed(holder: ledger.Holder = POD, request: DeviceRequest = ONE, **options: Any) -> Outcome:
    """Place it anywhere."""
    return place(wanted(holder, request), lambda *_: None, **options)


def minors() -> dict[str, list[int]]:
    """Pod → minors of what it has."""
    rows = Allocation.objects.exclude(state__in=[State.RELEASED, State.FAILED]).order_by("pod_name")
    return {row.pod_name: sorted(row.devices.filter(live=True).values_list("minor", flat=True)) for row in rows}


@pytest.mark.parametrize(
    ("hold_seconds", "want"),
    [
        pytest.param(None, HOLD_SECONDS, id="the asks' own"),
        pytest.param(lambda: 600, 600, id="another that the caller asks for"),
    ],
)
def test_devices_are_held_for_the_time_given(hold_seconds: Callable[[], int] | None, want: int) -> None:
    """LEASE-3 the length of a hold is the caller's setting, wherever the request comes from."""
    outcome = place(replace(wanted(), hold_seconds=hold_seconds), lambda *_: None)
    assert isinstance(outcome, Placed)
    row = Allocation.objects.get(pk=outcome.allocation_id)
    assert row.hold_until is not None
    assert row.hold_until - row.created_at == timedelta(seconds=want)
    assert minors() == {"pod": [0]}
    assert problems() == []


def test_without_holding_nothing_is_written() -> None:
    outcome = placed(holds=False)
    assert isinstance(outcome, Advised)
    assert outcome.decision.node == "n1"
    assert not Allocation.objects.exists()


def test_no_room_is_a_decision_with_reasons() -> None:
    """CLAIM-4"""
    placed(OTHER, ALL)
    outcome = placed()
    assert isinstance(outcome, Unplaced)
    assert [name for name, _ in told(outcome.decision).refused()] == ["n1"]


@pytest.mark.parametrize("state", [State.RESERVED, State.BOUND, State.RELEASING])
def test_an_allocation_past_its_hold_is_not_planned_again(state: State) -> None:
    """LEASE-2 it is not planned again, and nothing of it changes."""
    first = placed()
    assert isinstance(first, Placed)
    Allocation.objects.filter(pk=first.allocation_id).update(
        state=state, bind_attempt=1, outcome=State.RELEASED if state is State.RELEASING else ""
    )
    outcome = placed(request=ALL)
    assert isinstance(outcome, AlreadyAllocated)
    assert (outcome.live.id, outcome.live.state) == (first.allocation_id, state)


def test_an_expired_hold_makes_room_before_a_refusal() -> None:
    """LEASE-3 of another pod, however many; the pod's own, too."""
    placed(OTHER, ALL)
    Allocation.objects.update(hold_until=database_now() - timedelta(seconds=1))
    assert isinstance(placed(request=ALL), Placed)
    assert minors() == {"pod": [0, 1]}
    Allocation.objects.filter(pod_name="pod").update(hold_until=database_now() - timedelta(seconds=1))
    assert isinstance(placed(), Placed)
    assert minors() == {"pod": [0]}


@pytest.mark.parametrize(("worth", "looks"), [(True, 2), (False, 1)], ids=["something came back", "nothing did"])
def test_one_more_look_before_a_refusal(worth: bool, looks: int) -> None:
    """CLAIM-4 a look that is worth it is taken once, and no more."""
    placed(OTHER, ALL)
    asked: list[fleet.FleetSnapshot] = []
    planned: list[None] = []

    def once_more(look: fleet.FleetSnapshot) -> bool:
        asked.append(look)
        return worth

    def candidates(*_: object) -> None:
        planned.append(None)

    assert isinstance(place(wanted(), candidates, once_more=once_more), Unplaced)
    assert (len(asked), len(planned)) == (1, looks)


def dropped(allocation_id: uuid.UUID) -> None:
    """The hold is given back."""
    ledger.drop_hold(
        allocation_id=allocation_id, outcome=State.RELEASED, reason="undone", now=database_now(), actor="test"
    )


def losing(
    times: int, monkeypatch: pytest.MonkeyPatch, *, of: Callable[[int], bool] = lambda _: True
) -> list[set[int]]:
    """The first `times` holds are lost, where `of` says so of the device; the devices of every try."""
    real, tried = ledger.hold, []

    def hold(terms: ledger.Terms, **options: Any) -> uuid.UUID:
        devices = {grant.device_id for grant in options["decision"].grants}
        tried.append(devices)
        if len(tried) <= times and any(map(of, devices)):
            raise LostRace(tuple(devices))
        return real(terms, **options)

    monkeypatch.setattr(ledger, "hold", hold)
    return tried


def test_a_lost_race_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-2 on a fresh snapshot, which is trusted first: the device may be free again."""
    tried = losing(1, monkeypatch)
    assert isinstance(placed(), Placed)
    assert tried[0] == tried[1]


def test_a_device_lost_again_and_again_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-2"""
    first = Device.objects.get(minor=0).pk
    tried = losing(TRIES, monkeypatch, of=lambda device: device == first)
    assert isinstance(placed(), Placed)
    assert len(tried) == TRUSTED_TRIES + 2
    assert minors() == {"pod": [1]}


def test_races_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-2 a bounded number of tries, then the caller is told."""
    tried = losing(TRIES, monkeypatch)
    monkeypatch.setattr(placement, "TRUSTED_TRIES", TRIES)
    assert isinstance(placed(), LostEveryRace)
    assert len(tried) == TRIES
    assert not Allocation.objects.exists()


def test_a_lease_of_an_external_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """LEASE-2 found by the next step: the device is marked, and another one is taken."""
    seen: list[uuid.UUID] = []

    def then(allocation_id: uuid.UUID) -> None:
        seen.append(allocation_id)
        if len(seen) == 1:
            live = ledger.read_live(allocation_id)
            assert live is not None
            dropped(allocation_id)
            grant = live.grants[0]
            want = Want(name="gpu-n1-0", node="n1", device_uuid=grant.uuid, whole=True)
            raise LeaseTaken(want, "somebody/else")

    outcome = placed(then=then)
    assert isinstance(outcome, Placed)
    assert seen == [seen[0], outcome.allocation_id]
    assert Device.objects.get(minor=0).stranger == "somebody/else"
    assert minors() == {"pod": [1]}


def test_a_hold_that_ends_before_the_next_step_is_made_again() -> None:
    """LEASE-3"""
    seen: list[uuid.UUID] = []

    def then(allocation_id: uuid.UUID) -> None:
        seen.append(allocation_id)
        if len(seen) == 1:
            dropped(allocation_id)
            raise MovedOn("the hold ended meanwhile")

    assert isinstance(placed(then=then), Placed)
    assert len(set(seen)) == 2
    assert minors() == {"pod": [0]}


def test_a_holder_without_a_pod_has_no_own_allocation() -> None:
    """CLAIM-10 two claims over REST are two holders."""
    client = replace(OTHER, pod_uid="", pod_name="")
    assert isinstance(placed(client), Placed)
    assert isinstance(placed(replace(client, identity="research/x/2")), Placed)
    assert isinstance(placed(replace(client, identity="research/x/3")), Unplaced)
