"""What a node claims in vain is what it said last, and MIG instances are no healthier than a GPU whose health flaps; on
both databases.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from access.actors import SYSTEM
from nodes import flapping
from nodes.choices import Presence
from nodes.inventory import parse_node
from nodes.models import Device
from nodes.services import devices_health, disputes_settle, health_settle, inventory_put

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)

pytestmark = pytest.mark.usefixtures("ledger_db")


def put(name: str, *devices: dict[str, Any], seconds: float = 0) -> None:
    shape = parse_node({"name": name, "devices": list(devices)})
    inventory_put(shape=shape, actor=SYSTEM, now=NOW + timedelta(seconds=seconds))


def gpu(minor: int, **more: Any) -> dict[str, Any]:
    return {"minor": minor, "uuid": f"GPU-{minor}", "model": "H100", "memory": "80Gi", **more}


def mig(minor: int) -> dict[str, Any]:
    parts = {"uuid": f"MIG-{minor}", "memory": "10Gi", "parent": "GPU-0", "profile": "1g.10gb"}
    return {"minor": minor, "model": "H100", **parts}


def say(name: str, uuid: str, reason: str, seconds: float = 0) -> None:
    devices_health(node_name=name, health={uuid: reason}, actor=SYSTEM, now=NOW + timedelta(seconds=seconds))


def present(name: str) -> dict[str, bool]:
    found = Device.objects.filter(node__name=name, presence=Presence.PRESENT).order_by("uuid")
    return dict(found.values_list("uuid", "healthy"))


def test_what_was_added_since_stays() -> None:
    """NODE-1 a device that came after the dispute began is not lost when that ends."""
    put("n1", gpu(0))
    put("n2", gpu(0), gpu(1))
    put("n2", gpu(0), gpu(1), gpu(2))
    put("n1")
    assert disputes_settle(now=NOW) == 1
    assert present("n2") == {"GPU-0": True, "GPU-1": True, "GPU-2": True}


def test_what_left_since_stays_away() -> None:
    """NODE-1 nor does one come back that the node has not any more."""
    put("n1", gpu(0))
    put("n2", gpu(0), gpu(1), gpu(2))
    put("n2", gpu(0), gpu(1))
    put("n1")
    assert disputes_settle(now=NOW) == 1
    assert present("n2") == {"GPU-0": True, "GPU-1": True}


def test_a_claimed_device_that_got_sick_comes_sick() -> None:
    """NODE-2 what its node said of it while another one had it counts as soon as it goes over."""
    put("n1", gpu(0))
    put("n2", gpu(0), gpu(1))
    say("n2", "GPU-0", "Xid 79")
    assert present("n1") == {"GPU-0": True}, "who has it says how it is"
    put("n1")
    assert disputes_settle(now=NOW) == 1
    assert present("n2") == {"GPU-0": False, "GPU-1": True}


def test_a_claimed_device_that_got_well_comes_well() -> None:
    """NODE-2 and the other way round."""
    put("n1", gpu(0))
    put("n2", gpu(0, healthy=False), gpu(1))
    say("n2", "GPU-0", "")
    put("n1")
    assert disputes_settle(now=NOW) == 1
    assert present("n2") == {"GPU-0": True, "GPU-1": True}


def test_claimed_instances_wait_in_silence() -> None:
    """NODE-1 instances of a claimed GPU that nobody else names do not make the beat try again and again."""
    put("n1", gpu(0))
    put("n2", gpu(0, mig=True), mig(1))
    assert disputes_settle(now=NOW) == 0
    put("n1")
    assert disputes_settle(now=NOW) == 1
    assert present("n2") == {"GPU-0": True, "MIG-1": True}


def flap(uuid: str) -> None:
    for second, reason in enumerate(("Xid 79", "", "Xid 79", "")):
        say("n1", uuid, reason, second)


def test_an_inventory_wakes_no_instance_of_a_flapping_gpu() -> None:
    """DEV-12 its instances count as sick as long as it does."""
    put("n1", gpu(0, mig=True), mig(1), seconds=-3600)
    flap("GPU-0")
    assert present("n1") == {"GPU-0": False, "MIG-1": False}
    put("n1", gpu(0, mig=True), mig(1), seconds=5)
    assert present("n1") == {"GPU-0": False, "MIG-1": False}
    assert health_settle(now=NOW + 2 * flapping.STEADY) >= 1
    assert present("n1") == {"GPU-0": True, "MIG-1": True}


def test_reasons_that_change_all_the_time_are_reported_when_they_last() -> None:
    """NODE-2 a sick device whose reason is another one each second is no news each second."""
    from audit.models import Event

    put("n1", gpu(0), seconds=-3600)
    for second in range(100):
        say("n1", "GPU-0", f"{40 + second} C", second)
        assert present("n1") == {"GPU-0": False}
    assert Event.objects.filter(kind="device.health").count() <= 3
    assert health_settle(now=NOW + timedelta(seconds=99) + flapping.STEADY) == 1
    assert Device.objects.get().health_reason == "139 C"


def test_an_instance_that_flapped_with_its_gpu_is_not_lost() -> None:
    """DEV-12 when both are steady, an instance of which nothing else was wrong is well as soon as its GPU is."""
    for second, healthy in enumerate((True, False, True, False)):
        put("n1", gpu(0, mig=True, healthy=healthy), mig(1), seconds=second)
    assert Device.objects.get(uuid="MIG-1").health_said
    say("n1", "GPU-0", "", 4)
    assert health_settle(now=NOW + 2 * flapping.STEADY) >= 1
    assert present("n1") == {"GPU-0": True, "MIG-1": True}
