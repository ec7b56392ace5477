"""REST by tokens of ServiceAccounts: who they are here, and how often the API server is asked."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from pytest_django import Settings

from access import tokens
from access.actors import SYSTEM
from access.choices import Role
from access.models import Profile, Team, TeamNamespace
from access.selectors import role_of
from access.service_accounts import service_account_name
from access.services import user_active_set
from access.team_services import team_namespace_remove
from audit.models import Event
from gpuplane.listeners import reviewed_tokens
from gpuplane.rest import service_accounts
from gpuplane.rest.service_accounts import ServiceAccountTokens
from kube.client import Cluster
from kube.errors import TemporaryKubeError
from kube.token_reviews import Reviewed
from storage.clock import database_now
from tests.factories import TeamFactory
from tests.integration.rest.conftest import Api

pytestmark = pytest.mark.django_db
WHO = "system:serviceaccount:team-a:controller"


def _part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def jwt(signature: str = "c2ln", *, head: Any = None, **claims: Any) -> str:
    """A token that looks like the controller's, but for what is given."""
    told = {"iss": "https://kubernetes", "sub": WHO, "aud": ["gpuplane"], "exp": time.time() + 3600} | claims
    return ".".join((_part(head or {"alg": "RS256"}), _part(told), signature))


class World:
    """The API server, and its callers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answer: Reviewed | None = Reviewed(WHO, "n1")
        self.away = False
        monkeypatch.setattr(reviewed_tokens, "review", self._review)
        monkeypatch.setattr(
            service_accounts, "_reviews", ServiceAccountTokens(lambda: cast("Cluster", self), "gpuplane")
        )
        self.token = jwt()

    def _review(self, _cluster: object, *, token: str, audience: str, timeout: float) -> Reviewed | None:
        assert (audience, timeout > 0) == ("gpuplane", True)
        self.asked.append(token)
        if self.away:
            raise TemporaryKubeError("away", request="POST")
        return self.answer

    def api(self, token: str = "") -> Api:
        return Api(user=None, token=token or self.token)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    tokens.forget()
    yield World(monkeypatch)
    tokens.forget()


@pytest.fixture
def team() -> Team:
    made: Team = TeamFactory(name="red")
    for namespace in ("team-a", "team-b"):
        TeamNamespace.objects.create(team=made, namespace=namespace)
    return made


CLAIM = {
    "apiVersion": "gpu.scheduling/v1",
    "kind": "GpuClaim",
    "metadata": {"name": "c", "namespace": "team-a"},
    "spec": {"devices": {"count": 1}},
}


def test_a_controller(world: World, team: Team, settings: Settings) -> None:
    """VIEW-6 in the teams of its namespace, in the role of the settings; the API server is asked once in a while."""
    settings.GPUPLANE_SERVICE_ACCOUNT_ROLE = "operator"
    api = world.api()
    assert api.post("claims/", CLAIM)[0] == 201
    assert [row["metadata"]["name"] for row in api.get("claims/")[1]["results"]] == ["c"]
    assert api.post("claims/", CLAIM | {"metadata": {"name": "c", "namespace": "other"}})[0] == 403
    assert len(world.asked) == 1
    user = User.objects.get()
    assert (user.get_username(), role_of(user)) == ("serviceaccount@team-a.controller", Role.OPERATOR)
    assert (Profile.objects.get().service, list(user.teams.all())) == (True, [team])
    assert Event.objects.order_by("id").values_list("actor", "message")[0] == (
        "system",
        "account serviceaccount@team-a.controller created as operator, in team red",
    )


def test_a_repeated_write(world: World, team: Team, settings: Settings) -> None:
    """VIEW-5 an Idempotency-Key counts for controllers too."""
    settings.GPUPLANE_SERVICE_ACCOUNT_ROLE = "operator"
    key = {"Idempotency-Key": "one"}
    assert [world.api().post("claims/", CLAIM, headers=key)[0] for _ in range(2)] == [201, 201]


def test_other_listeners_do_not_take_it(world: World, team: Team) -> None:
    """VIEW-6 the token is known to REST, and to nothing else."""
    assert world.api().get("claims/")[0] == 200
    assert tokens.verify_cached(world.token) is None
    assert tokens.verify(world.token) is None


def test_a_token_that_ends_soon(world: World, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-6 it is not believed beyond its end."""
    ends = time.time() + 2.0
    found = service_accounts.verify_service_account(jwt(exp=ends), address="")
    assert found is not None
    assert found.fresh_seconds <= 2.0


def test_a_viewer_by_default(world: World, team: Team) -> None:
    """VIEW-6 reads, and writes nothing."""
    assert world.api().get("claims/")[0] == 200
    assert world.api().post("claims/", CLAIM)[0] == 403


def test_what_such_a_token_does_not_open(world: World, team: Team) -> None:
    """VIEW-6 no API tokens, no accounts."""
    status, problem = world.api().post("tokens/", {"scope": "rest"})
    assert (status, "sign in" in problem["detail"]) == (403, True)
    assert world.api().post("tokens/", {"scope": "metrics", "account": "m"})[0] == 403
    assert world.api().get("accounts/")[0] == 403


def test_role_and_teams_follow(world: World, team: Team, settings: Settings) -> None:
    """VIEW-6 another role by the settings, another team by the namespace: from the next look on."""
    world.api().get("claims/")
    settings.GPUPLANE_SERVICE_ACCOUNT_ROLE = "operator"
    blue = TeamFactory(name="blue")
    TeamNamespace.objects.create(team=blue, namespace="team-a")
    tokens.forget()
    world.api().get("claims/")
    user = User.objects.get()
    assert (role_of(user), sorted(team.name for team in user.teams.all())) == (Role.OPERATOR, ["blue", "red"])


def test_what_is_taken_away_is_gone_at_once(world: World, team: Team, django_capture_on_commit_callbacks: Any) -> None:
    """VIEW-6 an account that is shut, and a namespace that is no team's any more, open nothing from then on."""
    assert world.api().get("claims/")[0] == 200
    with django_capture_on_commit_callbacks(execute=True):
        user_active_set(user=User.objects.get(), active=False, actor=SYSTEM, now=database_now())
    assert world.api().get("claims/")[0] == 401
    other = jwt("b3RoZXI")
    with django_capture_on_commit_callbacks(execute=True):
        user_active_set(user=User.objects.get(), active=True, actor=SYSTEM, now=database_now())
    assert world.api(other).get("claims/")[0] == 200
    with django_capture_on_commit_callbacks(execute=True):
        team_namespace_remove(team=team, namespace="team-a", actor=SYSTEM, now=database_now())
    assert world.api(other).get("claims/")[0] == 401


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(None, id="nobody's, or for another audience"),
        pytest.param(Reviewed("system:serviceaccount:stranger:x", "n1"), id="namespace that is no team's"),
        pytest.param(Reviewed("system:node:n1", "n1"), id="no ServiceAccount"),
        pytest.param(Reviewed("system:serviceaccount:team-a", "n1"), id="name in two parts"),
    ],
)
def test_who_is_nobody_here(world: World, team: Team, answer: Reviewed | None) -> None:
    """VIEW-6 401, remembered for a moment, and no account."""
    world.answer = answer
    assert [world.api().get("claims/")[0] for _ in range(3)] == [401] * 3
    assert (len(world.asked), User.objects.count()) == (1, 0)


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(jwt(aud=["other"]), id="another audience"),
        pytest.param(jwt(aud=[]), id="no audience"),
        pytest.param(jwt(exp=time.time() - 3600), id="expired"),
        pytest.param(jwt(head={"alg": "none"}), id="alg none"),
        pytest.param(jwt(sub="system:node:n1"), id="no ServiceAccount"),
        pytest.param("a.b.c", id="no JWT"),
    ],
)
def test_the_api_server_is_not_asked(world: World, team: Team, token: str) -> None:
    """VIEW-6 about a token that its own claims rule out."""
    assert world.api(token).get("claims/")[0] == 401
    assert world.asked == []


def test_none(world: World, team: Team, settings: Settings) -> None:
    """VIEW-6 with the role `none` such tokens are nobody's, and the API server is not asked."""
    settings.GPUPLANE_SERVICE_ACCOUNT_ROLE = "none"
    assert world.api().get("claims/")[0] == 401
    assert world.asked == []


def test_an_api_server_that_is_away(world: World, team: Team) -> None:
    """VIEW-6 503 for new ones; those known a moment ago go on."""
    assert world.api().get("claims/")[0] == 200
    world.away = True
    assert world.api().get("claims/")[0] == 200
    status, problem = world.api(jwt("b3RoZXI")).get("claims/")
    assert (status, "API server" in problem["detail"]) == (503, True)


def test_guesses_are_limited(world: World, team: Team) -> None:
    """VIEW-6 one address makes the API server review so many tokens of nobody, and no more."""
    world.answer = None
    statuses = [world.api(jwt(_part(number))).get("claims/")[0] for number in range(40)]
    assert statuses[:32] == [401] * 32
    assert 429 in statuses[32:]
    assert len(world.asked) < 40


def test_reviews_at_once(world: World, team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """VIEW-6 a slow API server takes so many threads and no more."""
    monkeypatch.setattr(service_accounts, "WAIT_SECONDS", 0.01)
    held = [service_accounts._turns.acquire() for _ in range(service_accounts.REVIEWS_MOST)]
    try:
        assert world.api().get("claims/")[0] == 503
    finally:
        for _ in held:
            service_accounts._turns.release()
    assert world.api().get("claims/")[0] == 200


def test_a_name_that_a_person_has(world: World, team: Team) -> None:
    """VIEW-6 the token does not open it."""
    user = User.objects.create(username="serviceaccount@team-a.controller")
    Profile.objects.create(user=user, role=Role.ADMIN)
    assert world.api().get("claims/")[0] == 401
    assert role_of(User.objects.get()) == Role.ADMIN


def test_names() -> None:
    """VIEW-6 no two ServiceAccounts have one account, and every name fits."""
    names = {service_account_name(namespace, name) for namespace in ("a", "b", "n" * 63) for name in ("x", "y" * 253)}
    assert len(names) == 6
    assert all(len(name) <= 150 for name in names)
