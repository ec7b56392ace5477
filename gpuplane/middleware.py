"""Django middleware of every request, but for `gpuplane.operations`.

Invariants:
- Queries of Django's requests wait while a filter or bind runs in this process.
- No selector, filter or search gets a NUL from a path or query; bodies are checked by `gpuplane.rest.codec` and forms.
- Fields of forms are UTF-8, so they hold no lone surrogates.
- Browsers load and run only files from this origin, so no response may hold an inline script or style.
- Cookies set over TLS are never sent without it. A request came over TLS where the listener speaks it, or where a
  trusted proxy says so (`gpuplane.listeners.proxies`).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from typing import Final

from django.conf import settings
from django.contrib.admin.options import TO_FIELD_VAR
from django.core.exceptions import SuspiciousOperation
from django.db import connection
from django.http import HttpRequest, HttpResponseBase

from gpuplane.listeners.loopback import is_loopback_host
from storage.precedence import yields_to_first

View = Callable[[HttpRequest], HttpResponseBase]

CONTENT_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'none'"
)
NUL: Final = "\x00"
ENCODED_NUL: Final = "%00"
FORMS: Final = frozenset({"multipart/form-data", "application/x-www-form-urlencoded"})


def precedence(get_response: View) -> View:
    """Give filter and bind precedence; the view runs in the same thread, with the same connection."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        with connection.execute_wrapper(yields_to_first):
            return get_response(request)

    return answer


def readable_requests(get_response: View) -> View:
    """Answer 400 to a request that would be a 500.

    That is: a NUL in the URL, an empty `_to_field` for Django's admin, a form in another charset than UTF-8.
    """

    def answer(request: HttpRequest) -> HttpResponseBase:
        if request.content_type in FORMS and not _is_utf8(request.content_params or {}):
            raise SuspiciousOperation("the form is not in UTF-8")
        query = request.META.get("QUERY_STRING", "")
        if NUL in request.path_info or ENCODED_NUL in query or NUL in query:
            raise SuspiciousOperation("the address holds a NUL character")
        if request.path_info.startswith("/admin/") and request.GET.get(TO_FIELD_VAR) == "":
            raise SuspiciousOperation("the field to refer by has no name")
        return get_response(request)

    return answer


def _is_utf8(params: Mapping[str, str]) -> bool:
    """Whether the parameters of a media type name UTF-8, or no charset."""
    try:
        return codecs.lookup(params.get("charset", "utf-8")).name == "utf-8"
    except (LookupError, ValueError):
        return False


def protection(get_response: View) -> View:
    """Add security headers that a response does not set itself, and over TLS `Secure` cookies and HSTS."""

    def answer(request: HttpRequest) -> HttpResponseBase:
        response = get_response(request)
        response.headers.setdefault("Content-Security-Policy", CONTENT_POLICY)
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        if request.is_secure():
            for morsel in response.cookies.values():
                morsel["secure"] = True
            seconds = settings.GPUPLANE_HSTS_SECONDS
            # Browsers keep HSTS by host: on loopback it would shut out every other program there.
            if seconds and not is_loopback_host(request.headers.get("Host", "")):
                response.headers.setdefault("Strict-Transport-Security", f"max-age={seconds}")
        return response

    return answer
