"""Who else has a device is named to those alone who may know them, whichever way events are read."""

from importlib import import_module
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.test import Client

from allocations.choices import State
from allocations.ledger.external_holders import external_holder_set
from allocations.models import Allocation
from allocations.reconcile.report import Difference, differences_report
from audit.choices import EventKind
from audit.models import Event
from nodes.models import Device
from tests.factories import NodeFactory
from tests.integration.rest.conftest import NOW

pytestmark = pytest.mark.django_db

FOREIGN = "team-b/secret-training/0b5c-uid"


@pytest.fixture
def node():
    return NodeFactory(name="n1", gpus=2)


@pytest.fixture
def device(node):
    return Device.objects.filter(node=node).earliest("minor")


def browser(api):
    client = Client()
    client.force_login(User.objects.get(pk=api.user.pk))
    return client


def everything_told(api, device):
    """All that an account reads of events, by REST and on pages."""
    told = api.send("GET", "events/").content.decode() + api.send("GET", "devices/").content.decode()
    client = browser(api)
    for path in ("/events/", "/events/?q=secret", "/events/newest/", "/nodes/n1/", f"/devices/{device.pk}/",
                 f"/devices/{device.pk}/state/", f"/devices/{device.pk}/card/", "/fleet/devices.csv"):  # fmt: skip
        told += client.get(path).content.decode().replace("/events/?q=secret", "").replace('value="secret"', "")
    return told


def noted(device):
    external_holder_set(device.uuid, FOREIGN, now=NOW, actor="reconcile")


def noted_and_gone(device):
    noted(device)
    external_holder_set(device.uuid, "", now=NOW, actor="reconcile")


def reported(device):
    one = Difference(
        f"lease gpu-n1-{device.minor} is held by somebody else, while team-a/train runs with the device",
        namespace="team-a",
        name="train",
        node="n1",
        other=FOREIGN,
    )
    differences_report(differences=[one], now=NOW)


@pytest.mark.parametrize(
    "happen",
    [
        pytest.param(noted, id="a stranger takes the lease"),
        pytest.param(noted_and_gone, id="and lets go of it"),
        pytest.param(reported, id="a lease of ours in other hands"),
    ],
)
def test_a_foreign_name(happen, device, admin, operator, viewer, outsider):
    """LEASE-1 VIEW-6a the event is for everybody concerned, the name for those who see its namespace."""
    happen(device)
    for nobody in (operator, viewer):
        told = everything_told(nobody, device)
        assert "team-b" not in told
        assert "secret-training" not in told
        assert "else" in told
    assert FOREIGN in everything_told(admin, device)
    if happen is not reported:
        assert FOREIGN in {row["other"] for row in outsider.get("events/")[1]["results"]}


def test_a_holder_of_no_namespace_is_for_those_who_see_all(device, admin, operator):
    """LEASE-1 VIEW-6a another scheduler's own identity."""
    external_holder_set(device.uuid, "another-scheduler", now=NOW, actor="reconcile")
    assert [row["other"] for row in admin.get("events/")[1]["results"]] == ["another-scheduler"]
    assert [row["other"] for row in operator.get("events/")[1]["results"]] == [""]


@pytest.mark.parametrize(
    "holder", [FOREIGN, "another scheduler, for team-b: secret-training"], ids=["a pod", "any text"]
)
def test_events_of_before_lose_their_names(device, admin, operator, holder):
    """VIEW-6a also what was written with names in its text."""
    older = [
        (EventKind.DEVICE_TAKEN, "", f"gpu 0 of n1: its lease is held by {holder}", {"stranger": holder}),
        (EventKind.DEVICE_TAKEN, "", f"gpu 0 of n1: {holder} let go of its lease", {"stranger": ""}),
        (
            EventKind.DIFFERENCE,
            "team-a",
            f"lease gpu-n1-0 is held by {holder}, while team-a/x runs with the device",
            {},
        ),
        (EventKind.ALLOCATION_RELEASING, "team-a", f"team-a/x returns gpu 0: gpu-n1-0 is held by {holder}", {}),
    ]
    for kind, namespace, message, data in older:
        Event.objects.create(at=NOW, kind=kind, actor="a", namespace=namespace, message=message, data=data)
    import_module("audit.migrations.0005_other_holders").move_names(apps, SimpleNamespace())
    told = everything_told(operator, device)
    assert "team-b" not in told
    assert "secret-training" not in told
    assert [row["other"] for row in admin.get("events/")[1]["results"]] == [holder] * 4


@pytest.mark.parametrize(
    "holder", [FOREIGN, "another scheduler, for team-b: secret-training"], ids=["a pod", "any text"]
)
def test_reasons_of_before_lose_their_names(device, operator, holder):
    """VIEW-6a allocations that ended for a stranger kept the name as their reason, in REST and on their page."""
    ours = Allocation.objects.create(
        state=State.RELEASED,
        reason=f"gpu-n1-0 is held by {holder}",
        namespace="team-a",
        holder="x",
        node=device.node,
        dialect="rest",
        request={},
        created_at=NOW,
        ended_at=NOW,
        changed_at=NOW,
    )
    shown = operator.send("GET", f"allocations/{ours.pk}/").content.decode()
    assert "team-b" in shown, "it could not be told from being hidden"
    import_module("allocations.migrations.0007_reasons_without_names").take_names_out(apps, SimpleNamespace())
    ours.refresh_from_db()
    assert ours.reason == "gpu-n1-0 is held by somebody else"
    shown = operator.send("GET", f"allocations/{ours.pk}/").content.decode()
    assert "held by somebody else" in shown
    assert "team-b" not in shown + browser(operator).get(f"/allocations/{ours.pk}/").content.decode()
