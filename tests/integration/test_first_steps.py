"""The first sign-in of a new installation, and the steps after it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from access.choices import Role
from access.models import FirstAccount, TeamNamespace
from access.oidc.providers import Provider
from storage.clock import database_now
from tests.factories import PASSWORD, TeamFactory, UserFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def first() -> User:
    """The account that the installation made."""
    FirstAccount.objects.create(username="admin", made_at=database_now())
    made: User = UserFactory(username="admin", role=Role.ADMIN)
    return made


def test_from_the_first_sign_in_to_the_last_step(client: Client, first: User) -> None:
    """VIEW-6 the page of sign-in says where the password is until somebody has signed in; the page of the fleet shows
    admins what is left to do, until nothing is.
    """
    assert "credentials.json" in client.get("/sign-in/").content.decode()
    client.post("/sign-in/", {"username": "admin", "password": PASSWORD})
    assert "credentials.json" not in Client().get("/sign-in/").content.decode()

    def done() -> str:
        page = client.get("/first-steps/").content.decode()
        shown = "first steps are done" in client.get("/").content.decode()
        count = page.count("is-done")
        assert f"{count} of 3 done" in page
        return f"{count}, {'shown' if shown else 'over'}"

    UserFactory(username="shut", role=Role.ADMIN, is_active=False)
    UserFactory(username="robot", role=Role.ADMIN, service=True)
    assert done() == "0, shown"
    UserFactory(username="ada", role=Role.ADMIN)
    assert done() == "1, shown"
    team = TeamFactory(name="red")
    assert done() == "1, shown"
    TeamNamespace.objects.create(team=team, namespace="a")
    assert done() == "2, shown"
    team.members.add(User.objects.get(username="robot"))
    assert done() == "2, shown"
    team.members.add(UserFactory(username="bob"))
    assert done() == "3, over"


def test_who_is_no_admin(client: Client, first: User) -> None:
    """VIEW-6 others are not told."""
    client.force_login(UserFactory(username="bob", role=Role.OPERATOR))
    assert client.get("/first-steps/").status_code == 403
    assert "first steps" not in client.get("/").content.decode()


def test_with_a_provider(client: Client, first: User, settings: Settings) -> None:
    """VIEW-6 the steps name it."""
    settings.GPUPLANE_OIDC = (Provider(id="corp", name="Corp", issuer="https://id.example", client_id="g"),)
    client.force_login(first)
    assert "People sign in by Corp." in client.get("/first-steps/").content.decode()
