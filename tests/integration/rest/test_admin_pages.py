import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client

from access.models import Profile, Team
from allocations.models import Allocation
from audit.models import Event
from claims.models import GpuClaim
from nodes.models import Device, Node
from tests.integration.rest.conftest import PASSWORD, claim_manifest, inventory


@pytest.fixture
def browser(db):
    User.objects.create_superuser("root", password=PASSWORD)
    client = Client()
    client.login(username="root", password=PASSWORD)
    return client


@pytest.mark.parametrize("model", sorted(admin.site._registry, key=str), ids=lambda model: model.__name__)
def test_every_table_opens(browser, admin, model):
    admin.put("nodes/n1/inventory/", inventory())
    admin.post("claims/", claim_manifest())
    meta = model._meta
    assert browser.get(f"/admin/{meta.app_label}/{meta.model_name}/").status_code == 200
    row = model.objects.first()
    if row is not None:
        assert browser.get(f"/admin/{meta.app_label}/{meta.model_name}/{row.pk}/change/").status_code == 200


@pytest.mark.parametrize("model", [Node, Device, GpuClaim, Allocation, Event], ids=lambda model: model.__name__)
def test_what_services_own_is_only_read(browser, model):
    """Nobody edits the ledger by hand."""
    meta = model._meta
    assert browser.get(f"/admin/{meta.app_label}/{meta.model_name}/add/").status_code == 403


def test_changes_of_access_are_told(browser):
    """VIEW-6 an audit trail of every change, those made in the admin too."""
    answer = browser.post(
        "/admin/access/team/add/",
        {
            "name": "red",
            "namespaces-TOTAL_FORMS": "1",
            "namespaces-INITIAL_FORMS": "0",
            "namespaces-0-namespace": "r1",
        },
    )
    assert answer.status_code == 302
    team = Team.objects.get()
    assert [row.namespace for row in team.namespaces.all()] == ["r1"]
    assert browser.post(f"/admin/access/team/{team.pk}/delete/", {"post": "yes"}).status_code == 302
    messages = list(Event.objects.order_by("id").values_list("actor", "message"))
    assert messages == [("root", "team red created in the admin"), ("root", "team red deleted in the admin")]
    assert not Profile.objects.exists()
