"""Django's admin: every table opens for staff, and nothing can be written there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import URLPattern, URLResolver
from knox.models import AuthToken

from access.models import Profile, Team
from allocations.models import Allocation
from audit.models import Event
from claims.models import GpuClaim
from nodes.models import Device, Node
from tests.integration.rest.conftest import PASSWORD, Api, claim_manifest, inventory

WRITES = ("POST", "PUT", "PATCH", "DELETE")


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
        assert browser.get(f"/admin/{meta.app_label}/{meta.model_name}/{row.pk}/history/").status_code == 200


def test_the_tables_of_access_are_there():
    assert {User, Team, AuthToken, Node, Device, GpuClaim, Allocation, Event} <= set(admin.site._registry)


def _routes(patterns: Any, before: str = "/admin/") -> Iterator[str]:
    for one in patterns:
        if isinstance(one, URLResolver):
            yield from _routes(one.url_patterns, before + str(one.pattern))
        elif isinstance(one, URLPattern):
            yield before + str(one.pattern)


def _addresses() -> Iterator[str]:
    """Every address of the admin, with a row that is there in the place of its id."""
    for route in _routes(admin.site.urls[0]):
        if "app_label" in route:
            yield from (f"/admin/{label}/" for label in ("auth", "access", "audit"))
        elif "(?P<url>" in route:
            yield "/admin/nothing/at/all/"
        else:
            table = re.match(r"/admin/(\w+)/(\w+)/", route)
            row = apps.get_model(table[1], table[2])._default_manager.first() if table and "<" in route else None
            yield re.sub(r"<[^>]*>", str(row.pk) if row is not None else "1", route)


def _world() -> dict[str, list[dict[str, Any]]]:
    """Every row of every table."""
    return {
        model._meta.label: list(model._base_manager.order_by("pk").values())
        for model in apps.get_models(include_auto_created=True)
        if model is not Session
    }


def test_nothing_can_be_written_there(browser: Client, admin: Api, viewer: Api) -> None:
    """VIEW-6 by a superuser, to every address, by every method, with what its forms used to send."""
    admin.put("nodes/n1/inventory/", inventory())
    admin.post("claims/", claim_manifest())
    viewer.post("claims/", claim_manifest(), headers={"Idempotency-Key": "k1"})
    root = User.objects.get(username="root")
    everything = [str(pk) for pk in User.objects.values_list("pk", flat=True)]
    forms: list[dict[str, Any]] = [
        {"post": "yes"},
        {"action": "delete_selected", "_selected_action": everything, "post": "yes"},
        {"old_password": PASSWORD, "new_password1": "a new and quiet river", "new_password2": "a new and quiet river"},
        {"username": "eve", "usable_password": "true", "password1": PASSWORD, "password2": PASSWORD,
         "profile-TOTAL_FORMS": "0", "profile-INITIAL_FORMS": "0"},
        {
            "name": "red",
            "namespaces-TOTAL_FORMS": "1",
            "namespaces-INITIAL_FORMS": "0",
            "namespaces-0-namespace": "A b",
        },
        {"username": root.username, "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00",
         "profile-TOTAL_FORMS": "0", "profile-INITIAL_FORMS": "0"},
    ]  # fmt: skip
    before, walked, taken = _world(), 0, []
    for address in [one for one in _addresses() if one != "/admin/logout/"]:
        for method in WRITES:
            for form in forms if method == "POST" else forms[:1]:
                answer = browser.generic(method, address, *_encoded(form))
                walked += 1
                if answer.status_code not in {302, 403, 404, 405}:
                    taken.append((method, address, answer.status_code))
                if answer.status_code == 302:
                    assert address in {"/admin/login/", "/admin/password_change/", "/admin/password_change/done/"}
    assert walked > 300
    assert taken == []
    assert _world() == before
    assert not Profile.objects.filter(user=root).exists()


def _encoded(form: dict[str, Any]) -> tuple[bytes, str]:
    return urlencode(form, doseq=True).encode(), "application/x-www-form-urlencoded"


def test_ones_own_password_is_set_on_its_page(browser: Client) -> None:
    for address in ("/admin/password_change/", "/admin/password_change/done/"):
        assert browser.get(address)["Location"] == "/password/"
