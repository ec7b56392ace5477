from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User

from access import services, team_services, token_services
from access.actors import SYSTEM, Actor
from access.choices import Role, TokenScope
from access.errors import BadInput, Conflict, NotAllowed, NotFound
from access.models import Profile, Team
from access.selectors import actor_of
from access.tokens import verify
from audit.models import Event

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 21, tzinfo=UTC)
BY: dict[str, Any] = {"actor": SYSTEM, "now": NOW}
PASSWORD = "a long and quiet river"


def account(name="olga", role=Role.OPERATOR, **more):
    return services.user_create(username=name, password=PASSWORD, role=role, **BY, **more)


def told():
    return list(Event.objects.order_by("id").values_list("actor", "name", "message"))


def test_teams_give_namespaces():
    """VIEW-6 teams are bound to namespaces."""
    olga = account()
    assert actor_of(olga).namespaces == frozenset()
    red = team_services.team_create(name="red", namespaces=["r1", "r2"], **BY)
    blue = team_services.team_create(name="blue", namespaces=["b1"], **BY)
    team_services.team_member_add(team=red, user=olga, **BY)
    team_services.team_member_add(team=blue, user=olga, **BY)
    assert actor_of(olga).namespaces == frozenset({"r1", "r2", "b1"})
    team_services.team_namespace_remove(team=red, namespace="r2", **BY)
    team_services.team_member_remove(team=blue, user=olga, **BY)
    assert actor_of(olga).namespaces == frozenset({"r1"})
    team_services.team_delete(team=red, **BY)
    assert actor_of(olga).namespaces == frozenset()


def test_every_change_is_reported_and_what_changes_nothing_is_not():
    """VIEW-6 an audit trail of every change of access."""
    olga = account()
    team = team_services.team_create(name="red", **BY)
    for _ in range(2):
        team_services.team_namespace_add(team=team, namespace="r1", **BY)
        team_services.team_member_add(team=team, user=olga, **BY)
        services.role_set(user=olga, role=Role.ADMIN, **BY)
        services.user_active_set(user=olga, active=False, **BY)
    services.password_set(user=olga, password="another quiet river", **BY)
    services.user_active_set(user=olga, active=True, **BY)
    token = token_services.token_issue(user=olga, **BY)
    token_services.tokens_revoke(user=olga, **BY)
    assert told() == [
        ("system", "olga", "account olga created as operator"),
        ("system", "red", "team red created"),
        ("system", "red", "namespace r1 given to team red"),
        ("system", "olga", "olga joined team red"),
        ("system", "olga", "olga is now admin, was operator"),
        ("system", "olga", "account olga shut"),
        ("system", "olga", "password of olga changed"),
        ("system", "olga", "account olga opened"),
        ("system", "olga", f"token {token[:8]}… issued to olga, until 2027-02-19 00:00 UTC"),
        ("system", "olga", "1 tokens of olga revoked"),
    ]
    kinds = list(Event.objects.order_by("id").values_list("kind", flat=True))
    assert kinds == ["access.changed"] * 8 + ["access.token-issued", "access.token-revoked"]


CHANGES = {
    "user_create": lambda by, user, team: services.user_create(
        username="x", password=None, role=Role.ADMIN, actor=by, now=NOW
    ),
    "role_set": lambda by, user, team: services.role_set(user=user, role=Role.ADMIN, actor=by, now=NOW),
    "user_active_set": lambda by, user, team: services.user_active_set(user=user, active=False, actor=by, now=NOW),
    "password_set": lambda by, user, team: services.password_set(user=user, password=PASSWORD, actor=by, now=NOW),
    "token_issue": lambda by, user, team: token_services.token_issue(user=user, actor=by, now=NOW),
    "tokens_revoke": lambda by, user, team: token_services.tokens_revoke(user=user, actor=by, now=NOW),
    "team_create": lambda by, user, team: team_services.team_create(name="blue", actor=by, now=NOW),
    "team_delete": lambda by, user, team: team_services.team_delete(team=team, actor=by, now=NOW),
    "team_namespace_add": lambda by, user, team: team_services.team_namespace_add(
        team=team, namespace="n", actor=by, now=NOW
    ),
    "team_namespace_remove": lambda by, user, team: team_services.team_namespace_remove(
        team=team, namespace="r1", actor=by, now=NOW
    ),
    "team_member_add": lambda by, user, team: team_services.team_member_add(team=team, user=user, actor=by, now=NOW),
    "team_member_remove": lambda by, user, team: team_services.team_member_remove(
        team=team, user=user, actor=by, now=NOW
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_only_admins_change_access(change, role):
    """VIEW-6 nobody raises themselves."""
    olga = account()
    team = team_services.team_create(name="red", namespaces=["r1"], **BY)
    before = told()
    with pytest.raises(NotAllowed):
        CHANGES[change](Actor("eve", role, frozenset({"r1"})), olga, team)
    assert told() == before
    assert Profile.objects.get(user=olga).role == Role.OPERATOR


def test_ones_own_password_and_tokens_are_ones_own():
    olga = account()
    me = actor_of(olga)
    with pytest.raises(BadInput, match="asks for the old one"):
        services.password_set(user=olga, password="another quiet river", actor=me, now=NOW)
    services.password_set(user=olga, password="another quiet river", actor=me, now=NOW, old_checked=True)
    token = token_services.token_issue(user=olga, actor=me, now=NOW)
    actor = verify(token)
    assert actor is not None
    assert actor.name == "olga"
    assert token_services.tokens_revoke(user=olga, actor=me, now=NOW) == 1


@pytest.mark.parametrize(
    ("change", "error", "field"),
    [
        pytest.param(lambda: account("a b/c"), BadInput, "username", id="odd name"),
        pytest.param(lambda: account("x" * 151), BadInput, "username", id="long name"),
        pytest.param(lambda: account(""), BadInput, "username", id="no name"),
        pytest.param(lambda: (account(), account()), Conflict, "", id="the name is taken"),
        pytest.param(
            lambda: services.user_create(username="x", password="short", role=Role.VIEWER, **BY),
            BadInput,
            "password",
            id="short password",
        ),
        pytest.param(lambda: team_services.team_create(name="A team", **BY), BadInput, "name", id="odd team"),
        pytest.param(
            lambda: team_services.team_create(name="t", namespaces=["a.b"], **BY), BadInput, "namespace", id="ns"
        ),
        pytest.param(
            lambda: team_services.team_namespace_remove(team=Team.objects.create(name="t"), namespace="x", **BY),
            NotFound,
            "",
            id="a namespace that the team does not own",
        ),
    ],
)
def test_bad_changes_are_refused(change, error, field):
    with pytest.raises(error) as caught:
        change()
    assert caught.value.field == field
    assert not Team.objects.filter(namespaces__isnull=False).exists()


def test_sign_ins_are_reported_whatever_was_typed():
    """VIEW-6 sign-ins, good and bad, leave a trace."""
    services.signed_in(user=account(), address="192.0.2.1", now=NOW)
    name = "a\x00b\n" + "x" * 500
    services.sign_in_failed(username=name, address="192.0.2.1", count=1, since=NOW, waits=False, now=NOW)
    good, bad = Event.objects.order_by("id")[1:]
    assert (good.kind, good.actor) == ("access.signed-in", "olga")
    assert (bad.kind, bad.actor) == ("access.sign-in-failed", "anonymous")
    assert bad.name.startswith("a�b�x")
    assert len(bad.name) == 150


def test_nobody_is_no_actor():
    from django.contrib.auth.models import AnonymousUser

    user = User.objects.create(username="x", is_active=False)
    for nobody in (user, AnonymousUser()):
        with pytest.raises(NotAllowed):
            actor_of(nobody)


def test_an_account_without_a_profile_is_a_viewer():
    assert actor_of(User.objects.create(username="x")).role == Role.VIEWER


@pytest.mark.parametrize("scope", [scope for scope in TokenScope if scope not in {TokenScope.REST, TokenScope.AGENT}])
def test_no_token_makes_an_admin_in_two_steps(scope):
    """VIEW-6 a machine of another scope is a viewer, and stays one when its tokens open REST."""
    by: dict[str, Any] = {"actor": Actor("ada", Role.ADMIN, None, token="d" * 64), "now": NOW}
    machine = services.user_create(username="m", password=None, role=Role.ADMIN, service=True, scope=scope, **by)
    assert Profile.objects.get(user=machine).role == Role.VIEWER
    services.machine_set(user=machine, service=True, scope=TokenScope.REST, **by)
    assert actor_of(User.objects.get(username="m")).role == Role.VIEWER


def test_a_token_opens_rest_to_no_admin():
    """VIEW-6 an admin whose tokens had another scope gets REST from a session alone."""
    machine = services.user_create(
        username="m", password=None, role=Role.VIEWER, service=True, scope=TokenScope.INVENTORY, **BY
    )
    Profile.objects.filter(user=machine).update(role=Role.ADMIN)
    change: dict[str, Any] = {"user": machine, "service": True, "scope": TokenScope.REST, "now": NOW}
    with pytest.raises(NotAllowed):
        services.machine_set(actor=Actor("ada", Role.ADMIN, None, token="d" * 64), **change)
    services.machine_set(actor=Actor("ada", Role.ADMIN, None), **change)
    assert actor_of(User.objects.get(username="m")).role == Role.ADMIN
