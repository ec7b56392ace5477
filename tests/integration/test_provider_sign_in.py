"""Sign-in by OpenID Connect, from the button to the account, against a provider that can be bent."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from pytest_django import Settings

from access.actors import SYSTEM
from access.choices import Role
from access.errors import BadInput
from access.models import ExternalIdentity, Profile, Team
from access.oidc import clients
from access.oidc.client import KEYS_SECONDS, OidcClient
from access.oidc.errors import ProviderAway
from access.oidc.providers import Provider
from access.selectors import role_of
from access.services import password_set
from audit.choices import EventKind
from audit.models import Event
from gpuplane.listeners.rate_limits import AddressRateLimit
from gpuplane.pages import provider_sign_in
from storage.clock import database_now
from tests.factories import PASSWORD, TeamFactory, UserFactory
from tests.fakes.oidc import CLIENT, SECRET, FakeProvider

pytestmark = pytest.mark.django_db
BEGIN = "/sign-in/with/corp/"
BACK = "/sign-in/with/corp/callback/"


class Browser(Client):
    """Somebody who signs in at the provider."""

    provider: FakeProvider

    def begin(self, **query: str) -> str:
        """The address at the provider."""
        answer = self.get(BEGIN, query)
        assert answer.status_code == 302, answer.content.decode()
        return str(answer["Location"])

    def come_back(self, query: dict[str, str]) -> Any:
        """The page after it."""
        return self.get(BACK, query)

    def sign_in(self, **claims: Any) -> Any:
        """The whole way."""
        return self.come_back(self.provider.returned(self.begin(), **claims))

    @property
    def user(self) -> User | None:
        """Who is signed in."""
        key = self.session.get("_auth_user_id")
        return None if key is None else User.objects.get(pk=key)


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider().serving() as made:
        yield made


@pytest.fixture(autouse=True)
def refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of other tests."""
    limit = AddressRateLimit(provider_sign_in.REFUSED_CODES, provider_sign_in.ALL_REFUSED_CODES)
    monkeypatch.setattr(provider_sign_in, "_refusals", limit)


@pytest.fixture
def configured(provider: FakeProvider, settings: Settings) -> Iterator[Settings]:
    """gpuplane knows the provider."""
    configure(settings, provider)
    yield settings
    clients._client.cache_clear()


def configure(settings: Settings, provider: FakeProvider, **more: Any) -> None:
    fields: dict[str, Any] = {
        "name": "Corp",
        "roles": {"admin": ("root",), "operator": ("dev",)},
        "teams": {"red": ("r", "rr"), "blue": ("b",), "gone": ("r",)},
    } | more
    settings.GPUPLANE_OIDC = (Provider(id="corp", issuer=provider.issuer, client_id=CLIENT, **fields),)
    settings.GPUPLANE_OIDC_SECRETS = {"corp": SECRET}
    clients._client.cache_clear()


@pytest.fixture
def browser(provider: FakeProvider, configured: Settings) -> Browser:
    made = Browser()
    made.provider = provider
    return made


def refusal(answer: Any, *, status: int) -> str:
    """What the page of sign-in says."""
    assert answer.status_code == status
    return str(answer.context["why"])


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


@pytest.mark.parametrize(
    ("bend", "words"),
    [
        pytest.param({"iss": "https://evil.example"}, "not valid", id="issuer of somebody else"),
        pytest.param({"aud": "another-client"}, "not valid", id="token for another client"),
        pytest.param({"aud": [CLIENT, "another"]}, "not valid", id="two audiences and no authorized party"),
        pytest.param({"azp": "another-client"}, "not valid", id="authorized party of another client"),
        pytest.param({"exp": int(time.time()) - 3600}, "not valid", id="token that has expired"),
        pytest.param({"iat": int(time.time()) + 3600}, "not valid", id="token from the future"),
        pytest.param({"exp": None}, "not valid", id="token without an end"),
        pytest.param({"nonce": "of another sign-in"}, "not valid", id="nonce of another sign-in"),
        pytest.param({"nonce": None}, "not valid", id="no nonce"),
        pytest.param({"sub": None}, "not valid", id="no subject"),
        pytest.param({"sub": "x" * 256}, "subject", id="subject that is too long"),
        pytest.param({"at_hash": "AAAA"}, "not valid", id="hash of another access token"),
        pytest.param({"at_hash": ["x"]}, "not valid", id="hash that is a list"),
        pytest.param({"sub": "\ud800x"}, "subject", id="subject that is no text"),
        pytest.param({"sub": "a\x00b"}, "subject", id="subject with a NUL"),
        pytest.param({"preferred_username": " "}, "preferred_username", id="no name"),
        pytest.param({"preferred_username": 7}, "preferred_username", id="name that is a number"),
        pytest.param({"preferred_username": "a b"}, "No account can have the name", id="name no account may have"),
        pytest.param({"preferred_username": "system"}, "No account can have the name", id="name of gpuplane itself"),
        pytest.param({"preferred_username": "ｓｙｓｔｅｍ"}, "names gpuplane itself", id="the same in wide letters"),
        pytest.param({"preferred_username": "agent@n1"}, "have such names", id="name of an agent"),
        pytest.param({"preferred_username": "serviceaccount@a.b"}, "have such names", id="name of a ServiceAccount"),
        pytest.param({"preferred_username": "admin"}, "by password alone", id="name of the break-glass account"),
        pytest.param(
            {"groups": None, "_claim_names": {"groups": "src1"}}, "too many groups", id="groups that are elsewhere"
        ),
        pytest.param({"groups": {"admin": True}}, "no list of names", id="groups that are no list"),
        pytest.param({"groups": ["dev", 7]}, "no list of names", id="group that is a number"),
        pytest.param({"groups": ["x"] * 10_001}, "more than 10000 groups", id="too many groups"),
    ],
)
def test_claims_that_are_refused(browser: Browser, bend: dict[str, Any], words: str) -> None:
    """VIEW-6b a wrong claim opens no session and creates no account."""
    assert words in refusal(browser.sign_in(**bend), status=403)
    assert (browser.user, User.objects.count()) == (None, 0)


@pytest.mark.parametrize(
    ("signer", "algorithm"),
    [
        pytest.param("first", "none", id="alg none"),
        pytest.param("first", "HS256", id="public key as a shared secret"),
        pytest.param("foreign", "RS256", id="foreign key"),
    ],
)
def test_signatures_that_are_refused(browser: Browser, provider: FakeProvider, signer: str, algorithm: str) -> None:
    """VIEW-6b only the provider's own key signs, whatever its metadata and the token say."""
    provider.signer, provider.algorithm = signer, algorithm
    assert "ID token is not valid" in refusal(browser.sign_in(), status=403)
    assert (browser.user, User.objects.count()) == (None, 0)


def test_a_new_key(browser: Browser, provider: FakeProvider, configured: Settings) -> None:
    """VIEW-6b a token of a key that is new is believed once the provider publishes it; keys are asked for seldom."""
    seconds = [0.0]
    made = OidcClient(configured.GPUPLANE_OIDC[0], secret=SECRET, clock=lambda: seconds[0])

    def sign_in() -> str:
        begun = made.begin(redirect_uri="http://testserver/")
        code = provider.returned(begun.url)["code"]
        found = made.finish(
            code=code,
            nonce=begun.nonce,
            code_verifier=begun.code_verifier,
            redirect_uri="http://testserver/",
            now=time.time(),
        )
        return found.username

    assert sign_in() == "ada"
    provider.signer, provider.published = "second", ["first", "second"]
    seconds[0] += KEYS_SECONDS + 1.0
    assert sign_in() == "ada"
    provider.asked.clear()
    assert sign_in() == "ada"
    assert provider.asked == ["/token"]


def test_the_answer_to_another_sign_in(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b a return needs the browser, the state and the code of one sign-in, once."""
    first = provider.returned(browser.begin())
    browser.begin()
    assert "another sign-in" in refusal(browser.come_back(first), status=403)
    good = provider.returned(browser.begin())
    stranger = Client()
    assert "not begun in this browser" in refusal(stranger.get(BACK, good), status=403)
    assert browser.come_back(good).status_code == 302
    assert "is over" in refusal(browser.come_back(good), status=403)
    assert User.objects.count() == 1


def test_a_code_that_was_used(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b the provider refuses a code the second time, even with the first one's cookie."""
    query = provider.returned(browser.begin())
    cookie = browser.cookies["gpuplane_sign_in"].value
    browser.come_back(query)
    browser.cookies["gpuplane_sign_in"] = cookie
    assert "does not accept this sign-in" in refusal(browser.come_back(query), status=403)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        pytest.param({"error": "access_denied"}, "Corp did not sign you in", id="refused there"),
        pytest.param({"code": ""}, "lacks what the provider adds", id="no code"),
        pytest.param({"code": "x" * 5000}, "lacks what the provider adds", id="code that is too long"),
        pytest.param({"state": ""}, "another sign-in", id="no state"),
        pytest.param({"state": "é\u0100"}, "another sign-in", id="state beyond ASCII"),
        pytest.param({"code": "made up"}, "does not accept", id="code that is nobody's"),
    ],
)
def test_odd_returns(browser: Browser, provider: FakeProvider, query: dict[str, str], words: str) -> None:
    """VIEW-6b each is a sentence on the page of sign-in, and nothing is written for a stranger."""
    good = provider.returned(browser.begin())
    assert words in refusal(browser.come_back(good | query), status=403)
    assert not Session.objects.exists()
    assert not Event.objects.exists()


def test_a_cookie_that_was_made_up(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b what the browser carries is signed, and ends."""
    good = provider.returned(browser.begin())
    browser.cookies["gpuplane_sign_in"] = "e30:1tKLmN:x"
    assert "not begun in this browser" in refusal(browser.come_back(good), status=403)


def test_a_sign_in_that_took_too_long(browser: Browser, provider: FakeProvider, time_machine: Any) -> None:
    """VIEW-6b ten minutes after its beginning it is over."""
    good = provider.returned(browser.begin())
    time_machine.move_to(time.time() + 601)
    assert "took too long" in refusal(browser.come_back(good), status=403)


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


def test_groups_that_may_not_use_gpuplane(browser: Browser, configured: Settings, provider: FakeProvider) -> None:
    """VIEW-6b with `defaultRole: none` people of no named group are refused, and get no account."""
    configure(configured, provider, default_role="none")
    provider.groups = ["names nothing"]
    assert "none of your groups" in refusal(browser.sign_in(), status=403).lower()
    assert not User.objects.exists()
    assert Event.objects.get().kind == EventKind.SIGN_IN_FAILED


@pytest.mark.parametrize(
    ("path", "page"),
    [
        pytest.param("/.well-known/openid-configuration", (503, b""), id="it is away"),
        pytest.param("/.well-known/openid-configuration", (302, b""), id="it leads elsewhere"),
        pytest.param("/.well-known/openid-configuration", (200, b"<html>"), id="it sends no JSON"),
        pytest.param("/.well-known/openid-configuration", (200, b"[" * 100_000), id="it sends deep JSON"),
        pytest.param("/.well-known/openid-configuration", (200, b'"' + b"x" * (1 << 21)), id="it sends megabytes"),
        pytest.param("/.well-known/openid-configuration", (200, b"{}"), id="it names no endpoint"),
    ],
)
def test_a_provider_that_is_away(browser: Browser, provider: FakeProvider, path: str, page: tuple[int, bytes]) -> None:
    """VIEW-6b one sentence, and it is not asked again for each that tries; a password still opens."""
    provider.pages[path] = page
    for _ in range(3):
        assert "Corp does not answer" in refusal(browser.get(BEGIN), status=503)
    assert provider.asked == [path]
    UserFactory(username="admin", role=Role.ADMIN)
    assert browser.post("/sign-in/", {"username": "admin", "password": PASSWORD}).status_code == 302


@pytest.mark.parametrize(
    ("path", "page"),
    [
        pytest.param("/token", (500, b"oops"), id="the token endpoint fails"),
        pytest.param("/token", (200, b'"' + b"x" * (1 << 21)), id="the token is megabytes"),
        pytest.param("/token", (200, b"[]"), id="the token is no object"),
        pytest.param("/keys", (503, b""), id="the keys are away"),
        pytest.param("/keys", (200, b'{"keys": [{"kty": "?"}]}'), id="the keys are none"),
        pytest.param("/keys", (200, b"7"), id="the keys are a number"),
    ],
)
def test_a_provider_that_fails_on_the_way_back(
    browser: Browser, provider: FakeProvider, path: str, page: tuple[int, bytes]
) -> None:
    """VIEW-6b nobody is signed in, and the page says so."""
    query = provider.returned(browser.begin())
    provider.pages[path] = page
    assert "Corp does not answer" in refusal(browser.come_back(query), status=503)
    assert browser.user is None


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        pytest.param({"issuer": "https://evil.example"}, "another issuer", id="another issuer"),
        pytest.param(
            {"token_endpoint": "http://evil.example/token"}, "without https", id="token endpoint in the clear"
        ),
        pytest.param({"jwks_uri": "file:///etc/passwd"}, "without https", id="keys in a file"),
    ],
)
def test_metadata_that_is_refused(
    browser: Browser, provider: FakeProvider, metadata: dict[str, str], words: str
) -> None:
    """VIEW-6b the metadata is of the issuer that is configured, and no secret leaves without TLS."""
    provider.metadata = metadata
    assert words in refusal(browser.get(BEGIN), status=503)


def test_user_info_of_somebody_else(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b the user info counts for the subject of the ID token alone."""
    provider.userinfo = {"sub": "s-bob", "groups": ["root"]}
    assert "somebody else" in refusal(browser.sign_in(groups=None), status=403)


def test_a_provider_that_is_not_configured(browser: Browser) -> None:
    """VIEW-6b no such page."""
    assert browser.get("/sign-in/with/other/").status_code == 404
    assert browser.get("/sign-in/with/other/callback/").status_code == 404


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


def test_answers_of_odd_types(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b a token answer whose values are of other types is refused."""
    for answer in (b'{"id_token": [1], "access_token": "a"}', b'{"id_token": "a.b.c", "access_token": {"a": 1}}'):
        query = provider.returned(browser.begin())
        provider.pages["/token"] = (200, answer)
        assert "no ID token" in refusal(browser.come_back(query), status=403)


def test_no_groups_at_all(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b a provider that sends null where somebody has none."""
    provider.claims = {}
    query = provider.returned(browser.begin())
    provider.claims |= {"groups": None}
    provider.userinfo = {"groups": None}
    assert browser.come_back(query).status_code == 302
    assert role_of(User.objects.get()) == Role.VIEWER


def test_a_provider_that_sends_a_byte_at_a_time(configured: Settings, provider: FakeProvider) -> None:
    """VIEW-6b an answer ends at its deadline, however it comes."""
    seconds = itertools.count(0.0, 4.0)
    slow = OidcClient(configured.GPUPLANE_OIDC[0], secret=SECRET, clock=lambda: next(seconds))
    provider.dripping = True
    with pytest.raises(ProviderAway):
        slow.begin(redirect_uri="http://testserver/")
    assert next(seconds) < 40.0


def test_returns_that_the_provider_refuses_are_limited(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b a stranger makes gpuplane ask the provider so often, and no more."""
    query = provider.returned(browser.begin()) | {"code": "made up"}
    cookie = browser.cookies["gpuplane_sign_in"].value
    provider.asked.clear()
    for _ in range(30):
        browser.cookies["gpuplane_sign_in"] = cookie
        last = browser.come_back(query)
    assert "too many sign-ins" in refusal(last, status=403).lower()
    assert provider.asked.count("/token") == 20


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
