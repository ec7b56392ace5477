"""Pages of accounts and teams: one service and one event a change, and errors at the field."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.html import escape
from knox.models import AuthToken

from access import tokens
from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.errors import Conflict
from access.models import IdempotencyRecord, Profile, Team
from access.selectors import actor_of, role_of
from access.services import RESERVED_NAMES, user_create
from audit.models import Event
from storage.clock import database_now
from tests.factories import PASSWORD, TeamFactory, UserFactory

pytestmark = pytest.mark.django_db
FRESH = "a new and quiet river"
TWICE = {"password": FRESH, "again": FRESH}


@pytest.fixture
def ada(client: Client) -> Client:
    """Signed in as an admin, who is no superuser."""
    client.force_login(UserFactory(username="ada", role=Role.ADMIN))
    return client


def told() -> list[tuple[str, str]]:
    return list(Event.objects.order_by("id").values_list("actor", "message"))


def at(user: User) -> str:
    return f"/accounts/{user.pk}/"


def problem(answer: Any) -> tuple[str, str]:
    """(field, words) of a form that was refused; the page says the words."""
    assert answer.status_code == 400
    found = answer.context["problem"]
    said = "" if found.field == "change" else f' id="{found.field}-problem" role="alert">'
    assert said + escape(found.text) in answer.content.decode()
    return found.field, found.text


def machine(scope: TokenScope, node: str = "") -> User:
    """A machine account with a token."""
    now = database_now()
    user = user_create(
        username="m", password=None, role=Role.VIEWER, actor=SYSTEM, now=now, service=True, scope=scope, node=node
    )
    tokens.issue(user)
    Event.objects.all().delete()
    return user


def test_a_team_and_a_person_in_it(ada: Client) -> None:
    """VIEW-6 each write leaves one event, with who did it."""
    assert ada.post("/teams/new/", {"name": "red", "namespaces": "r1, r2"}).status_code == 302
    team = Team.objects.get()
    person = {"kind": "person", "username": "olga", "role": "operator", "teams": [team.pk], **TWICE}
    olga_at = ada.post("/accounts/new/", person)["Location"]
    olga = User.objects.get(username="olga")
    assert (olga_at, olga.check_password(FRESH)) == (at(olga), True)
    assert (actor_of(olga).role, actor_of(olga).namespaces) == (Role.OPERATOR, frozenset({"r1", "r2"}))
    changes: list[tuple[str, dict[str, Any]]] = [
        (at(olga), {"change": "role", "role": "viewer"}),
        (at(olga), {"change": "teams", "seen": [team.pk]}),
        (at(olga), {"change": "teams", "teams": [team.pk, "999", "x"]}),
        (f"/teams/{team.pk}/", {"change": "member-remove", "member": "olga"}),
        (f"/teams/{team.pk}/", {"change": "member-add", "member": "olga"}),
        (f"/teams/{team.pk}/", {"change": "namespace-add", "namespace": "r3"}),
        (f"/teams/{team.pk}/", {"change": "namespace-remove", "namespace": "r1"}),
        (at(olga), {"change": "password", "password": PASSWORD, "again": PASSWORD}),
        (at(olga), {"change": "active", "active": "0"}),
        (at(olga), {"change": "active", "active": "1"}),
        (f"/teams/{team.pk}/", {"change": "delete"}),
        (at(olga), {"change": "delete"}),
    ]
    for address, form in changes:
        assert ada.post(address, form).status_code == 302, form
    assert not User.objects.filter(username="olga").exists()
    assert not Team.objects.exists()
    assert told() == [
        ("ada", "team red created of r1, r2"),
        ("ada", "account olga created as operator, in team red"),
        ("ada", "olga is now viewer, was operator"),
        ("ada", "olga is now in no team, was in team red"),
        ("ada", "olga is now in team red, was in no team"),
        ("ada", "olga left team red"),
        ("ada", "olga joined team red"),
        ("ada", "namespace r3 given to team red"),
        ("ada", "namespace r1 taken from team red"),
        ("ada", "password of olga changed"),
        ("ada", "account olga shut"),
        ("ada", "account olga opened"),
        ("ada", "team red deleted"),
        ("ada", "account olga deleted"),
    ]


def test_teams_that_another_admin_changed_are_not_overwritten(ada: Client) -> None:
    """VIEW-6 the form says which teams it showed; where they are others by now it says so and changes nothing."""
    olga = UserFactory(username="olga", role=Role.OPERATOR)
    red, blue = TeamFactory(name="red"), TeamFactory(name="blue")
    olga.teams.add(red)
    form = {"change": "teams", "seen": [red.pk], "teams": [red.pk]}
    for team in (red, blue):
        assert (f'name="seen" value="{team.pk}"' in ada.get(at(olga)).content.decode()) == (team == red)
    olga.teams.add(blue)
    assert problem(ada.post(at(olga), form)) == ("teams", "olga is in team blue, team red by now: look again")
    assert set(olga.teams.all()) == {red, blue}
    assert ada.post(at(olga), form | {"seen": [red.pk, blue.pk]}).status_code == 302
    assert set(olga.teams.all()) == {red}
    assert ada.post(at(olga), {"change": "teams", "seen": [red.pk]}).status_code == 302
    assert not olga.teams.exists()


@pytest.mark.parametrize(
    ("form", "field"),
    [
        pytest.param({"username": "a b"}, "username", id="odd name"),
        pytest.param({"username": "x" * 151}, "username", id="long name"),
        pytest.param({"username": "ada"}, "username", id="the name is taken"),
        *(
            pytest.param({"username": name}, "username", id=f"{name} is gpuplane itself")
            for name in sorted(RESERVED_NAMES)
        ),
        pytest.param({"role": "king"}, "role", id="no such role"),
        pytest.param({"password": "", "again": ""}, "password", id="no password"),
        pytest.param({"password": "short", "again": "short"}, "password", id="weak password"),
        pytest.param({"again": "another"}, "again", id="passwords differ"),
        pytest.param({"kind": "machine", "scope": "all"}, "scope", id="no such scope"),
        pytest.param({"kind": "machine", "scope": "agent", "node": ""}, "node", id="an agent without a node"),
        pytest.param({"kind": "machine", "scope": "agent", "node": "A b"}, "node", id="odd node"),
    ],
)
def test_an_account_that_cannot_be(ada: Client, form: dict[str, str], field: str) -> None:
    """VIEW-6 the form says why, at the field, keeps what was typed, and nothing was made."""
    sent = {"kind": "person", "username": "olga", "role": "viewer", **TWICE, **form}
    answer = ada.post("/accounts/new/", sent)
    assert problem(answer)[0] == field
    assert f'value="{sent["username"]}"' in answer.content.decode()
    assert User.objects.count() == 1
    assert told() == []


@pytest.mark.parametrize(
    ("form", "field"),
    [
        pytest.param({"name": "A team"}, "name", id="odd name"),
        pytest.param({"name": "red"}, "name", id="the name is taken"),
        pytest.param({"name": "blue", "namespaces": "ok a.b"}, "namespace", id="odd namespace"),
    ],
)
def test_a_team_that_cannot_be(ada: Client, form: dict[str, str], field: str) -> None:
    """VIEW-6 namespaces of teams are names of namespaces."""
    TeamFactory(name="red")
    assert problem(ada.post("/teams/new/", form))[0] == field
    assert Team.objects.count() == 1
    assert told() == []


@pytest.mark.parametrize(
    ("form", "field"),
    [
        pytest.param({"change": "namespace-add", "namespace": "a.b"}, "namespace", id="odd namespace"),
        pytest.param({"change": "member-add", "member": "nobody"}, "member", id="no such account"),
        pytest.param({"change": "rename"}, "change", id="no such change"),
    ],
)
def test_a_change_of_a_team_that_cannot_be(ada: Client, form: dict[str, str], field: str) -> None:
    assert problem(ada.post(f"/teams/{TeamFactory().pk}/", form))[0] == field
    assert told() == []


@pytest.mark.parametrize(
    ("form", "left"),
    [
        pytest.param({"kind": "machine", "scope": "inventory"}, 0, id="another scope"),
        pytest.param({"kind": "machine", "scope": "agent", "node": "n1"}, 0, id="an agent's"),
        pytest.param({"kind": "person"}, 0, id="a person's"),
        pytest.param({"kind": "machine", "scope": "metrics", "node": "ignored"}, 1, id="the same again"),
        pytest.param({"change": "role", "role": "operator"}, 1, id="another role"),
    ],
)
def test_a_scope_that_changes_takes_the_tokens_along(ada: Client, form: dict[str, str], left: int) -> None:
    """VIEW-6 a token that was made for a scraper never opens another door; with an event."""
    user = machine(TokenScope.METRICS)
    assert ada.post(at(user), {"change": "machine", **form}).status_code == 302
    assert AuthToken.objects.filter(user=user).count() == left
    assert [("1 token revoked" in message) for _, message in told()] == ([True] if not left else [False][: len(told())])


def test_an_agent_of_another_node_has_no_token(ada: Client) -> None:
    """VIEW-6"""
    user = machine(TokenScope.AGENT, node="n1")
    assert (
        ada.post(at(user), {"change": "machine", "kind": "machine", "scope": "agent", "node": "n2"}).status_code == 302
    )
    assert not AuthToken.objects.filter(user=user).exists()
    assert Profile.objects.get(user=user).node == "n2"


def test_nobody_but_an_agent_names_a_node_and_two_agents_none_alike(ada: Client) -> None:
    """VIEW-6 an account that is no agent's any more lets go of its node."""
    user = machine(TokenScope.AGENT, node="n1")
    sent = {"kind": "machine", "username": "m2", "scope": "agent", "node": "n1"}
    assert "already an account of the agent of n1" in problem(ada.post("/accounts/new/", sent))[1]
    ada.post(at(user), {"change": "machine", "kind": "machine", "scope": "metrics", "node": "n1"})
    assert (Profile.objects.get(user=user).scope, Profile.objects.get(user=user).node) == ("metrics", "")
    assert ada.post("/accounts/new/", sent).status_code == 302


def test_a_person_who_becomes_a_machine_signs_in_no_more(ada: Client) -> None:
    olga = UserFactory(username="olga")
    browser = Client()
    browser.force_login(olga)
    assert browser.get("/").status_code == 200
    assert ada.post(at(olga), {"change": "machine", "kind": "machine", "scope": "metrics"}).status_code == 302
    assert browser.get("/").status_code == 302
    assert Client().post("/sign-in/", {"username": "olga", "password": PASSWORD}).status_code == 401
    assert problem(ada.post(at(olga), {"change": "password", **TWICE}))[1] == "a machine has tokens and no password"


@pytest.mark.parametrize("form", [{"change": "active", "active": "0"}, {"change": "delete"}], ids=["shut", "deleted"])
def test_whose_account_ends_has_no_token_and_no_session(ada: Client, form: dict[str, str]) -> None:
    """VIEW-6 for good: it is not enough that the account is shut. Answers kept for repeats are in nobody's way."""
    olga = UserFactory(username="olga")
    token = tokens.issue(olga)
    assert tokens.verify(token) is not None
    IdempotencyRecord.objects.create(user=olga, key="k", method="POST", path="/", digest="d", created_at=database_now())
    browser = Client()
    browser.force_login(olga)
    assert ada.post(at(olga), form).status_code == 302
    assert not AuthToken.objects.exists()
    assert tokens.verify(token) is None
    assert browser.get("/").status_code in {302, 403}
    verb = "deleted" if form["change"] == "delete" else "shut"
    assert told() == [("ada", f"account olga {verb}, 1 token revoked")]
    assert IdempotencyRecord.objects.exists() == (verb == "shut")


def test_all_tokens_of_an_account_are_revoked(ada: Client) -> None:
    """VIEW-6 and one of them on the page of tokens, which the account's page leads to."""
    olga = UserFactory(username="olga")
    tokens.issue(olga)
    assert "/tokens/?account=olga" in ada.get(at(olga)).content.decode()
    assert at(olga) in ada.get("/tokens/?account=olga").content.decode()
    assert ada.post(at(olga), {"change": "tokens"}).status_code == 302
    assert not AuthToken.objects.exists()
    assert told() == [("ada", "1 tokens of olga revoked")]


LAST: dict[str, dict[str, str]] = {
    "shut": {"change": "active", "active": "0"},
    "deleted": {"change": "delete"},
    "a viewer": {"change": "role", "role": "viewer"},
    "a machine": {"change": "machine", "kind": "machine", "scope": "rest"},
}


@pytest.mark.parametrize("change", LAST)
def test_the_last_admin_stays_one(ada: Client, change: str) -> None:
    """VIEW-6 admins who are shut, and machines, do not count as another."""
    UserFactory(role=Role.ADMIN, is_active=False)
    UserFactory(role=Role.ADMIN, service=True)
    me = User.objects.get(username="ada")
    problem(ada.post(at(me), LAST[change]))
    me.refresh_from_db()
    assert (me.is_active, actor_of(me).role, me.profile.service) == (True, Role.ADMIN, False)
    assert told() == []


@pytest.mark.parametrize("change", ["shut", "deleted", "a machine"])
def test_nobody_ends_the_own_account(ada: Client, change: str) -> None:
    """VIEW-6 though there is another admin, who can."""
    UserFactory(role=Role.ADMIN)
    me = User.objects.get(username="ada")
    assert "own account" in problem(ada.post(at(me), LAST[change]))[1]
    assert User.objects.get(pk=me.pk).is_active


def test_an_admin_may_step_down_where_there_is_another(ada: Client) -> None:
    UserFactory(role=Role.ADMIN)
    me = User.objects.get(username="ada")
    ada.post(at(me), LAST["a viewer"])
    assert ada.get("/accounts/").status_code == 403
    assert role_of(User.objects.get(pk=me.pk)) == Role.VIEWER


def test_a_superuser_with_a_lower_role_is_none(ada: Client) -> None:
    """VIEW-6 the role that the page sets is the role that counts, and the admin of Django closes too."""
    root = UserFactory(is_superuser=True, is_staff=True)
    assert actor_of(root).role == Role.ADMIN
    assert ada.post(at(root), {"change": "role", "role": "operator"}).status_code == 302
    found = User.objects.get(pk=root.pk)
    assert (actor_of(found).role, found.is_superuser, found.is_staff) == (Role.OPERATOR, False, False)


def test_ones_own_password_is_not_set_on_the_accounts_page(ada: Client) -> None:
    """An open session is not enough: its own page asks for the old one."""
    me = User.objects.get(username="ada")
    answer = ada.post(at(me), {"change": "password", **TWICE})
    assert (answer.status_code, answer.context["problem"].field) == (400, "password")
    assert User.objects.get(pk=me.pk).check_password(PASSWORD)


@pytest.mark.parametrize(
    ("form", "ticked", "want"),
    [
        pytest.param(
            {"change": "machine", "kind": "machine", "scope": "agent", "node": "Not_A_Node"},
            True,
            ['value="machine" checked', 'value="agent" selected', 'value="Not_A_Node"', 'value="viewer" selected'],
            id="a machine",
        ),
        pytest.param(
            {"change": "role", "role": "operator"},
            True,
            ['value="person" checked', 'value="operator" selected'],
            id="a role",
        ),
        pytest.param({"change": "teams"}, False, ['value="person" checked', 'value="viewer" selected'], id="no teams"),
    ],
)
def test_the_forms_of_an_account_keep_what_was_typed(
    ada: Client, monkeypatch: pytest.MonkeyPatch, form: dict[str, str], ticked: bool, want: list[str]
) -> None:
    """VIEW-6 the form that was refused, and it alone."""

    def refuse(**_: Any) -> None:
        raise Conflict("not now")

    for name in ("role_set", "user_teams_set"):
        monkeypatch.setattr(f"access.services.{name}", refuse)
    olga, team = UserFactory(username="olga", role=Role.VIEWER), TeamFactory()
    olga.teams.add(team)
    answer = ada.post(at(olga), form)
    shown = answer.content.decode()
    assert answer.status_code == 400
    assert (f'name="teams" value="{team.pk}" checked>' in shown) == ticked
    assert [text for text in want if text not in shown] == []


def test_lists_ask_alike_much_however_many_there_are(ada: Client) -> None:
    counts: dict[str, list[int]] = {}
    for more in (2, 20):
        for _ in range(more):
            team = TeamFactory()
            team.members.add(UserFactory(), UserFactory())
        for address in ("/accounts/", "/teams/"):
            with CaptureQueriesContext(connection) as asked:
                assert ada.get(address).status_code == 200
            counts.setdefault(address, []).append(len(asked))
    assert all(few == many for few, many in counts.values()), counts


@pytest.mark.parametrize(
    ("query", "want"),
    [
        pytest.param("", ["ada", "m", "olga", "paul"], id="all"),
        pytest.param("?q=OL", ["olga"], id="by a part of the name"),
        pytest.param("?q=red", ["paul"], id="by team"),
        pytest.param("?kind=machines", ["m"], id="machines"),
        pytest.param("?kind=people", ["ada", "olga", "paul"], id="people, one without a profile among them"),
        pytest.param("?kind=shut", ["olga"], id="shut"),
        pytest.param("?kind=nonsense", ["ada", "m", "olga", "paul"], id="a filter that is none"),
    ],
)
def test_accounts_are_found(ada: Client, query: str, want: list[str]) -> None:
    machine(TokenScope.METRICS)
    User.objects.create(username="olga", is_active=False)
    TeamFactory(name="red").members.add(UserFactory(username="paul"))
    assert [row.user.username for row in ada.get(f"/accounts/{query}").context["rows"]] == want


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_the_menu_has_them_for_admins_alone(client: Client, role: Role) -> None:
    """VIEW-6"""
    client.force_login(UserFactory(role=role))
    assert 'href="/accounts/"' not in client.get("/").content.decode()
    for address in ("/accounts/", "/accounts/new/", "/accounts/1/", "/teams/", "/teams/new/", "/teams/1/"):
        assert client.get(address).status_code == 403
    client.force_login(UserFactory(role=Role.ADMIN))
    assert 'href="/accounts/"' in client.get("/").content.decode()
