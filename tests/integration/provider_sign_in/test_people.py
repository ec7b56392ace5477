"""Who signs in by OpenID Connect: accounts, roles and teams, from the button to the session and its end."""

from __future__ import annotations

from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from access.actors import SYSTEM
from access.choices import Role, TokenScope
from access.errors import BadInput
from access.models import ExternalIdentity, Profile, Team
from access.oidc import clients
from access.oidc.providers import Provider
from access.selectors import role_of
from access.services import machine_set, password_set
from audit.choices import EventKind
from audit.models import Event
from storage.clock import database_now
from tests.factories import PASSWORD, TeamFactory, UserFactory
from tests.fakes.oidc import CLIENT, SECRET, FakeProvider
from tests.integration.provider_sign_in.browser import Browser, configure, refusal

pytestmark = pytest.mark.django_db


def test_a_person_comes_for_the_first_time(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b an account is created, with role and teams by groups, and each change is in the audit trail."""
    red = TeamFactory(name="red")
    TeamFactory(name="blue")
    provider.groups = ["dev", "r", "names nothing"]

    answer = browser.sign_in()

    assert (answer.status_code, answer["Location"]) == (302, "/")
    user = browser.user
    assert user is not None
    assert (user.get_username(), role_of(user), list(user.teams.all())) == ("ada", Role.OPERATOR, [red])
    assert not user.has_usable_password()
    assert list(ExternalIdentity.objects.values_list("issuer", "subject")) == [(provider.issuer, "s-ada")]
    told = list(Event.objects.order_by("id").values_list("actor", "message"))
    assert told == [
        ("system", "account ada created as operator, in team red"),
        ("ada", "ada signed in by corp"),
    ]
    assert browser.get("/").status_code == 200


def test_role_and_teams_follow_the_groups(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b at every sign-in role and teams are those of the groups then, and of none besides."""
    blue = TeamFactory(name="blue")
    TeamFactory(name="red")
    other = TeamFactory(name="other")
    provider.groups = ["root", "rr"]
    browser.sign_in()
    ada = User.objects.get(username="ada")
    ada.teams.add(other)
    assert role_of(ada) == Role.ADMIN

    provider.groups = ["b"]
    browser.sign_in(preferred_username="ada.lovelace")

    ada = User.objects.get()
    assert (ada.get_username(), role_of(ada), list(ada.teams.all())) == ("ada", Role.VIEWER, [blue])


def test_one_group_as_a_text(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b a provider that sends a lone group as a text is understood."""
    provider.groups = "root"
    browser.sign_in()
    assert role_of(User.objects.get()) == Role.ADMIN


def test_claims_that_only_the_user_info_has(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b what the ID token lacks is read from the user info of the same person."""
    provider.userinfo = {"preferred_username": "ada", "groups": ["dev"]}
    browser.sign_in(preferred_username=None, groups=None)
    assert [(user.get_username(), role_of(user)) for user in User.objects.all()] == [("ada", Role.OPERATOR)]


def test_the_page_that_was_asked_for(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b the way back leads to the page that asked for the sign-in, and to no other origin."""
    elsewhere = dict.fromkeys(("https://evil.example/", "//evil.example", "nodes", "foo", "/é" * 2000), "/")
    for asked, shown in ({"/nodes/?q=x": "/nodes/?q=x"} | elsewhere).items():
        answer = browser.come_back(provider.returned(browser.begin(next=asked)))
        assert answer["Location"] == shown


def test_a_session_ends_in_time(browser: Browser, configured: Settings, provider: FakeProvider) -> None:
    """VIEW-6b a sign-in by a provider lasts as long as its settings say."""
    configure(configured, provider, session_hours=2)
    browser.sign_in()
    assert 7100 < browser.session.get_expiry_age() <= 7200


def test_sign_out_there_too(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b the sign-out ends gpuplane's session and leads to the provider's."""
    browser.sign_in()
    id_token = browser.session["provider"]["id_token"]

    page = browser.post("/sign-out/")

    assert browser.user is None
    seconds, _, address = page["Refresh"].partition("; url=")
    assert (page.status_code, seconds) == (200, "0")
    assert address.startswith(f"{provider.issuer}/end?")
    assert parse_qs(urlsplit(address).query) == {
        "id_token_hint": [id_token],
        "client_id": [CLIENT],
        "post_logout_redirect_uri": ["http://testserver/sign-in/"],
    }


def test_sign_out_asks_the_provider_nothing(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b gpuplane's own session ends whether the provider answers or not, and does not wait for it."""
    browser.sign_in()
    clients._client.cache_clear()
    provider.asked.clear()
    assert "Refresh" in browser.post("/sign-out/").headers
    assert (browser.user, provider.asked) == (None, [])


def test_sign_out_where_the_provider_has_no_page_for_it(
    browser: Browser, configured: Settings, provider: FakeProvider
) -> None:
    """VIEW-6b gpuplane's own session ends, and that is all; also where the settings say so."""
    provider.metadata = {"end_session_endpoint": ""}
    browser.sign_in()
    assert browser.post("/sign-out/")["Location"] == "/sign-in/"
    provider.metadata = {}
    configure(configured, provider, sign_out=False)
    browser.sign_in()
    assert browser.post("/sign-out/")["Location"] == "/sign-in/"


def test_a_name_that_is_taken(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b nobody comes into an account that another way of sign-in made: not a local one, nor another person's."""
    UserFactory(username="ada", role=Role.ADMIN)
    assert "already an account ada" in refusal(browser.sign_in(), status=403)
    assert browser.user is None
    UserFactory(username="bob")
    browser.sign_in(preferred_username="cy", sub="s-1")
    assert "already an account cy" in refusal(browser.sign_in(preferred_username="cy", sub="s-2"), status=403)
    assert Event.objects.filter(kind=EventKind.SIGN_IN_FAILED).count() == 2


def test_an_account_that_is_shut(browser: Browser) -> None:
    """VIEW-6b an admin's word counts more than the provider's."""
    browser.sign_in()
    browser.logout()
    User.objects.update(is_active=False)
    assert "is shut" in refusal(browser.sign_in(), status=403)
    assert browser.user is None


def test_an_account_that_is_a_machine_now(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b the person that it was opens no session, and the groups do not raise the role of its tokens."""
    browser.sign_in()
    browser.logout()
    machine_set(user=User.objects.get(), service=True, scope=TokenScope.METRICS, actor=SYSTEM, now=database_now())
    provider.groups = ["root"]
    assert "is a machine's" in refusal(browser.sign_in(), status=403)
    assert browser.user is None
    assert role_of(User.objects.get()) == Role.VIEWER


def test_groups_that_may_not_use_gpuplane(browser: Browser, configured: Settings, provider: FakeProvider) -> None:
    """VIEW-6b with `defaultRole: none` people of no named group are refused, and get no account."""
    configure(configured, provider, default_role="none")
    provider.groups = ["names nothing"]
    assert "none of your groups" in refusal(browser.sign_in(), status=403).lower()
    assert not User.objects.exists()
    assert Event.objects.get().kind == EventKind.SIGN_IN_FAILED


def test_the_page_of_sign_in(browser: Browser, configured: Settings) -> None:
    """VIEW-6b a button for each provider, which keeps the page that was asked for; without local accounts, what opens
    when none answers.
    """
    page = browser.get("/sign-in/", {"next": "/nodes/?a=b&c"}).content.decode()
    assert 'href="/sign-in/with/corp/?next=/nodes/%3Fa%3Db%26c"' in page
    assert "or by password" in page
    configured.GPUPLANE_LOCAL_ACCOUNTS = "break-glass"
    page = browser.get("/sign-in/").content.decode()
    assert "or by password" not in page
    assert "The account <code>admin</code>, and no other" in page


def test_only_the_break_glass_account_has_a_password(client: Client, configured: Settings) -> None:
    """VIEW-6b without local accounts no other password opens a session, the right one included."""
    configured.GPUPLANE_LOCAL_ACCOUNTS = "break-glass"
    UserFactory(username="ada", role=Role.ADMIN)
    UserFactory(username="admin", role=Role.ADMIN)
    assert client.post("/sign-in/", {"username": "ada", "password": PASSWORD}).status_code == 401
    assert client.post("/sign-in/", {"username": "admin", "password": PASSWORD}).status_code == 302


def test_no_groups_at_all(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b a provider that sends null where somebody has none."""
    provider.claims = {}
    query = provider.returned(browser.begin())
    provider.claims |= {"groups": None}
    provider.userinfo = {"groups": None}
    assert browser.come_back(query).status_code == 302
    assert role_of(User.objects.get()) == Role.VIEWER


def test_a_person_of_a_provider_gets_no_password(browser: Browser) -> None:
    """VIEW-6b or it would outlive what the provider says of them."""
    browser.sign_in()
    with pytest.raises(BadInput, match="by a provider"):
        password_set(user=User.objects.get(), password="a new and quiet river", actor=SYSTEM, now=database_now())


def test_two_providers(browser: Browser, configured: Settings, provider: FakeProvider) -> None:
    """VIEW-6b the same subject of two issuers are two people, who need two names."""
    with FakeProvider().serving() as other:
        second = Provider(id="lab", issuer=other.issuer, client_id=CLIENT, username_prefix="lab-")
        configured.GPUPLANE_OIDC = (*configured.GPUPLANE_OIDC, second)
        configured.GPUPLANE_OIDC_SECRETS = {"corp": SECRET, "lab": SECRET}
        browser.sign_in()
        answer = browser.get("/sign-in/with/lab/")
        answer = browser.get("/sign-in/with/lab/callback/", other.returned(answer["Location"]))
    assert answer.status_code == 302
    assert list(User.objects.order_by("username").values_list("username", flat=True)) == ["ada", "lab-ada"]
    assert Profile.objects.count() == 2


def test_the_request_at_the_provider(browser: Browser) -> None:
    """VIEW-6b code flow with PKCE; state, nonce and verifier are new each time, and the verifier stays here."""
    first, second = (dict(parse_qsl(urlsplit(browser.begin()).query)) for _ in range(2))
    assert first["response_type"] == "code"
    assert first["scope"] == "openid profile email"
    assert first["redirect_uri"] == "http://testserver/sign-in/with/corp/callback/"
    assert "code_verifier" not in first
    assert all(first[name] != second[name] for name in ("state", "nonce", "code_challenge"))
    assert Team.objects.count() == 0
