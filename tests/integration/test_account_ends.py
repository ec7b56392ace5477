"""Sessions of accounts that were shut, and ends of tokens that were set meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from knox.models import AuthToken

from access.actors import SYSTEM
from access.choices import Role
from access.errors import NotAllowed
from access.selectors import token_get, token_uid
from access.services import user_active_set
from access.token_services import token_end_set, token_issue
from access.tokens import verify
from storage.clock import database_now
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db


def test_a_session_from_before_the_account_was_shut() -> None:
    """VIEW-6 it stays over when the account is opened again, as its tokens do; others' sessions go on."""
    olga, other = UserFactory(username="olga"), UserFactory(username="other")
    hers, others = Client(), Client()
    hers.force_login(olga)
    others.force_login(other)
    by: dict[str, Any] = {"actor": SYSTEM, "now": database_now()}
    assert hers.get("/").status_code == 200
    user_active_set(user=olga, active=False, **by)
    assert hers.get("/").status_code == 302
    user_active_set(user=olga, active=True, **by)
    assert hers.get("/").status_code == 302
    assert others.get("/").status_code == 200


def test_an_end_that_was_set_meanwhile() -> None:
    """VIEW-6 a token compares with the end that it has by now, not with the one that its request read."""
    now = database_now()
    olga = UserFactory(username="olga", role=Role.OPERATOR)
    actor = verify(token_issue(user=olga, actor=SYSTEM, now=now, days=60))
    assert actor is not None
    read = token_get(uid=token_uid(AuthToken.objects.get()), actor=actor)
    token_end_set(token=AuthToken.objects.get(), days=1, actor=SYSTEM, now=now)
    with pytest.raises(NotAllowed):
        token_end_set(token=read, days=50, actor=actor, now=now)
    assert AuthToken.objects.get().expiry == now + timedelta(days=1)
