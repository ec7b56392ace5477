"""Tokens: for whom, for what, until when, and their end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from knox.models import AuthToken

from access import changes, tokens
from access.actors import SYSTEM, Actor
from access.choices import Role, TokenScope
from access.errors import BadInput, Conflict, NotAllowed, NotFound
from access.selectors import actor_of, token_get, token_list, token_uid
from access.services import user_active_set
from access.token_services import (
    agent_token,
    service_token,
    token_create,
    token_end_set,
    token_issue,
    token_revoke,
    tokens_revoke,
)
from audit.models import Event
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, tzinfo=UTC)
BY: dict[str, Any] = {"actor": SYSTEM, "now": NOW}
MACHINES = [scope for scope in TokenScope if scope != TokenScope.AGENT]


def of(token: str) -> Actor:
    """Whose it is."""
    found = tokens.verify(token)
    assert found is not None
    return found


def row(token: str) -> AuthToken:
    """The token's row."""
    return AuthToken.objects.get(token_key=token[:15])


def told() -> list[tuple[str, str]]:
    """(kind, message) of every event."""
    return list(Event.objects.order_by("id").values_list("kind", "message"))


@pytest.mark.parametrize("scope", MACHINES)
def test_a_machines_token(scope: TokenScope) -> None:
    """VIEW-6 one scope each; the account is made once and has one token at a time, without an end where none is
    chosen.
    """
    first = service_token(username="machine", scope=scope, **BY)
    assert row(first).expiry is None
    second = service_token(username="machine", scope=scope, days=3, **BY)
    assert row(second).expiry == NOW + timedelta(days=3)
    tokens.forget()
    assert tokens.verify(first) is None
    AuthToken.objects.update(expiry=None)
    actor = of(second)
    everything = scope == TokenScope.METRICS
    want: tuple[object, ...] = ("machine", True, None if everything else frozenset(), Role.VIEWER, scope)
    assert (actor.name, actor.service, actor.namespaces, actor.role, actor.scope) == want
    other = TokenScope.METRICS if scope != TokenScope.METRICS else TokenScope.EXTENDER
    with pytest.raises(Conflict, match=f"has the scope {scope.value}"):
        service_token(username="machine", scope=other, **BY)


@pytest.mark.parametrize("scope", [scope for scope in TokenScope if scope != TokenScope.REST])
def test_a_role_gives_a_machine_nothing(scope: TokenScope) -> None:
    """VIEW-6 a scraper that somebody made an admin, or a superuser, is a scraper."""
    user = UserFactory(role=Role.ADMIN, scope=scope, node="n1" if scope == TokenScope.AGENT else "", is_superuser=True)
    actor = of(tokens.issue(user))
    assert (actor.role, actor.scope) == (Role.VIEWER, scope)
    for check in (actor.require_admin, lambda: actor.require_write("any")):
        with pytest.raises(NotAllowed):
            check()


def test_a_machine_of_scope_rest_is_as_a_person() -> None:
    """VIEW-6 its role and its teams, and no more."""
    user = UserFactory(role=Role.OPERATOR, service=True, namespaces=["a"])
    actor = of(tokens.issue(user))
    actor.require_write("a")
    with pytest.raises(NotAllowed):
        actor.require_write("b")


def test_nobody_elses_account_is_taken() -> None:
    agent_token(node="gpu-1", **BY)
    person = UserFactory()
    for name in (person.username, "agent@gpu-1"):
        with pytest.raises(Conflict):
            service_token(username=name, scope=TokenScope.METRICS, **BY)
    service_token(username="prometheus", scope=TokenScope.METRICS, **BY)
    user_active_set(user=User.objects.get(username="prometheus"), active=False, **BY)
    with pytest.raises(Conflict):
        service_token(username="prometheus", scope=TokenScope.METRICS, **BY)
    with pytest.raises(BadInput):
        service_token(username="no name", scope=TokenScope.METRICS, **BY)
    with pytest.raises(BadInput):
        service_token(username="x", scope=TokenScope.AGENT, **BY)
    with pytest.raises(NotAllowed):
        service_token(username="prometheus", scope=TokenScope.METRICS, actor=actor_of(person), now=NOW)


def test_a_nodes_agent() -> None:
    """VIEW-6 a token for one node alone; the ones before it are over, and nobody but admins issues any."""
    first = agent_token(node="gpu-1", **BY)
    actor = of(first)
    assert (actor.node, actor.scope, actor.namespaces, actor.role) == (
        "gpu-1",
        TokenScope.AGENT,
        frozenset(),
        Role.VIEWER,
    )
    actor.require_node("gpu-1")
    with pytest.raises(NotAllowed, match="speaks for node gpu-1 alone"):
        actor.require_node("gpu-2")
    SYSTEM.require_node("gpu-2")
    second = agent_token(node="gpu-1", **BY)
    tokens.forget()
    assert tokens.verify(first) is None
    assert of(second).node == "gpu-1"
    assert of(agent_token(node="gpu-2", **BY)).node == "gpu-2"
    assert User.objects.filter(profile__node="gpu-1").count() == 1
    long = "n" * 60 + "." + "m" * 60 + "." + "k" * 60
    assert of(agent_token(node=long, **BY)).node == long
    with pytest.raises(BadInput):
        agent_token(node="No Node", **BY)
    with pytest.raises(NotAllowed):
        agent_token(node="gpu-1", actor=actor_of(UserFactory(role=Role.OPERATOR)), now=NOW)


@pytest.mark.parametrize(
    ("machine", "days", "want_days"),
    [
        pytest.param(False, None, 90, id="a person's, nothing chosen"),
        pytest.param(False, 1, 1, id="a day"),
        pytest.param(False, 366, 366, id="the longest"),
        pytest.param(True, None, None, id="a machine's, nothing chosen"),
        pytest.param(True, 7, 7, id="a machine's week"),
    ],
)
def test_tokens_end(machine: bool, days: int | None, want_days: int | None) -> None:
    """VIEW-6 tokens of people end."""
    token = token_issue(user=UserFactory(service=machine), days=days, **BY)
    assert row(token).expiry == (None if want_days is None else NOW + timedelta(days=want_days))


@pytest.mark.parametrize("days", [0, -1, 367])
def test_no_end_is_too_far(days: int) -> None:
    with pytest.raises(BadInput) as refused:
        token_issue(user=UserFactory(), days=days, **BY)
    assert refused.value.field == "days"


def test_only_the_start_up_makes_endless_tokens_of_people() -> None:
    user = UserFactory(role=Role.ADMIN)
    assert row(token_issue(user=user, without_end=True, **BY)).expiry is None
    with pytest.raises(NotAllowed):
        token_issue(user=user, without_end=True, actor=actor_of(user), now=NOW)


def test_each_token_leaves_its_trace() -> None:
    """VIEW-6 issue, end and revocation are in the audit trail, with who did it."""
    user = UserFactory(username="olga")
    me = actor_of(user)
    one, two = (token_issue(user=user, actor=me, now=NOW) for _ in range(2))
    token_end_set(token=row(one), days=5, actor=me, now=NOW)
    assert row(one).expiry == NOW + timedelta(days=5)
    token_revoke(token=row(one), actor=me, now=NOW)
    assert tokens_revoke(user=user, actor=SYSTEM, now=NOW) == 1
    assert told() == [
        ("access.token-issued", f"token {one[:8]}… issued to olga, until 2027-02-19 00:00 UTC"),
        ("access.token-issued", f"token {two[:8]}… issued to olga, until 2027-02-19 00:00 UTC"),
        ("access.token-end-set", f"token {one[:8]}… of olga ends 2026-11-26 00:00 UTC"),
        ("access.token-revoked", f"token {one[:8]}… of olga revoked"),
        ("access.token-revoked", "1 tokens of olga revoked"),
    ]
    assert list(Event.objects.order_by("id").values_list("actor", flat=True)) == ["olga"] * 4 + ["system"]
    for event in Event.objects.all():
        assert one not in str(event.data)
        assert two not in str(event.data)


def test_a_token_begets_none_that_outlives_it() -> None:
    """VIEW-6 by a token no token of scope rest is made, none that ends later, and no end put off."""
    user = UserFactory(role=Role.ADMIN)
    session, stolen = actor_of(user), of(token_issue(user=user, days=2, actor=SYSTEM, now=datetime.now(UTC)))
    accounts: tuple[dict[str, Any], ...] = ({}, {"account": "other"}, {"account": user.username})
    for wanted in accounts:
        with pytest.raises(NotAllowed, match="sign in"):
            token_create(actor=stolen, now=NOW, **wanted)
    with pytest.raises(NotAllowed, match="sign in"):
        token_end_set(token=token_list(actor=stolen)[0], days=300, actor=stolen, now=datetime.now(UTC))
    token_end_set(token=token_list(actor=stolen)[0], days=1, actor=stolen, now=datetime.now(UTC))
    end = AuthToken.objects.get().expiry
    wanted_of: tuple[dict[str, Any], ...] = (
        {"scope": TokenScope.AGENT, "node": "n1"},
        {"scope": TokenScope.EXTENDER, "account": "kube-scheduler"},
    )
    for machine in wanted_of:
        made = token_create(actor=stolen, now=datetime.now(UTC), **machine)
        assert (of(made).scope, row(made).expiry) == (machine["scope"], end)
        with pytest.raises(NotAllowed, match="later than itself"):
            token_create(actor=stolen, now=datetime.now(UTC), days=9, **machine)
    assert of(token_create(actor=session, now=datetime.now(UTC))).name == user.username


@pytest.mark.parametrize(
    ("role", "wanted", "error"),
    [
        pytest.param(Role.VIEWER, {"scope": TokenScope.METRICS, "account": "m"}, NotAllowed, id="a viewer's machine"),
        pytest.param(Role.OPERATOR, {"scope": TokenScope.AGENT, "node": "n1"}, NotAllowed, id="an operator's agent"),
        pytest.param(Role.OPERATOR, {"account": "m"}, NotAllowed, id="somebody else's"),
        pytest.param(Role.ADMIN, {"scope": TokenScope.METRICS}, BadInput, id="a machine without a name"),
        pytest.param(Role.ADMIN, {"scope": TokenScope.AGENT}, BadInput, id="an agent without a node"),
        pytest.param(Role.ADMIN, {"scope": TokenScope.AGENT, "node": "n", "account": "m"}, BadInput, id="both"),
        pytest.param(Role.ADMIN, {"node": "n1"}, BadInput, id="a person's of a node"),
        pytest.param(Role.ADMIN, {"days": 9999}, BadInput, id="for ever"),
    ],
)
def test_what_is_not_issued(role: Role, wanted: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        token_create(actor=actor_of(UserFactory(role=role)), now=NOW, **wanted)
    assert not AuthToken.objects.exists()


def test_who_sees_and_revokes_which() -> None:
    """VIEW-6 one's own; everybody's for admins."""
    olga, otto = UserFactory(role=Role.OPERATOR), UserFactory(role=Role.OPERATOR)
    ada = UserFactory(role=Role.ADMIN)
    token = row(token_issue(user=olga, **BY))
    uid = token_uid(token)
    assert token_get(uid=uid, actor=actor_of(olga)) == token
    with pytest.raises(NotFound):
        token_get(uid=uid, actor=actor_of(otto))
    with pytest.raises(NotAllowed):
        token_revoke(token=token, actor=actor_of(otto), now=NOW)
    with pytest.raises(NotAllowed):
        token_end_set(token=token, days=1, actor=actor_of(otto), now=NOW)
    token_revoke(token=token_get(uid=uid, actor=actor_of(ada)), actor=actor_of(ada), now=NOW)
    with pytest.raises(NotFound):
        token_revoke(token=token, actor=actor_of(ada), now=NOW)


def test_a_token_whose_end_is_put_off_opens_at_once(
    django_capture_on_commit_callbacks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VIEW-6 also where it was refused a moment before."""
    monkeypatch.setattr(changes, "_publish", changes.apply_change)  # this process alone
    ada = UserFactory(username="ada", role=Role.ADMIN)
    token = tokens.issue(ada, ends_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert tokens.verify(token) is None
    with django_capture_on_commit_callbacks(execute=True):
        token_end_set(token=row(token), days=90, actor=actor_of(ada), now=timezone.now())
    assert of(token).name == "ada"
