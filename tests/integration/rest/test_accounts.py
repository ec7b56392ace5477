"""`accounts/` and `teams/` over REST: one event a change, all of a request or nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from access import tokens
from access.choices import Role
from access.models import Team, TeamNamespace
from access.selectors import role_of
from audit.models import Event
from tests.factories import TeamFactory, UserFactory
from tests.integration.rest.conftest import Api, person

pytestmark = pytest.mark.django_db
NEW = "a new and quiet river"
OLD = "an old and quiet river"


def by_session(user: User, method: str, path: str, body: dict[str, Any]) -> Any:
    """The answer to an admin's browser."""
    client = Client()
    client.force_login(user)
    return client.generic(method, f"/api/v1/{path}", data=json.dumps(body), content_type="application/json")


def told() -> list[str]:
    return list(Event.objects.order_by("id").values_list("message", flat=True))


def test_a_team_and_its_people(admin: Api) -> None:
    """VIEW-6 made, read, changed and deleted; each change is an event of the admin's."""
    assert admin.post("accounts/", {"username": "bob", "role": "operator"})[0] == 201
    made = admin.post("teams/", {"name": "red", "namespaces": ["b", "a"], "members": ["bob"]})
    assert made == (201, {"name": "red", "namespaces": ["a", "b"], "members": ["bob"]})
    assert admin.get("accounts/bob/")[1] | {"tokens": 0} == {
        "username": "bob",
        "role": "operator",
        "kind": "person",
        "scope": "rest",
        "node": "",
        "teams": ["red"],
        "active": True,
        "tokens": 0,
        "last_sign_in_at": None,
    }
    changed = admin.patch("teams/red/", {"namespaces": ["b", "c"], "members": []})
    assert changed == (200, {"name": "red", "namespaces": ["b", "c"], "members": []})
    assert admin.patch("teams/red/", {})[1]["namespaces"] == ["b", "c"]
    assert admin.delete("teams/red/") == (204, None)
    assert admin.get("teams/red/")[0] == 404
    assert told() == [
        "account bob created as operator",
        "team red created of a, b",
        "bob joined team red",
        "namespace c given to team red",
        "namespace a taken from team red",
        "bob left team red",
        "team red deleted",
    ]
    assert set(Event.objects.values_list("actor", flat=True)) == {"ada"}


def test_an_account_is_changed_whole(admin: Api) -> None:
    """VIEW-6 role, teams and whether it is open, in one request; where one of them is refused, none is changed."""
    TeamFactory(name="red")
    bob = person("bob", Role.VIEWER)
    refused = admin.patch("accounts/bob/", {"role": "operator", "teams": ["red", "none"]})
    assert (refused[0], "there is no team none" in str(refused[1])) == (400, True)
    assert (role_of(User.objects.get(username="bob")), told()) == (Role.VIEWER, [])

    status, row = admin.patch("accounts/bob/", {"role": "operator", "teams": ["red"], "active": False})

    assert (status, row["role"], row["teams"], row["active"], row["tokens"]) == (200, "operator", ["red"], False, 0)
    assert tokens.verify(bob.token) is None
    assert admin.delete("accounts/bob/") == (204, None)
    assert admin.get("accounts/bob/")[0] == 404


def test_lists(admin: Api) -> None:
    """VIEW-6 in pages, searched by name and team, filtered by kind."""
    TeamFactory(name="red").members.add(UserFactory(username="bob"))
    admin.post("accounts/", {"username": "scraper", "kind": "machine", "scope": "metrics"})
    names = [row["username"] for row in admin.get("accounts/?page_size=2")[1]["results"]]
    assert names == ["ada", "bob"]
    following = admin.get(admin.get("accounts/?page_size=2")[1]["next"])[1]
    assert [row["username"] for row in following["results"]] == ["scraper"]
    for query, want in {"kind=machines": ["scraper"], "search=red": ["bob"], "search=scr": ["scraper"]}.items():
        assert [row["username"] for row in admin.get(f"accounts/?{query}")[1]["results"]] == want
    assert [row["name"] for row in admin.get("teams/?search=re")[1]["results"]] == ["red"]


def test_no_token_makes_an_admin_or_a_password(admin: Api) -> None:
    """VIEW-6 a stolen token cannot outlive its end that way; a session may."""
    person("bob", Role.VIEWER)
    for method, path, body in [
        ("POST", "accounts/", {"username": "eve", "role": "admin"}),
        ("POST", "accounts/", {"username": "eve", "password": NEW}),
        ("PATCH", "accounts/bob/", {"role": "admin"}),
        ("PATCH", "accounts/bob/", {"password": NEW}),
        ("PATCH", "accounts/ada/", {"password": NEW}),
    ]:
        status, problem = admin.call(method, path, body)
        assert (status, "sign in" in problem["detail"]) == (403, True), (method, path, body)
    assert told() == []
    assert admin.user is not None
    made = by_session(admin.user, "POST", "accounts/", {"username": "eve", "role": "admin", "password": NEW})
    assert made.status_code == 201, made.content
    assert "password" not in made.json()
    assert User.objects.get(username="eve").check_password(NEW)
    assert by_session(admin.user, "PATCH", "accounts/bob/", {"role": "admin"}).json()["role"] == "admin"


def test_ones_own_password_is_not_set_over_rest(admin: Api) -> None:
    """VIEW-6 an open session is not enough: the page for it asks for the old one. All of a request or nothing."""
    assert admin.user is not None
    admin.user.set_password(OLD)
    admin.user.save()
    answer = by_session(admin.user, "PATCH", "accounts/ada/", {"teams": [TeamFactory().name], "password": NEW})
    problem = answer.json()
    assert (answer.status_code, problem["field"], problem["rule"]) == (400, "password", "own")
    assert User.objects.get(username="ada").check_password(OLD)
    assert told() == []
    person("bob", Role.VIEWER)
    assert by_session(admin.user, "PATCH", "accounts/bob/", {"password": NEW}).status_code == 200
    assert User.objects.get(username="bob").check_password(NEW)


@pytest.mark.parametrize(
    ("method", "path", "body", "want"),
    [
        pytest.param("POST", "accounts/", {}, 400, id="no name"),
        pytest.param("POST", "accounts/", {"username": "a b"}, 400, id="name with a space"),
        pytest.param("POST", "accounts/", {"username": "system"}, 400, id="name of gpuplane itself"),
        pytest.param("POST", "accounts/", {"username": "x" * 151}, 400, id="name that is too long"),
        pytest.param("POST", "accounts/", {"username": "ada"}, 409, id="name that is taken"),
        pytest.param("POST", "accounts/", {"username": "m", "role": "king"}, 400, id="role that is none"),
        pytest.param("POST", "accounts/", {"username": "m", "scope": "metrics"}, 400, id="person of a machine's scope"),
        pytest.param("POST", "accounts/", {"username": "m", "kind": "machine", "scope": "agent"}, 400, id="no node"),
        pytest.param("POST", "accounts/", {"username": "m", "teams": "red"}, 400, id="teams that are a text"),
        pytest.param("POST", "accounts/", {"username": "m", "teams": ["none"]}, 400, id="team that is not there"),
        pytest.param("PATCH", "accounts/none/", {"active": False}, 404, id="account that is not there"),
        pytest.param("PATCH", "accounts/ada/", {"active": False}, 409, id="own account shut"),
        pytest.param("PATCH", "accounts/ada/", {"role": "viewer"}, 409, id="last admin"),
        pytest.param("DELETE", "accounts/ada/", None, 409, id="own account deleted"),
        pytest.param("POST", "teams/", {"name": "Red"}, 400, id="team's name that is no label"),
        pytest.param("POST", "teams/", {"name": "red", "namespaces": ["A"]}, 400, id="namespace that is none"),
        pytest.param("POST", "teams/", {"name": "red", "members": ["none"]}, 400, id="member that is not there"),
        pytest.param("POST", "teams/", {"name": "blue"}, 409, id="team that is there"),
        pytest.param("PATCH", "teams/blue/", {"namespaces": ["a", "A"]}, 400, id="one namespace of two is none"),
        pytest.param("DELETE", "teams/none/", None, 404, id="team that is not there"),
    ],
)
def test_bad_input(admin: Api, method: str, path: str, body: Any, want: int) -> None:
    """VIEW-6 a problem document, and nothing has changed."""
    TeamFactory(name="blue")
    status, problem = admin.call(method, path, body)
    assert (status, bool(problem["detail"])) == (want, True)
    assert (told(), Team.objects.count(), TeamNamespace.objects.count()) == ([], 1, 0)
    assert set(User.objects.values_list("username", flat=True)) == {"ada"}


def test_who_may_not(operator: Api) -> None:
    """VIEW-6 admins alone, in reading too."""
    for method, path in [
        ("GET", "accounts/"),
        ("GET", "teams/"),
        ("GET", "accounts/olga/"),
        ("DELETE", "teams/team-a/"),
    ]:
        assert operator.call(method, path)[0] == 403


def test_queries_do_not_grow_with_rows(admin: Api, django_assert_max_num_queries: Any) -> None:
    """VIEW-5 a page of accounts, of teams."""
    for number in range(20):
        TeamFactory(name=f"t{number}").members.add(UserFactory(username=f"u{number}"))
    with django_assert_max_num_queries(6):
        admin.get("accounts/")
    with django_assert_max_num_queries(6):
        admin.get("teams/")
