"""Health that changes by turns, by agents' word and by inventories, on both databases."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from access.actors import SYSTEM
from allocations.fleet import current
from audit.models import Event
from nodes import flapping
from nodes.inventory import parse_node
from nodes.models import Device
from nodes.services import devices_health, health_settle, inventory_put

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SICK, WELL = "Xid 79", ""


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def shape(*, healthy: bool = True) -> Any:
    device = {"minor": 0, "uuid": "GPU-0", "model": "H100", "memory": "80Gi", "healthy": healthy}
    return parse_node({"name": "n1", "devices": [device]})


def by_agent(reason: str, seconds: float) -> None:
    devices_health(node_name="n1", health={"GPU-0": reason}, actor=SYSTEM, now=at(seconds))


def by_inventory(reason: str, seconds: float) -> None:
    inventory_put(shape=shape(healthy=not reason), actor=SYSTEM, now=at(seconds))


@pytest.fixture
def node(ledger_db: Any) -> None:
    inventory_put(shape=shape(), actor=SYSTEM, now=at(-3600))


def device() -> Device:
    return Device.objects.get(uuid="GPU-0")


def told() -> list[str]:
    return list(Event.objects.filter(kind="device.health").order_by("id").values_list("message", flat=True))


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("say", [by_agent, by_inventory])
def test_a_flapping_health_is_reported_when_it_lasts(say: Any) -> None:
    """NODE-2 two hundred changes in two hundred seconds: three events as it begins, and one with the count when it is
    over.
    """
    for second in range(200):
        say(SICK if second % 2 == 0 else WELL, second)
        assert not device().healthy or second == 1, "sick at once, and never given in between"
    assert len(told()) == 3
    assert "its health flaps since 12:00:00 UTC" in told()[2]
    assert (device().flaps, device().health_said) == (200, WELL)
    revision = device().revision
    assert health_settle(now=at(199) + flapping.STEADY - timedelta(seconds=1)) == 0
    assert device().revision == revision
    assert health_settle(now=at(199) + flapping.STEADY) == 1
    assert device().healthy
    assert told()[3:] == ["gpu 0 of n1 is well again; flapped 200 times since 2026-11-21 12:00:00 UTC"]
    assert health_settle(now=at(999)) == 0


@pytest.mark.usefixtures("node")
def test_a_device_that_stays_sick_is_reported() -> None:
    """NODE-2 with its reason, once."""
    for second, reason in enumerate((SICK, WELL, SICK, WELL, "Xid 48")):
        by_agent(reason, second)
    assert health_settle(now=at(60)) == 1
    assert told()[3:] == ["gpu 0 of n1 is unhealthy: Xid 48; flapped 5 times since 2026-11-21 12:00:00 UTC"]
    assert (device().healthy, device().health_reason, device().health_said) == (False, "Xid 48", None)
    by_agent(WELL, 120)
    assert device().healthy, "a change by itself is taken at once"


@pytest.mark.usefixtures("node")
def test_changes_far_apart_are_taken_as_they_come() -> None:
    """NODE-2 each is told."""
    for number in range(6):
        by_agent(SICK if number % 2 == 0 else WELL, number * 60)
    assert len(told()) == 6
    assert device().healthy


@pytest.mark.usefixtures("node")
def test_placement_sees_no_flap() -> None:
    """PLACE-1 (part) the picture has it as sick from the first moment on, whatever is said in between."""
    seen = []
    for second in range(8):
        by_agent(SICK if second % 2 == 0 else WELL, second)
        picture = current().snapshot
        seen.append(bool(picture.device_healthy[0]))
    assert seen[2:] == [False] * 6
    assert not seen[0]


@pytest.mark.usefixtures("node")
def test_a_flap_writes_nothing_but_the_count() -> None:
    """NODE-2 no event, no new revision, no changed time."""
    for second in range(3):
        by_agent(SICK if second % 2 == 0 else WELL, second)
    before = (device().revision, device().changed_at, Event.objects.count())
    for second in range(3, 40):
        by_agent(SICK if second % 2 == 0 else WELL, second)
    assert (device().revision, device().changed_at, Event.objects.count()) == before
    assert device().flaps == 40
