"""Tokens issued while others issue, revoke or shut, on real connections of both databases; and what pages delete."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError, transaction
from django.test import Client
from knox.models import AuthToken

from access import changes, tokens
from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.errors import Conflict, NotAllowed, NotFound
from access.models import Team
from access.selectors import actor_of
from access.services import user_active_set
from access.team_services import team_create
from access.token_services import (
    agent_token,
    service_token,
    token_end_set,
    token_issue,
    token_revoke,
)
from audit import services as audit
from audit.models import Event
from tests.databases import TestDatabase, somebody_waits_for_a_lock
from tests.factories import UserFactory

NOW = datetime(2026, 11, 21, tzinfo=UTC)
BY: dict[str, Any] = {"actor": SYSTEM, "now": NOW}
TOGETHER: dict[str, Callable[[], str]] = {
    "an agent's": lambda: agent_token(node="n1", **BY),
    "a machine's": lambda: service_token(username="scraper", scope=TokenScope.METRICS, **BY),
}


@pytest.mark.parametrize("issue", TOGETHER)
@pytest.mark.parametrize("there", [True, False], ids=["of an account that is there", "of one that is made"])
def test_of_tokens_issued_together_one_stays(ledger_db: TestDatabase, issue: str, there: bool) -> None:
    """VIEW-6 a machine has one token, the one that was issued last; nobody meets a fault."""
    if there:
        TOGETHER[issue]()
    results = ledger_db.race([TOGETHER[issue]] * 6)
    assert [result for result in results if not isinstance(result, str)] == []
    (left,) = AuthToken.objects.all()
    assert [str(token)[:15] for token in results].count(left.token_key) == 1
    assert User.objects.count() == 1


@pytest.mark.parametrize("ledger_db", ["postgresql"], indirect=True)
def test_a_token_that_is_being_issued_does_not_outlive_the_account(ledger_db: TestDatabase) -> None:
    """VIEW-6 shutting waits for it, and takes it back: it would open everything again once the account is opened.

    SQLite has one writer at a time.
    """
    user = UserFactory(role=Role.ADMIN)
    shut = threading.Thread(target=lambda: user_active_set(user=user, active=False, **BY))
    with transaction.atomic():
        token_issue(user=User.objects.get(), **BY)
        shut.start()
        while shut.is_alive() and not somebody_waits_for_a_lock():
            shut.join(0.01)
    shut.join(60)
    assert not User.objects.get().is_active
    assert not AuthToken.objects.exists()


sqlite = pytest.mark.parametrize("ledger_db", ["sqlite"], indirect=True)
SHUT: dict[str, Callable[[User], str]] = {
    "an agent's": lambda _user: agent_token(node="n1", **BY),
    "a person's": lambda user: token_issue(user=user, **BY),
}


@sqlite
@pytest.mark.parametrize("of", ["an agent's", "a person's"])
def test_an_account_that_is_shut_gets_no_token(ledger_db: TestDatabase, of: str) -> None:
    """VIEW-6 it would open nothing now, and everything once somebody opens the account again."""
    if of == "an agent's":
        agent_token(node="n1", **BY)
    else:
        UserFactory(role=Role.ADMIN)
    user = User.objects.get()
    user_active_set(user=user, active=False, **BY)
    with pytest.raises(Conflict, match="is shut"):
        SHUT[of](user)
    assert not AuthToken.objects.exists()


@sqlite
def test_the_end_of_a_token_that_was_revoked_meanwhile(ledger_db: TestDatabase) -> None:
    """VIEW-6 who sets it is told that there is none, and no event says otherwise."""
    token_issue(user=UserFactory(role=Role.ADMIN), **BY)
    seen = AuthToken.objects.get()
    token_revoke(token=AuthToken.objects.get(), **BY)
    with pytest.raises(NotFound):
        token_end_set(token=seen, days=1, **BY)
    assert not Event.objects.filter(kind="access.token-end-set").exists()


@sqlite
@pytest.mark.parametrize("what", ["team", "account"])
def test_what_is_deleted_on_a_page_is_reported_when_it_is_gone(
    ledger_db: TestDatabase, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """VIEW-6 whoever is told earlier reads the old once more, and remembers it."""
    chosen: User | Team
    chosen = UserFactory(role=Role.ADMIN) if what == "account" else team_create(name="research", **BY)
    told: list[bool] = []
    monkeypatch.setattr(
        changes, "_publish", lambda _account: told.append(type(chosen).objects.filter(pk=chosen.pk).exists())
    )
    browser = Client()
    browser.force_login(UserFactory(role=Role.ADMIN))
    assert browser.post(f"/{what}s/{chosen.pk}/", {"change": "delete"}).status_code == 302
    assert told == [False]
    tokens.forget()


def _shut_by(actor: User, user: User) -> str:
    user_active_set(user=user, active=False, actor=actor_of(actor), now=NOW)
    return "shut"


def test_of_two_admins_who_shut_one_another_one_stays(ledger_db: TestDatabase) -> None:
    """VIEW-6 each was an admin when the page was asked; nobody is left with none."""
    one, two = UserFactory(role=Role.ADMIN), UserFactory(role=Role.ADMIN)
    results = ledger_db.race([partial(_shut_by, one, two), partial(_shut_by, two, one)])
    assert sum(result == "shut" for result in results) == 1
    assert sum(isinstance(result, Conflict | NotAllowed) for result in results) == 1
    assert User.objects.filter(is_active=True).count() == 1


@sqlite
def test_a_write_that_is_tried_again_is_made(ledger_db: TestDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-6 what the first try, which the database took back, left in memory is not taken for done."""
    user = UserFactory(role=Role.ADMIN)
    record, tries = audit.record, []

    def locked_once(**given: Any) -> Any:
        tries.append(given)
        if len(tries) == 1:
            raise OperationalError("database is locked")
        return record(**given)

    monkeypatch.setattr(audit, "record", locked_once)
    user_active_set(user=user, active=False, **BY)
    assert len(tries) == 2
    assert not User.objects.get().is_active
