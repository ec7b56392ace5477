"""`manage.py service_token`: what it prints is a token with which Prometheus may scrape the fleet, and nothing else."""

from __future__ import annotations

import io

import pytest
from django.core.management import CommandError, call_command
from knox.models import AuthToken
from rest_framework.test import APIClient

from access.choices import Role, TokenScope
from access.tokens import verify
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db
URL = "/api/v1/fleet/metrics/"


def printed(name: str, *options: str) -> str:
    out = io.StringIO()
    call_command("service_token", name, *options, stdout=out)
    return out.getvalue().removesuffix("\n")


def test_its_token_may_scrape_until_the_next_is_printed() -> None:
    """VIEW-5 the documented way to a scraper's token."""
    first = printed("prometheus")
    client = APIClient()
    assert client.get(URL, headers={"Authorization": f"Bearer {first}"}).status_code == 200
    second = printed("prometheus")
    assert client.get(URL, headers={"Authorization": f"Bearer {first}"}).status_code == 401
    assert client.get(URL, headers={"Authorization": f"Bearer {second}"}).status_code == 200


def test_another_scope() -> None:
    """VIEW-6 what its token opens is said at its making, and stays with the account."""
    token = printed("ci", "--scope", "rest", "--role", "operator", "--days", "30")
    actor = verify(token)
    assert actor is not None
    assert (actor.scope, actor.role, actor.namespaces) == (TokenScope.REST, Role.OPERATOR, frozenset())
    assert AuthToken.objects.get().expiry is not None
    with pytest.raises(CommandError, match="has the scope rest"):
        printed("ci", "--scope", "inventory")
    with pytest.raises(CommandError, match="invalid choice"):
        printed("n1", "--scope", "agent")


@pytest.mark.parametrize("name", ["kim", "no name"])
def test_no_persons_account_is_taken(name: str) -> None:
    UserFactory(username="kim")
    with pytest.raises(CommandError):
        printed(name)
