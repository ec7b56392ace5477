"""Protects the listener that is plain HTTP on loopback from pages in a browser on the same machine.

Called by `cluster` for that listener alone, which asks for no credential. Invariants: a request that a page could have
sent is refused before its body is read. Pages send `Origin` with every POST to another origin; a name that was made to
resolve to loopback (DNS rebinding) is in `Host`; and without a CORS preflight, which is not answered here, a page
cannot send `application/json`.
"""

from __future__ import annotations

from functools import lru_cache

from django.http.request import split_domain_port

from gpuplane.listeners import Scope, header
from gpuplane.listeners.answers import Refused
from gpuplane.listeners.plan import is_loopback

_JSON = b"application/json"


def check_local(scope: Scope) -> None:
    """Raises Refused: 403 for an `Origin`, and for a `Host` that is not loopback; 415 for anything but JSON."""
    if any(name == b"origin" for name, _ in scope["headers"]):
        raise Refused(403, "this address is for programs of this machine, not for pages in a browser")
    if not is_loopback_host(header(scope, b"host").decode("latin-1")):
        raise Refused(403, "the header Host must name this machine's loopback address")
    content_type = header(scope, b"content-type")
    if content_type != _JSON and content_type.partition(b";")[0].strip().lower() != _JSON:
        raise Refused(415, "only application/json is understood here")


@lru_cache(maxsize=64)
def is_loopback_host(host: str) -> bool:
    """Whether a Host header names loopback: `localhost`, an address of 127.0.0.0/8 or `[::1]`, with any port or none.

    The port may have been forwarded, and no name that resolves to loopback changes it.
    """
    return is_loopback(split_domain_port(host)[0].strip("[]"))
