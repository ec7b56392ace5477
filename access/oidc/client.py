"""OpenID Connect with one provider: discovery, authorization by code with PKCE, and the checks of ID tokens.

Authlib makes the requests of the protocol, joserfc checks signatures. Safe between threads. Sources: OpenID Connect
Core 1.0 (3.1.3.7, ID token validation), Discovery 1.0 (4.3), RP-Initiated Logout 1.0, RFC 7636 (PKCE), RFC 8725
(algorithms are chosen here, not by the token). Invariants:
- The provider is asked about its endpoints once in FRESH_SECONDS, about its keys also when a token names a new one, at
  most once in KEYS_SECONDS; while it is away, once in AWAY_SECONDS.
- No answer is read beyond LONGEST_BYTES, and each ends after DEADLINE_SECONDS.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import requests
import structlog
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from access.oidc.errors import ProviderAway, SignInRefused
from access.oidc.providers import Provider, is_safe_address

ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Signatures by the provider's private key: no `none`, and none by a secret that we share."""
FRESH_SECONDS: Final = 600.0
KEYS_SECONDS: Final = 5.0
AWAY_SECONDS: Final = 5.0
TIMEOUT_SECONDS: Final = 5.0
DEADLINE_SECONDS: Final = 10.0
LONGEST_BYTES: Final = 1 << 20
LEEWAY_SECONDS: Final = 60
"""How much the provider's clock and this one may differ."""
MOST_GROUPS: Final = 10_000

log = structlog.get_logger(__name__)


class Endpoints(msgspec.Struct, frozen=True):
    """Of the provider's metadata, what is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    end_session_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


@dataclass(frozen=True, slots=True)
class Begun:
    """A sign-in on its way: where the browser goes, and what its return is checked by."""

    url: str
    state: str
    nonce: str
    code_verifier: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom the provider named."""

    issuer: str
    subject: str
    username: str
    groups: frozenset[str]
    id_token: str


class OidcClient:
    """One provider. `clock`: monotonic seconds."""

    def __init__(self, provider: Provider, *, secret: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.provider = provider
        self._secret = secret
        self._clock = clock
        self._lock = threading.Lock()
        self._endpoints: Endpoints | None = None
        self._endpoints_until = 0.0
        self._away_until = 0.0
        self._keys: KeySet | None = None
        self._keys_at = 0.0

    def begin(self, *, redirect_uri: str) -> Begun:
        """Where the browser goes to sign in. Raises ProviderAway."""
        endpoints = self._discovered()
        with self._session(endpoints, redirect_uri=redirect_uri) as session:
            verifier, nonce = _secret_text(), _secret_text()
            url, state = session.create_authorization_url(
                endpoints.authorization_endpoint, code_verifier=verifier, nonce=nonce
            )
        return Begun(url=url, state=state, nonce=nonce, code_verifier=verifier)

    def finish(self, *, code: str, nonce: str, code_verifier: str, redirect_uri: str, now: float) -> Identity:
        """Exchange the code, and check who the provider says it is. `now`: seconds since 1970.

        Raises ProviderAway, SignInRefused.
        """
        endpoints = self._discovered()
        with self._session(endpoints, redirect_uri=redirect_uri) as session:
            try:
                token = session.fetch_token(
                    endpoints.token_endpoint,
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=code_verifier,
                    redirect_uri=redirect_uri,
                    allow_redirects=False,
                )
            except AuthlibBaseError as error:
                log.warning("oidc.code_refused", provider=self.provider.id, why=str(error))
                raise SignInRefused(
                    f"{self.provider.label} does not accept this sign-in any more: begin again", rule="code"
                ) from error
            except (requests.RequestException, ValueError) as error:
                raise self._away("oidc.token_failed", error) from error
        id_token, access_token = token.get("id_token"), token.get("access_token")
        if not isinstance(id_token, str) or not id_token:
            raise self._refused("it sent no ID token", "token")
        claims = self._checked(id_token, access_token=access_token, nonce=nonce, endpoints=endpoints, now=int(now))
        return self._identity(claims, id_token, access_token=access_token, endpoints=endpoints)

    def sign_out_url(self, *, id_token: str, back: str) -> str:
        """Where the browser goes to sign out at the provider; empty where it offers no such place or is away."""
        if not self.provider.sign_out:
            return ""
        try:
            endpoint = self._discovered().end_session_endpoint
        except ProviderAway:
            return ""
        query = {"id_token_hint": id_token, "client_id": self.provider.client_id, "post_logout_redirect_uri": back}
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}" if endpoint else ""

    def _session(self, endpoints: Endpoints | None = None, *, redirect_uri: str = "") -> OAuth2Session:
        method = "none"
        if self._secret:
            offered = () if endpoints is None else endpoints.token_endpoint_auth_methods_supported
            basic = "client_secret_basic" in offered or "client_secret_post" not in offered
            method = "client_secret_basic" if basic else "client_secret_post"
        session = OAuth2Session(
            self.provider.client_id,
            self._secret or None,
            token_endpoint_auth_method=method,
            scope=" ".join(self.provider.scopes),
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            default_timeout=TIMEOUT_SECONDS,
        )
        if self.provider.ca:
            session.verify = self.provider.ca
        return session

    def _discovered(self) -> Endpoints:
        with self._lock:
            now = self._clock()
            if self._endpoints is not None and now < self._endpoints_until:
                return self._endpoints
            if now < self._away_until:
                raise ProviderAway(_away_words(self.provider))
            try:
                found = self._discover()
            except ProviderAway:
                self._away_until = self._clock() + AWAY_SECONDS
                if self._endpoints is None:
                    raise
                return self._endpoints  # old, but the best that is known
            self._endpoints, self._endpoints_until = found, self._clock() + FRESH_SECONDS
            return found

    def _discover(self) -> Endpoints:
        address = self.provider.issuer.rstrip("/") + "/.well-known/openid-configuration"
        document = self._get(address)
        try:
            found = msgspec.convert(document, Endpoints)
        except msgspec.ValidationError as error:
            raise self._away("oidc.bad_metadata", error) from error
        if found.issuer != self.provider.issuer:
            log.error("oidc.wrong_issuer", provider=self.provider.id, wanted=self.provider.issuer, found=found.issuer)
            raise ProviderAway(f"{self.provider.label} names another issuer than the one configured here")
        needed = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri)
        optional = (found.userinfo_endpoint, found.end_session_endpoint)
        if not all(map(is_safe_address, needed)) or not all(is_safe_address(url) for url in optional if url):
            log.error("oidc.unsafe_endpoint", provider=self.provider.id)
            raise ProviderAway(f"{self.provider.label} names an endpoint without https://")
        return found

    def _get(self, url: str, *, access_token: str = "") -> Any:
        """The JSON at the address. Raises ProviderAway."""
        headers = {"Accept": "application/json"}
        if access_token:
            headers["Authorization"] = f"Bearer {access_token}"
        ends_at = self._clock() + DEADLINE_SECONDS
        try:
            with (
                requests.Session() as session,
                session.get(
                    url,
                    headers=headers,
                    timeout=TIMEOUT_SECONDS,
                    verify=self.provider.ca or True,
                    allow_redirects=False,
                    stream=True,
                ) as answer,
            ):
                answer.raise_for_status()
                if answer.is_redirect:
                    raise self._away("oidc.redirected", ValueError(answer.headers.get("Location", "")))
                body = bytearray()
                for part in answer.iter_content(65_536):
                    body += part
                    if len(body) > LONGEST_BYTES or self._clock() > ends_at:
                        raise self._away("oidc.too_long", ValueError(f"{len(body)} bytes"))
            return msgspec.json.decode(bytes(body))
        except (requests.RequestException, msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
            raise self._away("oidc.unreachable", error) from error

    def _checked(
        self, id_token: str, *, access_token: object, nonce: str, endpoints: Endpoints, now: int
    ) -> Mapping[str, Any]:
        registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        try:
            try:
                decoded = jwt.decode(id_token, self._key_set(endpoints), registry=registry)
            except InvalidKeyIdError:
                decoded = jwt.decode(id_token, self._key_set(endpoints, newer=True), registry=registry)
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                options={
                    "iss": {"essential": True, "value": endpoints.issuer},
                    "aud": {"essential": True, "value": self.provider.client_id},
                    "nonce": {"essential": True, "value": nonce},
                },
                params={"nonce": nonce, "client_id": self.provider.client_id, "access_token": access_token},
            )
            claims.validate(now=now, leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError) as error:
            log.warning("oidc.token_refused", provider=self.provider.id, why=str(error) or type(error).__name__)
            raise self._refused("its ID token is not valid", "token") from error
        return dict(claims)

    def _key_set(self, endpoints: Endpoints, *, newer: bool = False) -> KeySet:
        with self._lock:
            age = self._clock() - self._keys_at
            if self._keys is not None and age < (KEYS_SECONDS if newer else FRESH_SECONDS):
                return self._keys
            document = self._get(endpoints.jwks_uri)
            try:
                self._keys = KeySet.import_key_set(document)
            except (JoseError, ValueError, KeyError, TypeError) as error:
                raise self._away("oidc.bad_keys", error) from error
            self._keys_at = self._clock()
            return self._keys

    def _identity(
        self, claims: Mapping[str, Any], id_token: str, *, access_token: object, endpoints: Endpoints
    ) -> Identity:
        wanted = (self.provider.username_claim, self.provider.groups_claim)
        if any(name not in claims for name in wanted) and endpoints.userinfo_endpoint and isinstance(access_token, str):
            more = self._get(endpoints.userinfo_endpoint, access_token=access_token)
            if not isinstance(more, dict) or more.get("sub") != claims["sub"]:
                raise self._refused("its user info is about somebody else", "userinfo")
            claims = {**more, **claims}
        username = claims.get(self.provider.username_claim)
        if not isinstance(username, str) or not username.strip():
            raise self._refused(f"it sent no {self.provider.username_claim}", "username")
        subject = claims["sub"]
        if not isinstance(subject, str) or not 1 <= len(subject) <= 255:
            raise self._refused("it sent no subject of 1 to 255 characters", "subject")
        return Identity(
            issuer=endpoints.issuer,
            subject=subject,
            username=f"{self.provider.username_prefix}{username.strip()}",
            groups=self._groups(claims.get(self.provider.groups_claim, [])),
            id_token=id_token,
        )

    def _groups(self, sent: object) -> frozenset[str]:
        groups = [sent] if isinstance(sent, str) else sent
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise self._refused(f"its {self.provider.groups_claim} is no list of names", "groups")
        if len(groups) > MOST_GROUPS:
            raise self._refused(f"it sent more than {MOST_GROUPS} groups", "groups")
        return frozenset(groups)

    def _refused(self, why: str, rule: str) -> SignInRefused:
        return SignInRefused(f"{self.provider.label} cannot be believed here: {why}", rule=rule)

    def _away(self, event: str, error: Exception) -> ProviderAway:
        log.warning(event, provider=self.provider.id, why=str(error)[:300])
        return ProviderAway(_away_words(self.provider))


def _away_words(provider: Provider) -> str:
    return f"{provider.label} does not answer; try again in a moment"


def _secret_text() -> str:
    return secrets.token_urlsafe(48)
