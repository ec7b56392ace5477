"""Accounts in Django's admin: what may not be written there, and what a change there ends."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from knox.models import AuthToken

from access import tokens
from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.errors import BadInput
from access.models import Profile
from access.services import RESERVED_NAMES, user_create
from audit.choices import Kind
from audit.clock import database_now
from audit.models import Event

pytestmark = pytest.mark.django_db
PASSWORD = "a-long-enough-password-7"


@pytest.fixture
def root(client: Client) -> Client:
    """Signed in as a superuser."""
    user = User.objects.create_superuser("root", password=PASSWORD)
    Profile.objects.update_or_create(user=user, defaults={"role": Role.ADMIN})
    client.force_login(user)
    return client


def form_of(user: User, **changed: str) -> dict[str, Any]:
    """The change form of an account, as the browser sends it back."""
    profile = user.profile
    inline = {"id": profile.pk, "user": user.pk, "role": profile.role, "scope": profile.scope, "node": profile.node}
    if profile.service:
        inline["service"] = "on"
    sent = {f"profile-0-{name}": value for name, value in {**inline, **changed}.items()}
    management = {"TOTAL_FORMS": 1, "INITIAL_FORMS": 1, "MIN_NUM_FORMS": 0, "MAX_NUM_FORMS": 1}
    joined = {"date_joined_0": user.date_joined.date(), "date_joined_1": user.date_joined.time()}
    of_profile = {f"profile-{name}": value for name, value in management.items()}
    return {"username": user.username, "is_active": "on", **joined, **of_profile, **sent}


def machine(scope: TokenScope, node: str = "") -> User:
    """A machine account with a token."""
    user = user_create(
        username="machine",
        password=None,
        role=Role.VIEWER,
        actor=SYSTEM,
        now=database_now(),
        service=True,
        scope=scope,
        node=node,
    )
    tokens.issue(user)
    return user


@pytest.mark.parametrize(
    ("changed", "left"),
    [
        pytest.param({"scope": "inventory"}, 0, id="another scope"),
        pytest.param({"role": "operator"}, 1, id="another role"),
    ],
)
def test_a_scope_that_changes_takes_the_tokens_along(root: Client, changed: dict[str, str], left: int) -> None:
    """VIEW-6 a token that was made for a scraper never opens another door; with an event."""
    user = machine(TokenScope.METRICS)
    answer = root.post(f"/admin/auth/user/{user.pk}/change/", form_of(user, **changed))
    assert answer.status_code == 302, answer.context["errors"]
    assert AuthToken.objects.filter(user=user).count() == left
    assert Event.objects.filter(kind=Kind.TOKEN_REVOKED).count() == 1 - left


def test_an_agent_of_another_node_has_no_token(root: Client) -> None:
    """VIEW-6"""
    user = machine(TokenScope.AGENT, node="n1")
    assert root.post(f"/admin/auth/user/{user.pk}/change/", form_of(user, node="n2")).status_code == 302
    assert not AuthToken.objects.filter(user=user).exists()


def test_nobody_but_an_agent_names_a_node(root: Client) -> None:
    """VIEW-6 the form says so."""
    user = machine(TokenScope.METRICS)
    answer = root.post(f"/admin/auth/user/{user.pk}/change/", form_of(user, node="n2"))
    assert "only an agent&#x27;s account names a node" in answer.content.decode()
    assert Profile.objects.get(user=user).node == ""


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_names_of_gpuplane_itself_are_nobodys(root: Client, name: str) -> None:
    """VIEW-6 whoever had one would read in the audit trail what others were refused."""
    with pytest.raises(BadInput, match="audit trail"):
        user_create(username=name, password=None, role=Role.VIEWER, actor=SYSTEM, now=database_now())
    new = {"username": name, "password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    management = {"TOTAL_FORMS": 1, "INITIAL_FORMS": 0, "MIN_NUM_FORMS": 0, "MAX_NUM_FORMS": 1}
    answer = root.post(
        "/admin/auth/user/add/", {**new, **{f"profile-{key}": value for key, value in management.items()}}
    )
    assert "names gpuplane itself" in answer.content.decode()
    user = machine(TokenScope.METRICS)
    answer = root.post(f"/admin/auth/user/{user.pk}/change/", {**form_of(user), "username": name})
    assert "names gpuplane itself" in answer.content.decode()
