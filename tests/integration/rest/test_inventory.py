import copy

import pytest

from audit.models import Event
from nodes.choices import Presence
from nodes.models import Device, Node
from tests.integration.rest.conftest import inventory

pytestmark = pytest.mark.django_db


def world():
    """Every row but its times."""
    devices = [
        {key: value for key, value in row.items() if key != "changed_at"}
        for row in Device.objects.order_by("id").values()
    ]
    return list(Node.objects.order_by("id").values()), devices


def hold(uuid, *, core=100, memory=80 << 30):
    Device.objects.filter(uuid=uuid).update(core_used=core, memory_used=memory)


def presence():
    return dict(Device.objects.values_list("uuid", "presence"))


def test_an_unknown_node_is_registered_and_a_known_one_is_not_again(admin):
    assert admin.put("nodes/n1/inventory/", inventory())[0] == 201
    status, body = admin.put("nodes/n1/inventory/", inventory())
    assert status == 200
    assert (body["name"], body["devices"], body["links"]) == ("n1", 2, [[0, 1, 18]])
    assert [(row["uid"], row["memory"], row["island"]) for row in body["inventory"]] == [
        ("GPU-n1-0", 80 << 30, 0),
        ("GPU-n1-1", 80 << 30, 0),
    ]


def test_sent_twice_it_changes_nothing(admin):
    admin.put("nodes/n1/inventory/", inventory())
    before, events = world(), Event.objects.count()
    shuffled = inventory()
    shuffled["devices"].reverse()
    shuffled["links"] = [[1, 0, 18], [0, 1, 20]]
    del shuffled["name"]
    assert admin.put("nodes/n1/inventory/", shuffled)[0] == 200
    assert world() == before
    assert Event.objects.count() == events


def test_an_address_that_becomes_known(admin):
    """DEV-6 the PCI address is kept in its one spelling, told again over REST, and is a change like any other."""
    shape = inventory(gpus=1)
    admin.put("/api/v1/nodes/n1/inventory/", shape)
    assert [one["busid"] for one in admin.get("/api/v1/nodes/n1/")[1]["inventory"]] == [""]
    shape["devices"][0]["busid"] = "00000000:3B:00.0"
    admin.put("/api/v1/nodes/n1/inventory/", shape)
    assert [one["busid"] for one in admin.get("/api/v1/nodes/n1/")[1]["inventory"]] == ["0000:3b:00.0"]
    assert [one["busid"] for one in admin.get("/api/v1/devices/?node=n1")[1]["results"]] == ["0000:3b:00.0"]
    assert Device.objects.get(node__name="n1").bus_id == "0000:3b:00.0"


def test_a_device_that_vanishes_while_held_is_marked_and_comes_back_as_the_same_row(admin):
    admin.put("nodes/n1/inventory/", inventory(gpus=3))
    hold("GPU-n1-1")
    rows = dict(Device.objects.values_list("uuid", "pk"))
    assert admin.put("nodes/n1/inventory/", inventory(gpus=1))[0] == 200
    assert presence() == {"GPU-n1-0": "present", "GPU-n1-1": "vanished", "GPU-n1-2": "removed"}
    assert Device.objects.get(uuid="GPU-n1-1").core_used == 100
    assert not Device.objects.get(uuid="GPU-n1-1").healthy
    shown = {row["uid"]: row["presence"] for row in admin.get("devices/")[1]["results"]}
    assert shown == {"GPU-n1-0": "present", "GPU-n1-1": "vanished"}

    again = Event.objects.count()
    admin.put("nodes/n1/inventory/", inventory(gpus=1))
    assert Event.objects.count() == again

    admin.put("nodes/n1/inventory/", inventory(gpus=3))
    assert set(presence().values()) == {"present"}
    assert dict(Device.objects.values_list("uuid", "pk")) == rows
    assert Device.objects.get(uuid="GPU-n1-1").healthy


def test_a_vanished_device_goes_once_nobody_holds_it(admin):
    admin.put("nodes/n1/inventory/", inventory())
    hold("GPU-n1-1")
    admin.put("nodes/n1/inventory/", inventory(gpus=1))
    hold("GPU-n1-1", core=0, memory=0)
    admin.put("nodes/n1/inventory/", inventory(gpus=1))
    assert presence()["GPU-n1-1"] == Presence.REMOVED


def test_cards_may_swap_places_and_be_replaced(admin):
    admin.put("nodes/n1/inventory/", inventory())
    swapped = inventory()
    swapped["devices"][0]["minor"], swapped["devices"][1]["minor"] = 1, 0
    assert admin.put("nodes/n1/inventory/", swapped)[0] == 200
    assert dict(Device.objects.values_list("uuid", "minor")) == {"GPU-n1-0": 1, "GPU-n1-1": 0}

    replaced = copy.deepcopy(swapped)
    replaced["devices"][0]["uuid"] = "GPU-new"
    assert admin.put("nodes/n1/inventory/", replaced)[0] == 200
    assert presence() == {"GPU-n1-0": "removed", "GPU-n1-1": "present", "GPU-new": "present"}


def test_a_replacement_takes_the_minor_of_a_card_that_vanished_while_held(admin):
    admin.put("nodes/n1/inventory/", inventory())
    hold("GPU-n1-0")
    replaced = inventory()
    replaced["devices"][0]["uuid"] = "GPU-new"
    assert admin.put("nodes/n1/inventory/", replaced)[0] == 200
    assert presence()["GPU-n1-0"] == "vanished"
    assert Device.objects.get(uuid="GPU-new").minor == 0
    events = Event.objects.count()
    assert admin.put("nodes/n1/inventory/", replaced)[0] == 200
    assert Event.objects.count() == events
    hold("GPU-n1-0", core=0, memory=0)
    assert admin.put("nodes/n1/inventory/", inventory())[0] == 200
    assert presence() == {"GPU-n1-0": "present", "GPU-n1-1": "present", "GPU-new": "removed"}


@pytest.mark.parametrize(
    ("held", "memory", "want"),
    [
        pytest.param(40 << 30, "39Gi", 409, id="below what is held"),
        pytest.param(40 << 30, "40Gi", 200, id="down to what is held"),
        pytest.param(80 << 30, "81Gi", 409, id="a full device keeps its size"),
        pytest.param(0, "10Gi", 200, id="a free device may shrink"),
    ],
)
def test_memory_never_changes_under_a_holder(admin, held, memory, want):
    admin.put("nodes/n1/inventory/", inventory())
    hold("GPU-n1-0", core=0, memory=held)
    before = world()
    changed = inventory()
    changed["devices"][0]["memory"] = memory
    status, body = admin.put("nodes/n1/inventory/", changed)
    assert status == want, body
    if want != 200:
        assert world() == before


def test_every_change_that_placement_could_see_raises_the_revision(admin):
    admin.put("nodes/n1/inventory/", inventory(gpus=3, links=[[0, 1, 18]]))

    def revisions():
        return dict(Device.objects.values_list("uuid", "revision"))

    def raised(body):
        before = revisions()
        assert admin.put("nodes/n1/inventory/", body)[0] == 200
        return {uuid for uuid, revision in revisions().items() if revision > before.get(uuid, -1)}

    every = {"GPU-n1-0", "GPU-n1-1", "GPU-n1-2"}
    sick = inventory(gpus=3)
    sick["devices"][2]["healthy"] = False
    assert raised(sick) == {"GPU-n1-2"}
    assert raised({**sick, "mode": "device-plugin"}) == every
    assert raised({**sick, "mode": "device-plugin", "links": []}) == every
    assert raised({**sick, "mode": "device-plugin", "links": [], "labels": {"zone": "b"}}) == set()


def test_a_node_that_was_taken_out_comes_back_by_its_inventory(admin):
    admin.put("nodes/n1/inventory/", inventory())
    assert admin.delete("nodes/n1/")[0] == 204
    assert admin.get("nodes/n1/")[0] == 404
    assert admin.get("nodes/")[1]["results"] == []
    assert admin.put("nodes/n1/inventory/", inventory())[0] == 200
    assert admin.get("nodes/n1/")[1]["state"] == "ready"


def test_a_node_with_holders_is_not_taken_out(admin):
    admin.put("nodes/n1/inventory/", inventory())
    hold("GPU-n1-0", core=50, memory=0)
    before = world()
    assert admin.delete("nodes/n1/")[0] == 409
    assert world() == before


def wrong(**changes):
    return lambda body: body.update(changes)


def wrong_device(index=0, **changes):
    return lambda body: body["devices"][index].update(changes)


@pytest.mark.parametrize(
    ("break_it", "status", "field", "rule"),
    [
        pytest.param(wrong_device(1, uuid="GPU-n1-0"), 400, "devices[1].uuid", "duplicate", id="uuid twice"),
        pytest.param(wrong_device(1, minor=0), 400, "devices[1].minor", "duplicate", id="minor twice"),
        pytest.param(wrong_device(uuid="a b"), 400, "devices[0].uuid", "device-uuid", id="uuid with a space"),
        pytest.param(wrong_device(uuid=""), 400, "devices[0].uuid", "required", id="no uuid"),
        pytest.param(wrong_device(memory="-1Gi"), 400, "devices[0].memory", "quantity", id="negative memory"),
        pytest.param(wrong_device(memory=-1), 400, "devices[0].memory", "quantity", id="negative bytes"),
        pytest.param(wrong_device(memory="9e99"), 400, "devices[0].memory", "quantity", id="huge memory"),
        pytest.param(wrong_device(memory="2Pi"), 400, "devices[0].memory", "range", id="more than any device"),
        pytest.param(wrong_device(memory=1e30), 400, "devices[0].memory", "quantity", id="huge float"),
        pytest.param(wrong_device(memory="NaN"), 400, "devices[0].memory", "quantity", id="NaN as text"),
        pytest.param(wrong_device(memory=None), 400, "devices[0].memory", "required", id="no memory"),
        pytest.param(wrong_device(memory=[]), 400, "devices[0].memory", "quantity", id="memory of another type"),
        pytest.param(wrong_device(minor=-1), 400, "devices[0].minor", "range", id="negative minor"),
        pytest.param(wrong_device(minor=10**9), 400, "devices[0].minor", "range", id="huge minor"),
        pytest.param(wrong_device(minor="x"), 400, "devices[0].minor", "type", id="minor of another type"),
        pytest.param(wrong_device(type="GPU"), 400, "devices[0].type", "dns-label", id="type not a label"),
        pytest.param(wrong_device(model="x" * 129), 400, "devices[0].model", "text", id="long model"),
        pytest.param(wrong_device(modle="H100"), 400, "devices[0].modle", "unknown-field", id="misspelt field"),
        pytest.param(wrong(name="n2"), 400, "name", "address", id="name mismatch"),
        pytest.param(wrong(mode="shared"), 400, "mode", "choice", id="unknown mode"),
        pytest.param(wrong(labels=[]), 400, "labels", "type", id="labels of another type"),
        pytest.param(wrong(devices={}), 400, "devices", "type", id="devices of another type"),
        pytest.param(wrong(links=[[0, 9, 1]]), 400, "links[0]", "link", id="link to nowhere"),
        pytest.param(wrong(links=[[0, 0, 1]]), 400, "links[0]", "link", id="link to itself"),
        pytest.param(wrong(links=[[0, 1]]), 400, "links[0]", "type", id="link of two"),
        pytest.param(wrong(links=[[0, 1, -1]]), 400, "links[0][2]", "range", id="negative links"),
        pytest.param(wrong(links=[[0, 1, 10**9]]), 400, "links[0][2]", "range", id="huge links"),
        pytest.param(wrong(devices=[{}] * 2000), 413, "devices", "too-many", id="too many devices"),
    ],
)
def test_bad_inventories_are_refused_with_the_field_and_the_rule(admin, break_it, status, field, rule):
    admin.put("nodes/other/inventory/", inventory("other"))
    before = world()
    body = inventory()
    break_it(body)
    got, problem = admin.put("nodes/n1/inventory/", body)
    assert (got, problem["field"], problem["rule"]) == (status, field, rule), problem
    assert problem["status"] == status
    assert world() == before


@pytest.mark.parametrize("name", ["UPPER", "-a", "a..b", "a b", "x" * 254, "%00"])
def test_a_name_that_no_node_can_have_leads_nowhere(admin, name):
    assert admin.put(f"nodes/{name}/inventory/", inventory(name="n1"))[0] in {400, 404}
    assert not Node.objects.exists()
