"""`tokens/`: REST and the page."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from knox.models import AuthToken

from access import tokens
from access.actors import SYSTEM
from access.choices import TokenScope
from access.models import IdempotencyRecord, TokenUse
from access.selectors import token_uid
from access.token_services import token_issue
from audit.models import Event
from gpuplane.rest.idempotency import HEADER
from tests.factories import UserFactory
from tests.integration.rest.conftest import NOW, Api, inventory

pytestmark = pytest.mark.django_db


def browser(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def told(kind: str) -> list[tuple[str, str]]:
    return list(Event.objects.filter(kind=kind).order_by("id").values_list("actor", "name"))


def test_an_admins_token_makes_machines_and_no_people(admin: Api) -> None:
    """VIEW-6 a token of each scope does its own; none of scope rest comes by a token."""
    for scope in TokenScope:
        asked = {"scope": scope.value} | (
            {"node": "n1"} if scope == TokenScope.AGENT else {"account": f"m-{scope.value}"}
        )
        status, body = admin.post("tokens/", asked)
        if scope == TokenScope.REST:
            assert (status, "sign in" in body["detail"]) == (403, True)
            continue
        assert status == 201
        found = tokens.verify(body["token"])
        assert found is not None
        assert found.scope == scope
    rows = {row["scope"]: row for row in admin.get("tokens/")[1]["results"]}
    assert set(rows) == set(TokenScope.values)
    assert rows["agent"]["node"] == "n1"
    assert rows["metrics"]["ends_at"] is None
    assert all("token" not in row for row in rows.values())


def test_a_scraper_can_do_nothing_else(admin: Api) -> None:
    """VIEW-6 it could delete nodes, replace inventories, speak as an agent and bind pods."""
    admin.put("nodes/n1/inventory/", inventory())
    scraper = Api(user=None, token=admin.post("tokens/", {"scope": "metrics", "account": "prometheus"})[1]["token"])
    assert scraper.send("GET", "fleet/metrics/").status_code == 200
    assert scraper.send("GET", "/metrics").status_code == 200
    for method, path, needed in (
        ("DELETE", "nodes/n1/", "rest"),
        ("PUT", "nodes/n1/inventory/", "inventory"),
        ("GET", "nodes/", "rest"),
        ("POST", "tokens/", "rest"),
    ):
        status, body = scraper.call(method, path, inventory())
        assert status == 403
        assert body["detail"] == f"this needs a token of scope {needed}; the scope of this one is metrics"


def test_a_token_is_kept_with_no_answer(admin: Api) -> None:
    """VIEW-6 a token is stored nowhere, for repeats neither."""
    _, made = admin.post("tokens/", {"scope": "metrics", "account": "m"}, headers={HEADER: "once"})
    assert made["token"]
    assert not IdempotencyRecord.objects.exists()


def test_a_token_of_another_scope_leaves_nothing_behind(registrar: Api) -> None:
    """VIEW-6 not even the answer kept for a repeat; where its scope counts, one is kept."""
    assert registrar.post("claims/", {}, headers={HEADER: "once"})[0] == 403
    assert not IdempotencyRecord.objects.exists()
    for replayed in (None, "true"):
        answer = registrar.send("PUT", "nodes/n1/inventory/", inventory(), headers={HEADER: "twice"})
        assert (answer.status_code, answer.get("Idempotency-Replayed")) == (201, replayed)


def test_ends_are_set_and_tokens_revoked(admin: Api, viewer: Api) -> None:
    """VIEW-6 by who owns them, and by admins; others find nothing."""
    assert viewer.user is not None
    token = token_issue(user=viewer.user, actor=SYSTEM, now=timezone.now())
    uid = token_uid(AuthToken.objects.get(token_key=token[:15]))
    mine = Api(user=viewer.user, token=token)
    status, row = mine.patch(f"tokens/{uid}/", {"days": 5})
    assert status == 200
    assert row["ends_at"] < (timezone.now() + timedelta(days=6)).isoformat()
    assert mine.patch(f"tokens/{uid}/", {"days": 50})[0] == 403
    assert mine.patch(f"tokens/{uid}/", {"days": 0})[0] == 400
    assert admin.delete(f"tokens/{token_uid(AuthToken.objects.get(user=admin.user))}/")[0] == 204
    assert mine.delete(f"tokens/{uid}/")[0] == 204
    tokens.forget()
    assert mine.get("tokens/")[0] == 401
    assert told("access.token-revoked") == [("ada", "ada"), ("vera", "vera")]


def test_the_page(admin: Api, operator: Api) -> None:
    """VIEW-6 scope, end and last use are shown; the token itself once."""
    assert operator.user is not None
    client = browser(operator.user)
    AuthToken.objects.all().delete()
    assert "No tokens" in client.get("/tokens/").content.decode()
    answer = client.post("/tokens/", {"days": "7"})
    assert answer["Cache-Control"] == "no-store"
    (row,) = AuthToken.objects.all()
    assert row.expiry - timezone.now() < timedelta(days=7)
    shown = answer.content.decode()
    token = shown.partition('id="made">')[2].partition("<")[0]
    actor = tokens.verify(token)
    assert actor is not None
    assert actor.name == "olga"
    TokenUse.objects.create(token=row, last_used_at=NOW)
    again = client.get("/tokens/").content.decode()
    assert token not in again
    assert f"{token[:8]}…" in again
    assert f"{row.expiry:%Y-%m-%d}" in again
    for given in ({"days": "0"}, {"days": "9999"}, {"days": "x"}, {"scope": "nonsense"}):
        assert client.post("/tokens/", given).status_code == 400
    assert client.post("/tokens/", {"scope": "metrics", "account": "m"}).status_code == 403
    assert AuthToken.objects.count() == 1
    assert admin.user is not None
    other = browser(admin.user)
    assert "olga" in other.get("/tokens/?account=olga").content.decode()
    assert browser(UserFactory()).post(f"/tokens/{token_uid(row)}/revoke/").status_code == 404
    assert other.post(f"/tokens/{token_uid(row)}/revoke/").status_code == 302
    assert not AuthToken.objects.exists()
    assert told("access.token-revoked") == [("ada", "olga")]


def test_an_admin_makes_a_machine_on_the_page(admin: Api) -> None:
    """VIEW-6 and is not shown pages as it."""
    assert admin.user is not None
    answer = browser(admin.user).post("/tokens/", {"scope": "inventory", "account": "registrar"})
    token = answer.content.decode().partition('id="made">')[2].partition("<")[0]
    assert Api(user=None, token=token).put("nodes/n1/inventory/", inventory())[0] == 201
    assert Api(user=None, token=token).delete("nodes/n1/")[0] == 403
    machine = browser(User.objects.get(username="registrar"))
    assert machine.get("/").status_code == 403
    assert machine.get("/api/v1/nodes/").status_code == 403


def test_the_form_keeps_what_was_typed(admin: Api) -> None:
    """VIEW-6 when it is refused; a token that is made leaves it empty."""
    assert admin.user is not None
    client = browser(admin.user)
    typed = {"scope": "agent", "account": "agent-of-n1", "node": "n1.rack-7", "days": "ten"}
    answer = client.post("/tokens/", typed)
    shown = answer.content.decode()
    assert (answer.status_code, "days is a whole number" in shown) == (400, True)
    assert '<option value="agent" selected>' in shown
    assert [f'value="{typed[name]}"' in shown for name in ("account", "node", "days")] == [True] * 3
    made = client.post("/tokens/", {"scope": "inventory", "account": "registrar", "days": "10"})
    assert (made.status_code, 'value="registrar"' in made.content.decode()) == (200, False)
