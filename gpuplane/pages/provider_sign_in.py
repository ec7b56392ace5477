"""Sign-in by an OpenID Connect provider: the way there, and the way back.

What the return is checked by travels in a signed cookie of the browser that began, so nothing is stored for people who
are not signed in. Invariants: a return is accepted within FLOW_SECONDS, from the browser that began it, for as long as
the provider accepts its code; an address is refused after many that the provider refused; a refusal shows the page of
sign-in with its reason; a session lasts as long as the provider's settings say.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from hmac import compare_digest
from typing import Any, Final

import structlog
from django.conf import settings
from django.contrib.auth import login
from django.core import signing
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET

from access import services
from access.backends import opens_by_password
from access.errors import NotFound
from access.oidc.accounts import identity_account
from access.oidc.client import Identity, OidcClient
from access.oidc.clients import client_of
from access.oidc.errors import ProviderAway, SignInRefused
from access.selectors import first_sign_in_pending
from gpuplane.listeners.rate_limits import AddressRateLimit, Rate
from gpuplane.pages.page import protected
from storage.clock import database_now

FLOW_SECONDS: Final = 600
SESSION_KEY: Final = "provider"
"""In the session of somebody who came by a provider: its id and the ID token, for the sign-out there."""
LONGEST_CODE: Final = 4096
LONGEST_COOKIE: Final = 3500
"""Browsers drop one of more than 4,096 bytes with its name and attributes."""
REFUSED_CODES: Final = Rate(burst=20.0, a_second=0.1)
ALL_REFUSED_CODES: Final = Rate(burst=200.0, a_second=2.0)
"""Returns that the provider is asked about in vain, by address and in all."""
_COOKIE: Final = "gpuplane_sign_in"
_SALT: Final = "gpuplane.pages.provider_sign_in"

log = structlog.get_logger(__name__)
_refusals = AddressRateLimit(REFUSED_CODES, ALL_REFUSED_CODES)
_refusals_lock = threading.Lock()


@require_GET
def begin(request: HttpRequest, provider_id: str) -> HttpResponse:
    """Send the browser to the provider."""
    client = _client(provider_id)
    back = request.GET.get("next", "")
    try:
        begun = client.begin(redirect_uri=_callback(request, provider_id))
    except ProviderAway as error:
        return refusal(request, str(error), status=503)
    answer = protected(redirect(begun.url))
    flow = {"state": begun.state, "nonce": begun.nonce, "verifier": begun.code_verifier, "next": back}
    cookie = signing.dumps(flow, salt=_SALT, compress=True)
    if len(cookie) > LONGEST_COOKIE:
        cookie = signing.dumps(flow | {"next": ""}, salt=_SALT, compress=True)
    answer.set_cookie(
        _COOKIE,
        cookie,
        max_age=FLOW_SECONDS,
        path=_folder(provider_id),
        httponly=True,
        samesite="Lax",
    )
    return answer


@require_GET
def callback(request: HttpRequest, provider_id: str) -> HttpResponse:
    """The browser comes back from the provider: sign in whom it names."""
    client = _client(provider_id)
    try:
        answer = _signed_in(request, client)
    except SignInRefused as error:
        log.info("oidc.sign_in_refused", provider=provider_id, rule=error.rule, why=str(error))
        answer = refusal(request, str(error), status=403)
    except ProviderAway as error:
        answer = refusal(request, str(error), status=503)
    answer.delete_cookie(_COOKIE, path=_folder(provider_id), samesite="Lax")
    return protected(answer)


def sign_out_address(request: HttpRequest) -> str:
    """Where the browser goes after gpuplane's own sign-out, to sign out at the provider; empty: nowhere."""
    found = request.session.get(SESSION_KEY)
    if not isinstance(found, dict) or not found.get("end"):
        return ""
    try:
        client = client_of(str(found.get("id")))
    except NotFound:
        return ""
    back = request.build_absolute_uri(resolve_url(settings.LOGOUT_REDIRECT_URL))
    return client.sign_out_url(endpoint=str(found["end"]), id_token=str(found.get("id_token")), back=back)


def ways() -> dict[str, Any]:
    """What the page of sign-in offers: providers, and whose password."""
    everybody = settings.GPUPLANE_LOCAL_ACCOUNTS == "all"
    return {
        "providers": settings.GPUPLANE_OIDC,
        "break_glass": "" if everybody else settings.GPUPLANE_BREAK_GLASS_ACCOUNT,
        "first_steps": opens_by_password("admin") and first_sign_in_pending(),
    }


def refusal(request: HttpRequest, why: str, *, status: int) -> HttpResponse:
    """The page of sign-in with the reason."""
    context = ways() | {"why": why[:1].upper() + why[1:] + "."}
    return protected(render(request, "registration/sign_in.html", context, status=status))


def _signed_in(request: HttpRequest, client: OidcClient) -> HttpResponse:
    """Raises SignInRefused, ProviderAway."""
    provider = client.provider
    flow = _flow(request)
    if said := request.GET.get("error", ""):
        log.info("oidc.refused_there", provider=provider.id, error=said[:100])
        raise SignInRefused(f"{provider.label} did not sign you in", rule="refused_there")
    code = request.GET.get("code", "")
    if not 1 <= len(code) <= LONGEST_CODE:
        raise SignInRefused("the address lacks what the provider adds to it: begin again", rule="code")
    address = str(request.META.get("REMOTE_ADDR", ""))[:64]
    with _refusals_lock:
        if not _refusals.take(address):
            raise SignInRefused("too many sign-ins from your address were refused; wait a few minutes", rule="rate")
    is_refused = False
    try:
        identity = client.finish(
            code=code,
            nonce=flow["nonce"],
            code_verifier=flow["verifier"],
            redirect_uri=_callback(request, provider.id),
            now=time.time(),
        )
    except SignInRefused:
        is_refused = True
        raise
    finally:
        if not is_refused:
            with _refusals_lock:
                _refusals.give_back(address)
    now = database_now()
    try:
        user = identity_account(provider=provider, identity=identity, now=now)
    except SignInRefused as error:
        _record_refusal(identity, address, error)
        raise
    login(request, user, backend=settings.AUTHENTICATION_BACKENDS[0])
    request.session.set_expiry(now + timedelta(hours=provider.session_hours))
    request.session[SESSION_KEY] = {
        "id": provider.id,
        "id_token": identity.id_token,
        "end": identity.end_session_endpoint,
    }
    services.signed_in(user=user, now=now, address=address, provider=provider.id)
    safe = flow["next"].startswith("/") and url_has_allowed_host_and_scheme(
        flow["next"], allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return HttpResponseRedirect(flow["next"] if safe else settings.LOGIN_REDIRECT_URL)


def _flow(request: HttpRequest) -> dict[str, str]:
    """What `begin` put into the browser, checked against the address. Raises SignInRefused."""
    state = request.GET.get("state", "")
    try:
        flow: dict[str, str] = signing.loads(request.COOKIES.get(_COOKIE, ""), salt=_SALT, max_age=FLOW_SECONDS)
    except signing.BadSignature as error:
        raise SignInRefused(
            "this sign-in was not begun in this browser, took too long, or is over: begin again", rule="state"
        ) from error
    if not compare_digest(state.encode(), flow["state"].encode()):
        raise SignInRefused("this is the answer to another sign-in: begin again", rule="state")
    return flow


def _record_refusal(identity: Identity, address: str, error: SignInRefused) -> None:
    now = database_now()
    log.warning("oidc.no_account", subject=identity.subject, rule=error.rule)
    services.sign_in_failed(username=identity.username, address=address, count=1, since=now, waits=False, now=now)


def _client(provider_id: str) -> OidcClient:
    try:
        return client_of(provider_id)
    except NotFound as error:
        raise Http404(str(error)) from error


def _callback(request: HttpRequest, provider_id: str) -> str:
    return request.build_absolute_uri(reverse("provider-callback", args=[provider_id]))


def _folder(provider_id: str) -> str:
    return reverse("provider-sign-in", args=[provider_id])
