"""Every endpoint against every role (VIEW-6). What a role may not do leaves the world as it was."""

import pytest
from django.test import Client

from access.choices import Role
from access.services import role_set
from access.token_services import tokens_revoke
from allocations.models import Allocation
from audit.models import Event
from claims.models import GpuClaim
from nodes.models import Node
from tests.integration.rest.conftest import NOW, PASSWORD, claim_manifest, inventory

pytestmark = pytest.mark.django_db

PEOPLE = ("anonymous", "viewer", "operator", "outsider", "registrar", "admin")


@pytest.fixture
def everybody(request):
    return {name: request.getfixturevalue(name) for name in PEOPLE}


def world():
    return Node.objects.count(), list(GpuClaim.objects.order_by("id").values()), Allocation.objects.count()


READS = ("nodes/", "nodes/n1/", "devices/", "claims/", "allocations/", "leases/", "pods/", "events/", "fleet/summary/",
         "fleet/history/")  # fmt: skip
OWN = ("claims/team-a/train/", "claims/team-a/train/explain/")


@pytest.mark.parametrize("path", READS)
def test_anybody_signed_in_reads_lists(everybody, path):
    """VIEW-6 no credentials: 401 with a challenge; any role reads, limited to what it sees."""
    everybody["admin"].put("nodes/n1/inventory/", inventory())
    statuses = {name: api.get(path)[0] for name, api in everybody.items()}
    assert statuses.pop("anonymous") == 401
    assert statuses.pop("registrar") == 403
    assert set(statuses.values()) == {200}
    assert everybody["anonymous"].send("GET", path)["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", OWN)
def test_an_object_of_a_namespace_that_one_does_not_see_does_not_exist(everybody, path):
    """VIEW-6 teams are bound to namespaces: 404 for the others, not 403, so that names do not leak."""
    everybody["operator"].post("claims/", claim_manifest())
    assert {name: api.get(path)[0] for name, api in everybody.items()} == {
        "anonymous": 401,
        "viewer": 200,
        "operator": 200,
        "outsider": 404,
        "registrar": 403,
        "admin": 200,
    }


def test_lists_hold_only_what_one_sees(everybody):
    """VIEW-6 lists are limited to the namespaces of one's teams; so are events."""
    everybody["operator"].post("claims/", claim_manifest())
    everybody["outsider"].post("claims/", claim_manifest(namespace="team-b"))
    role_set(user=everybody["viewer"].user, role=Role.VIEWER, actor=everybody["admin"].actor, now=NOW)

    def seen(name, path):
        rows = everybody[name].get(path)[1]["results"]
        return [row.get("namespace") or row["metadata"]["namespace"] for row in rows]

    assert seen("viewer", "claims/") == ["team-a"]
    assert seen("outsider", "claims/") == ["team-b"]
    assert seen("admin", "claims/") == ["team-a", "team-b"]
    assert seen("outsider", "events/") == ["team-b"]
    assert len(seen("admin", "events/")) == 2


WRITES = {
    "make a claim": lambda api: api.post("claims/", claim_manifest("new")),
    "replace a claim": lambda api: api.put("claims/team-a/train/", claim_manifest(count=2)),
    "patch a claim": lambda api: api.patch("claims/team-a/train/", {"spec": {"ttlSeconds": 5}}),
    "delete a claim": lambda api: api.delete("claims/team-a/train/"),
    "renew a claim": lambda api: api.post("claims/team-a/train/renew/", {"ttlSeconds": 5}),
    "take devices": lambda api: api.post("allocations/", {"namespace": "team-a", "claim": "missing"}),
    "put an inventory": lambda api: api.put("nodes/n2/inventory/", inventory("n2")),
    "take a node out": lambda api: api.delete("nodes/n1/"),
}
WANT = {
    # refused by role or team: 403 where the object may be seen, 404 where not; 401 without credentials
    "make a claim": {"viewer": 403, "operator": 201, "outsider": 403, "registrar": 403, "admin": 201},
    "replace a claim": {"viewer": 403, "operator": 200, "outsider": 404, "registrar": 403, "admin": 200},
    "patch a claim": {"viewer": 403, "operator": 200, "outsider": 404, "registrar": 403, "admin": 200},
    "delete a claim": {"viewer": 403, "operator": 204, "outsider": 404, "registrar": 403, "admin": 204},
    "renew a claim": {"viewer": 403, "operator": 409, "outsider": 404, "registrar": 403, "admin": 409},
    "take devices": {"viewer": 404, "operator": 404, "outsider": 404, "registrar": 403, "admin": 404},
    "put an inventory": {"viewer": 403, "operator": 403, "outsider": 403, "registrar": 201, "admin": 201},
    "take a node out": {"viewer": 403, "operator": 403, "outsider": 403, "registrar": 403, "admin": 204},
}


@pytest.mark.parametrize("name", PEOPLE)
@pytest.mark.parametrize("write", WRITES)
def test_writes_are_for_those_whose_they_are(everybody, write, name):
    """VIEW-6 viewers write nothing, operators in their teams' namespaces, admins everywhere, machines what their scope
    is for.
    """
    everybody["admin"].put("nodes/n1/inventory/", inventory())
    everybody["admin"].post("claims/", claim_manifest())
    before, events = world(), Event.objects.count()
    status, body = WRITES[write](everybody[name])
    assert status == ({"anonymous": 401} | WANT[write])[name], body
    if status >= 400:
        assert world() == before
        assert Event.objects.count() == events


def test_a_viewer_does_not_take_devices(everybody):
    """VIEW-6 as above, where the claim exists."""
    everybody["admin"].post("claims/", claim_manifest())
    assert everybody["viewer"].post("allocations/", {"namespace": "team-a", "claim": "train"})[0] == 403
    assert not Allocation.objects.exists()


def test_a_revoked_token_and_a_shut_account_are_nobody(operator, admin):
    """VIEW-6 tokens can be revoked."""
    assert operator.get("claims/")[0] == 200
    tokens_revoke(user=operator.user, actor=admin.actor, now=NOW)
    assert operator.get("claims/")[0] == 401
    for header in ("Bearer", "Bearer a b", "Bearer " + "x" * 400, "Bearer ü", "Token abc"):
        operator.token = ""
        assert operator.call("GET", "claims/", headers={"Authorization": header})[0] == 401


def test_a_session_reads_and_writes_only_with_the_csrf_token(operator):
    """VIEW-6 the pages' own writes are protected against other sites."""
    operator.user.set_password(PASSWORD)
    operator.user.save()
    browser = Client(enforce_csrf_checks=True)
    assert browser.login(username="olga", password=PASSWORD)
    assert browser.get("/api/v1/claims/").status_code == 200
    refused = browser.post("/api/v1/claims/", claim_manifest(), content_type="application/json")
    assert (refused.status_code, refused["Content-Type"]) == (403, "application/problem+json")
    assert not GpuClaim.objects.exists()
    browser.cookies["csrftoken"] = "c" * 32
    accepted = browser.post(
        "/api/v1/claims/", claim_manifest(), content_type="application/json", headers={"X-CSRFToken": "c" * 32}
    )
    assert accepted.status_code == 201


def test_a_superuser_is_an_admin(db, operator):
    operator.user.is_superuser = True
    operator.user.save()
    assert operator.actor.namespaces is None
    assert operator.put("nodes/n2/inventory/", inventory("n2"))[0] == 201
