"""A UUID that two nodes report, on both databases: it stays where it is, and blocks nothing else."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client

from access.actors import SYSTEM
from access.choices import Role
from audit.models import Event
from nodes.choices import Presence
from nodes.inventory import parse_node
from nodes.models import Device, Node
from nodes.services import devices_health, disputes_settle, inventory_put, node_remove
from tests.factories import UserFactory

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BY: dict[str, Any] = {"actor": SYSTEM, "now": NOW}

pytestmark = pytest.mark.usefixtures("ledger_db")


def put(name: str, *uuids: str, links: Any = ()) -> None:
    devices = [{"minor": minor, "uuid": uuid, "model": "H100", "memory": "80Gi"} for minor, uuid in enumerate(uuids)]
    inventory_put(shape=parse_node({"name": name, "devices": devices, "links": list(links)}), **BY)


def present(name: str) -> list[str]:
    found = Device.objects.filter(node__name=name, presence=Presence.PRESENT).order_by("minor")
    return list(found.values_list("uuid", flat=True))


def disputed(name: str) -> list[tuple[str, str]]:
    from nodes.disputed_devices import disputed_of

    return [(one.uuid, one.node) for one in disputed_of(Node.objects.get(name=name))]


def test_the_others_are_taken() -> None:
    """NODE-1 of a node that claims what another has, all its own devices count."""
    put("n1", "GPU-a", "GPU-b")
    put("n2", "GPU-c", "GPU-a", "GPU-d", links=[[0, 1, 4], [0, 2, 4]])
    assert (present("n1"), present("n2")) == (["GPU-a", "GPU-b"], ["GPU-c", "GPU-d"])
    assert disputed("n2") == [("GPU-a", "n1")]
    assert Node.objects.get(name="n2").links == [[0, 2, 4]]
    last = Event.objects.latest("id").message
    assert last == "n2 registered with 2 devices; 1 claimed that other nodes have: GPU-a (of n1)"


def test_saying_it_again_changes_nothing() -> None:
    """NODE-1 the same inventory twice is one event."""
    put("n1", "GPU-a")
    put("n2", "GPU-a", "GPU-b")
    before = Event.objects.count(), list(Device.objects.order_by("id").values_list("revision", flat=True))
    put("n2", "GPU-a", "GPU-b")
    put("n1", "GPU-a")
    assert before == (Event.objects.count(), list(Device.objects.order_by("id").values_list("revision", flat=True)))


def test_a_device_goes_over_when_its_node_has_left_it() -> None:
    """NODE-1 a card that was moved: once its old node does not report it, the new one has it, without saying so
    again.
    """
    put("n1", "GPU-a", "GPU-b")
    put("n2", "GPU-c", "GPU-a", links=[[0, 1, 18]])
    devices_health(node_name="n2", health={"GPU-c": "Xid 79"}, **BY)
    assert disputes_settle(now=NOW) == 0
    put("n1", "GPU-b")
    assert disputes_settle(now=NOW) == 1
    assert present("n2") == ["GPU-c", "GPU-a"]
    assert disputed("n2") == []
    assert Node.objects.get(name="n2").links == [[0, 1, 18]]
    sick = Device.objects.get(uuid="GPU-c", presence=Presence.PRESENT)
    assert (sick.healthy, sick.health_reason) == (False, "Xid 79"), "what was said since stays"
    assert disputes_settle(now=NOW) == 0


def test_a_device_stays_with_its_holder() -> None:
    """LEASE-2 a held device stays where its allocation is, though its node does not report it any more."""
    put("n1", "GPU-a")
    Device.objects.filter(uuid="GPU-a").update(core_used=100, memory_used=80 << 30)
    put("n1")
    put("n2", "GPU-a")
    assert (present("n2"), disputed("n2")) == ([], [("GPU-a", "n1")])
    assert disputes_settle(now=NOW) == 0
    Device.objects.filter(uuid="GPU-a").update(core_used=0, memory_used=0)
    assert disputes_settle(now=NOW) == 1
    assert (present("n1"), present("n2")) == ([], ["GPU-a"])


def test_a_device_goes_over_when_its_node_is_gone() -> None:
    """NODE-1 and by the next inventory as well as by the beat."""
    put("n1", "GPU-a")
    put("n2", "GPU-a")
    node_remove(node=Node.objects.get(name="n1"), **BY)
    put("n2", "GPU-a")
    assert present("n2") == ["GPU-a"]


def test_instances_go_with_their_gpu() -> None:
    """DEV-12 a MIG instance of a GPU that another node has is as disputed as that."""
    put("n1", "GPU-a")
    gpu = {"minor": 0, "uuid": "GPU-a", "model": "H100", "memory": "80Gi"}
    mig = {"minor": 1, "uuid": "MIG-x", "model": "H100", "memory": "10Gi", "parent": "GPU-a", "profile": "1g.10gb"}
    inventory_put(shape=parse_node({"name": "n2", "devices": [gpu, mig]}), **BY)
    assert present("n2") == []
    assert disputed("n2") == [("GPU-a", "n1"), ("MIG-x", "n1")]


def test_its_page_and_rest_say_who_has_it() -> None:
    """NODE-1 shown where it is claimed, with its reason."""
    put("n1", "GPU-a")
    put("n2", "GPU-a", "GPU-b")
    client = Client()
    client.force_login(UserFactory(role=Role.ADMIN))
    assert "GPU 0 (GPU-a) is reported here and by" in client.get("/nodes/n2/").content.decode()
    answer = client.get("/api/v1/nodes/n2/").json()
    assert answer["disputed"] == [{"uuid": "GPU-a", "type": "gpu", "minor": 0, "node": "n1"}]
    assert [one["uuid"] for one in answer["inventory"]] == ["GPU-b"]


def test_of_two_at_once_one_has_it(ledger_db: Any) -> None:
    """LEASE-2 (part) whoever is first; nobody is refused."""
    results = ledger_db.race([lambda: put("n1", "GPU-a", "GPU-b"), lambda: put("n2", "GPU-a", "GPU-c")] * 3)
    assert [result for result in results if isinstance(result, Exception)] == []
    assert len(present("n1")) + len(present("n2")) == 3
    owner = Device.objects.get(uuid="GPU-a", presence=Presence.PRESENT).node.name
    assert disputed("n2" if owner == "n1" else "n1") == [("GPU-a", owner)]


def test_another_source_of_the_node_keeps_its_claims() -> None:
    """NODE-1 an inventory of other types says nothing about a disputed GPU; one of GPUs does."""
    put("n1", "GPU-a")
    put("n2", "GPU-b", "GPU-a")
    cards = {"name": "n2", "types": ["fpga"], "devices": [{"minor": 0, "type": "fpga", "uuid": "FPGA-1"}]}
    inventory_put(shape=parse_node(cards), **BY)
    assert disputed("n2") == [("GPU-a", "n1")]
    put("n1")
    assert disputes_settle(now=NOW) == 1
    assert (sorted(present("n2")), disputed("n2")) == (["FPGA-1", "GPU-a", "GPU-b"], [])


def test_each_source_gives_up_its_own_claims() -> None:
    """NODE-1"""
    put("n1", "GPU-a", "GPU-c")
    taken = {"name": "n3", "types": ["fpga"], "devices": [{"minor": 0, "type": "fpga", "uuid": "FPGA-1"}]}
    inventory_put(shape=parse_node(taken), **BY)
    described = {"model": "H100", "memory": "80Gi"}
    gpus = [{"minor": minor, "uuid": uuid, **described} for minor, uuid in enumerate(("GPU-a", "GPU-c"))]
    inventory_put(shape=parse_node({"name": "n2", "types": ["gpu"], "devices": gpus}), **BY)
    inventory_put(shape=parse_node(taken | {"name": "n2"}), **BY)
    assert disputed("n2") == [("GPU-a", "n1"), ("GPU-c", "n1"), ("FPGA-1", "n3")]
    inventory_put(shape=parse_node({"name": "n2", "types": ["gpu"], "devices": gpus[1:]}), **BY)
    assert sorted(disputed("n2")) == [("FPGA-1", "n3"), ("GPU-c", "n1")]
    inventory_put(shape=parse_node({"name": "n2", "types": ["fpga"], "devices": []}), **BY)
    assert disputed("n2") == [("GPU-c", "n1")]
    put("n2")
    assert disputed("n2") == []
