"""OpenID Connect with one provider: discovery, authorization by code with PKCE, and the checks of ID tokens.

Authlib makes the address of the request and checks claims, joserfc checks signatures. Safe between threads. Sources:
OpenID Connect Core 1.0 (3.1.3.7, ID token validation), Discovery 1.0 (4.3), RP-Initiated Logout 1.0, RFC 7636 (PKCE),
RFC 8725 (algorithms are chosen here, not by the token). Invariants:
- The provider is asked about its endpoints once in FRESH_SECONDS, about its keys also when a token is of none that is
  known, at most once in KEYS_SECONDS; once it did not answer, no sooner than after AWAY_SECONDS.
- No answer is read beyond LONGEST_BYTES, or for longer than DEADLINE_SECONDS and one time-out.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus, urlencode

import msgspec
import requests
import structlog
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, KeySet
from joserfc.jws import JWSRegistry
from urllib3.exceptions import HTTPError

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
HINT_LONGEST: Final = 2048
"""Characters of an ID token that is sent along at the sign-out; proxies refuse longer addresses."""
OK: Final = 200
REFUSALS: Final = frozenset({400, 401})
"""Statuses of a token endpoint that refuses a code (RFC 6749, 5.2)."""
_SUBJECT: Final = re.compile(r"[ -~]{1,255}")

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
    end_session_endpoint: str
    """Where the session at the provider ends; empty where it offers no such place."""


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
        with self._session(redirect_uri) as session:
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
        token = self._token(endpoints, code=code, code_verifier=code_verifier, redirect_uri=redirect_uri)
        id_token, access_token = token.get("id_token"), token.get("access_token")
        if not isinstance(id_token, str) or not id_token or not isinstance(access_token, str):
            raise self._refused("it sent no ID token, or no access token", "token")
        claims = self._checked(id_token, access_token=access_token, nonce=nonce, endpoints=endpoints, now=int(now))
        return self._identity(claims, id_token, access_token=access_token, endpoints=endpoints)

    def sign_out_url(self, *, endpoint: str, id_token: str, back: str) -> str:
        """Where the browser goes to sign out at the provider, whose `end_session_endpoint` this is."""
        query = {"client_id": self.provider.client_id, "post_logout_redirect_uri": back}
        if len(id_token) <= HINT_LONGEST:
            query["id_token_hint"] = id_token
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    def _session(self, redirect_uri: str) -> OAuth2Session:
        return OAuth2Session(
            self.provider.client_id,
            scope=" ".join(self.provider.scopes),
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
        )

    def _token(self, endpoints: Endpoints, **exchanged: str) -> dict[str, Any]:
        """The answer to the code, whose values may be of any type. Raises ProviderAway, SignInRefused."""
        form = {"grant_type": "authorization_code", **exchanged}
        headers = {"Accept": "application/json"}
        if not self._secret:
            form["client_id"] = self.provider.client_id
        elif self._is_basic(endpoints):  # RFC 6749, 2.3.1
            pair = f"{quote_plus(self.provider.client_id)}:{quote_plus(self._secret)}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self.provider.client_id, "client_secret": self._secret}
        answer = self._asked("POST", endpoints.token_endpoint, headers, form)
        if not isinstance(answer, dict):
            raise self._away("oidc.bad_token", ValueError("the answer to the code is no object"))
        if isinstance(answer.get("error"), str):
            log.warning("oidc.code_refused", provider=self.provider.id, why=answer["error"][:100])
            raise SignInRefused(
                f"{self.provider.label} does not accept this sign-in any more: begin again", rule="code"
            )
        return answer

    def _is_basic(self, endpoints: Endpoints) -> bool:
        offered = endpoints.token_endpoint_auth_methods_supported
        return "client_secret_basic" in offered or "client_secret_post" not in offered

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
        return self._asked("GET", url, headers)

    def _asked(self, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None = None) -> Any:
        """The JSON of the answer; to a form also that of a refusal. Raises ProviderAway."""
        ends_at = self._clock() + DEADLINE_SECONDS
        try:
            with (
                requests.Session() as session,
                session.request(
                    method,
                    url,
                    headers=headers,
                    data=form,
                    timeout=TIMEOUT_SECONDS,
                    verify=self.provider.ca or True,
                    allow_redirects=False,
                    stream=True,
                ) as answer,
            ):
                if not (answer.status_code == OK or (form and answer.status_code in REFUSALS)):
                    raise self._away("oidc.status", ValueError(f"{answer.status_code} of {url}"))
                body = bytearray()
                while part := answer.raw.read1(65_536, decode_content=True):
                    body += part
                    if len(body) > LONGEST_BYTES or self._clock() > ends_at:
                        raise self._away("oidc.too_long", ValueError(f"{len(body)} bytes"))
            return msgspec.json.decode(bytes(body))
        except (requests.RequestException, HTTPError, OSError, ValueError, RecursionError) as error:
            raise self._away("oidc.unreachable", error) from error

    def _checked(
        self, id_token: str, *, access_token: str, nonce: str, endpoints: Endpoints, now: int
    ) -> Mapping[str, Any]:
        registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        try:
            try:
                decoded = jwt.decode(id_token, self._key_set(endpoints), registry=registry)
            except (InvalidKeyIdError, BadSignatureError):
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
        except (JoseError, ValueError, TypeError, AttributeError) as error:  # claims may be of any type
            log.warning("oidc.token_refused", provider=self.provider.id, why=str(error) or type(error).__name__)
            raise self._refused("its ID token is not valid", "token") from error
        return dict(claims)

    def _key_set(self, endpoints: Endpoints, *, newer: bool = False) -> KeySet:
        with self._lock:
            age = self._clock() - self._keys_at
            if self._keys is not None and age < (KEYS_SECONDS if newer else FRESH_SECONDS):
                return self._keys
            if self._clock() < self._away_until:
                raise ProviderAway(_away_words(self.provider))
            try:
                document = self._get(endpoints.jwks_uri)
            except ProviderAway:
                self._away_until = self._clock() + AWAY_SECONDS
                raise
            self._keys = self._imported(document)
            self._keys_at = self._clock()
            return self._keys

    def _imported(self, document: Any) -> KeySet:
        """The keys of a document that can be used here (RFC 7517, 5). Raises ProviderAway where there is none."""
        found = document.get("keys") if isinstance(document, dict) else None
        keys = []
        for data in found if isinstance(found, list) else []:
            try:
                key = JWKRegistry.import_key(data)
                key.ensure_kid()
            except (JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
                log.info("oidc.key_skipped", provider=self.provider.id, why=str(error)[:300])
            else:
                keys.append(key)
        if not keys:
            raise self._away("oidc.bad_keys", ValueError("no usable key"))
        return KeySet(keys)

    def _identity(
        self, claims: Mapping[str, Any], id_token: str, *, access_token: str, endpoints: Endpoints
    ) -> Identity:
        wanted = (self.provider.username_claim, self.provider.groups_claim)
        if any(name not in claims for name in wanted) and endpoints.userinfo_endpoint:
            more = self._get(endpoints.userinfo_endpoint, access_token=access_token)
            if not isinstance(more, dict) or more.get("sub") != claims["sub"]:
                raise self._refused("its user info is about somebody else", "userinfo")
            claims = {**more, **claims}
        username = claims.get(self.provider.username_claim)
        if not isinstance(username, str) or not username.strip():
            raise self._refused(f"it sent no {self.provider.username_claim}", "username")
        subject = claims["sub"]
        if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
            raise self._refused("it sent no subject of 1 to 255 ASCII characters", "subject")
        return Identity(
            issuer=endpoints.issuer,
            subject=subject,
            username=f"{self.provider.username_prefix}{username.strip()}",
            groups=self._groups(claims),
            id_token=id_token,
            end_session_endpoint=endpoints.end_session_endpoint if self.provider.sign_out else "",
        )

    def _groups(self, claims: Mapping[str, Any]) -> frozenset[str]:
        name = self.provider.groups_claim
        elsewhere = claims.get("_claim_names")
        if name not in claims and isinstance(elsewhere, dict) and name in elsewhere:  # OpenID Connect Core, 5.6.2
            raise self._refused(f"it sent too many {name} to be in the token: configure it to send fewer", "groups")
        sent = claims.get(name)
        groups = [] if sent is None else [sent] if isinstance(sent, str) else sent
        if not isinstance(groups, list) or not all(isinstance(group, str) for group in groups):
            raise self._refused(f"its {self.provider.groups_claim} is no list of names", "groups")
        if len(groups) > MOST_GROUPS:
            raise self._refused(f"it sent more than {MOST_GROUPS} groups", "groups")
        return frozenset(groups)

    def _refused(self, why: str, rule: str) -> SignInRefused:
        return SignInRefused(f"gpuplane refuses the answer of {self.provider.label}: {why}", rule=rule)

    def _away(self, event: str, error: Exception) -> ProviderAway:
        log.warning(event, provider=self.provider.id, why=str(error)[:300])
        return ProviderAway(_away_words(self.provider))


def _away_words(provider: Provider) -> str:
    return f"{provider.label} does not answer; try again in a moment"


def _secret_text() -> str:
    return secrets.token_urlsafe(48)
