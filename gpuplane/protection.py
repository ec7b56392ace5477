"""What every answer of Django carries: the content policy, who may embed it, and over TLS `Secure` cookies and HSTS.

Named in Django's settings; pages, Django's admin, REST and the API's documentation pass through it alike. A request came over TLS
where the door speaks it, or where a trusted proxy says so (`gpuplane.doors.proxies`).

Invariants: nothing runs or loads but files of our own, so no answer may hold a script or style of its own text; cookies set over
TLS never travel without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase

from gpuplane.doors.plan import is_loopback

CONTENT_POLICY: Final = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'none'"
)


class ProtectionMiddleware:
    """Adds the headers where an answer has none of its own."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Pass on, and add."""
        response = self._get_response(request)
        response.headers.setdefault("Content-Security-Policy", CONTENT_POLICY)
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        if request.is_secure():
            for morsel in response.cookies.values():
                morsel["secure"] = True
            seconds = settings.GPUPLANE_HSTS_SECONDS
            if seconds and not is_loopback(_host(request)):
                response.headers.setdefault("Strict-Transport-Security", f"max-age={seconds}")
        return response


def _host(request: HttpRequest) -> str:
    """The host asked for, without its port. A browser keeps HSTS by host, so on loopback it would shut out every other program there."""
    host = request.headers.get("Host", "")
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
