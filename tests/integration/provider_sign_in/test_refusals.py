"""What of a provider, or of somebody between, opens no session: claims, signatures, returns, answers."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import Client
from pytest_django import Settings

from access.choices import Role
from access.oidc.client import KEYS_SECONDS, OidcClient
from access.oidc.errors import ProviderAway
from audit.models import Event
from tests.factories import PASSWORD, UserFactory
from tests.fakes.oidc import CLIENT, SECRET, FakeProvider
from tests.integration.provider_sign_in.browser import BACK, BEGIN, Browser, refusal

pytestmark = pytest.mark.django_db


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


def test_answers_of_odd_types(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b a token answer whose values are of other types is refused."""
    for answer in (b'{"id_token": [1], "access_token": "a"}', b'{"id_token": "a.b.c", "access_token": {"a": 1}}'):
        query = provider.returned(browser.begin())
        provider.pages["/token"] = (200, answer)
        assert "no ID token" in refusal(browser.come_back(query), status=403)


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


def test_returns_while_the_provider_is_away_use_no_allowance_up(browser: Browser, provider: FakeProvider) -> None:
    """VIEW-6b people behind one address who return while it is away sign in once it is back."""
    query = provider.returned(browser.begin())
    cookie = browser.cookies["gpuplane_sign_in"].value
    provider.pages["/token"] = (503, b"")
    for _ in range(25):
        browser.cookies["gpuplane_sign_in"] = cookie
        assert "does not answer" in refusal(browser.come_back(query), status=503)
    del provider.pages["/token"]
    assert browser.sign_in().status_code == 302


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"kty": "EC", "crv": "BP-256", "x": "AA", "y": "AA", "kid": "b"}, id="curve that is unknown"),
        pytest.param({"kty": "OKP", "crv": "X9", "x": "AA", "kid": "b"}, id="other curve that is unknown"),
        pytest.param({"kty": "ML-KEM", "kid": "b"}, id="kind that is unknown"),
        pytest.param({"kty": "RSA", "kid": "b"}, id="key without a modulus"),
        pytest.param({"kid": "b"}, id="key without a kind"),
        pytest.param({"kty": ["RSA"]}, id="kind that is a list"),
        pytest.param("key", id="text"),
        pytest.param(None, id="null"),
    ],
)
def test_keys_that_cannot_be_used_are_skipped(browser: Browser, provider: FakeProvider, other: Any) -> None:
    """VIEW-6b the keys beside them still count."""
    _, keys = provider.answer("GET", "/keys", {}, {})
    document = json.loads(keys)
    provider.pages["/keys"] = (200, json.dumps({"keys": [other, *document["keys"], other]}).encode())
    assert browser.sign_in().status_code == 302
