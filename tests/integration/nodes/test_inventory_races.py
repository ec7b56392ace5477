"""Inventories against one another and against the ledger, on real connections of both databases."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import transaction

from access.actors import SYSTEM
from access.errors import Conflict, Unavailable
from audit.models import Event
from nodes.choices import NodeState, Presence
from nodes.frame_order import FrameStamp
from nodes.inventory import parse_node
from nodes.models import Device, Node
from nodes.services import devices_health, inventory_put, node_remove, node_state_set

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BY: dict[str, Any] = {"actor": SYSTEM, "now": NOW}


def shape(name="n1", gpus=4, prefix="GPU-"):
    return parse_node(
        {
            "name": name,
            "devices": [
                {"minor": minor, "uuid": f"{prefix}{minor}", "model": "H100", "memory": "80Gi"} for minor in range(gpus)
            ],
        }
    )


def put(**more):
    return inventory_put(shape=shape(**more), **BY)


def test_one_of_many_registers_a_node(ledger_db):
    """LEASE-2 (part) the same inventory from many at once is one node, its devices once."""
    results = ledger_db.race([put] * 6)
    assert sorted(created for _, created in results) == [False] * 5 + [True]
    assert (Node.objects.count(), Device.objects.count()) == (1, 4)
    assert Event.objects.filter(kind="node.registered").count() == 1
    assert Event.objects.count() == 1


def test_a_uuid_has_one_home(ledger_db):
    """LEASE-2 (part) two nodes that claim the same cards: one gets them, the other has none of them and is not
    refused.
    """
    results = ledger_db.race([lambda: put(name="n1"), lambda: put(name="n2")] * 2)
    assert [result for result in results if isinstance(result, Exception)] == []
    assert Device.objects.exclude(presence=Presence.REMOVED).count() == 4
    assert Device.objects.values("node").distinct().count() == 1


def hold(uuid):
    """As the ledger does it: a conditional update."""
    with transaction.atomic():
        return Device.objects.filter(uuid=uuid, presence=Presence.PRESENT, core_used=0).update(
            core_used=100, memory_used=80 << 30
        )


def test_a_device_is_either_taken_or_removed(ledger_db):
    """LEASE-2 (part) whoever comes first: a held device is never removed."""
    put()
    ledger_db.race([lambda: hold("GPU-3"), lambda: put(gpus=3)])
    device = Device.objects.get(uuid="GPU-3")
    assert (device.presence, device.core_used) in {(Presence.VANISHED, 100), (Presence.REMOVED, 0)}


def test_growing_and_shrinking_at_once_end_in_one_of_the_two(ledger_db):
    put()
    results = ledger_db.race([lambda: put(gpus=2), lambda: put(gpus=6)] * 3)
    assert not [result for result in results if isinstance(result, Exception)]
    present = sorted(Device.objects.filter(presence=Presence.PRESENT).values_list("minor", flat=True))
    assert present in (list(range(2)), list(range(6)))


def test_health_comes_and_goes_and_is_reported_once(ledger_db):
    """NODE-1 health by UUID; unknown ones are skipped."""
    put()
    sick = devices_health(node_name="n1", health={"GPU-0": "Xid 79", "GPU-1": "", "GPU-9": "x"}, **BY)
    assert [(device.uuid, device.healthy) for device in sick] == [("GPU-0", False)]
    assert devices_health(node_name="n1", health={"GPU-0": "Xid 79"}, **BY) == ()
    revision = Device.objects.get(uuid="GPU-0").revision
    assert revision > Device.objects.get(uuid="GPU-1").revision
    assert devices_health(node_name="n1", health={"GPU-0": ""}, **BY)[0].healthy
    told = Event.objects.filter(kind="device.health").order_by("id").values_list("message", flat=True)
    assert list(told) == ["gpu 0 of n1 is unhealthy: Xid 79", "gpu 0 of n1 is well again"]


def test_a_state_bumps_every_device_once(ledger_db):
    """LEASE-5 (part) a silent node takes nothing new; its holders keep what they have."""
    node, _ = put()
    hold("GPU-0")
    before = dict(Device.objects.values_list("uuid", "revision"))
    quiet: dict[str, Any] = {"node": node, "state": NodeState.NOT_READY, "problem": "agent silent", **BY}
    assert node_state_set(**quiet)
    assert not node_state_set(**quiet)
    after = dict(Device.objects.values_list("uuid", "revision"))
    assert all(after[uuid] > before[uuid] for uuid in before)
    assert Device.objects.get(uuid="GPU-0").core_used == 100
    assert Event.objects.filter(kind="node.health").count() == 1


def test_a_node_is_removed_once_nobody_holds_its_devices(ledger_db):
    """LEASE-5 (part) a removed node's devices take nothing new."""
    node, _ = put(gpus=2)
    hold("GPU-0")
    with pytest.raises(Conflict):
        node_remove(node=node, **BY)
    assert set(Device.objects.values_list("presence", flat=True)) == {"present"}
    Device.objects.update(core_used=0, memory_used=0)
    assert node_remove(node=node, **BY)
    assert not node_remove(node=node, **BY)
    assert dict(Device.objects.values_list("uuid", "presence")) == {"GPU-0": "removed", "GPU-1": "removed"}
    assert Event.objects.filter(kind="node.removed").count() == 1


def test_the_newest_of_an_agents_frames_counts(ledger_db):
    """NODE-2 in whatever order web processes store them."""
    put()

    def said(seq, reason):
        frame = FrameStamp("b0", seq, float(seq))
        return lambda: devices_health(node_name="n1", health={"GPU-3": reason}, frame=frame, **BY)

    results = ledger_db.race([said(seq, "Xid 79") for seq in range(5, 10)])
    assert all(isinstance(result, (tuple, Unavailable)) for result in results)
    assert Node.objects.get().frame_seq == 9
    with pytest.raises(Unavailable):
        said(8, "")()
    assert not Device.objects.get(uuid="GPU-3").healthy
