"""Lets only pages of the same origin open a browser's WebSocket.

Put around browsers' sockets by `gpuplane.application`. A browser sends a session's cookie with any socket to the host,
whatever page opens it, and cookies are shared by all ports of a host.

Invariants: scheme, host and port of the origin equal those of the request; the host is one of `ALLOWED_HOSTS`; a socket
without an origin, or with `null`, is refused.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import validate_host

from gpuplane.listeners import App, Receive, Scope, Send
from gpuplane.listeners.answers import refuse_socket

_SCHEMES = {"ws": "http", "wss": "https"}
_PORTS = {"http": 80, "https": 443}
Origin = tuple[str, str, int]


class SameOrigin:
    """Refuses sockets of other origins with 403."""

    def __init__(self, application: App) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one socket."""
        if same_origin(scope):
            await self._application(scope, receive, send)
        else:
            await receive()
            await refuse_socket(scope, send, 403, "a page of another origin may not open this stream")


def same_origin(scope: Scope) -> bool:
    """Whether the request has one `Origin`, which equals its own address."""
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(origins) != 1 or len(hosts) != 1:
        return False
    scheme = _SCHEMES.get(scope.get("scheme", "ws"), "")
    requested = _origin(f"{scheme}://{hosts[0].decode('latin-1')}")
    if requested is None:
        return False
    host = f"[{requested[1]}]" if ":" in requested[1] else requested[1]
    return validate_host(host, settings.ALLOWED_HOSTS) and _origin(origins[0].decode("latin-1")) == requested


def _origin(text: str) -> Origin | None:
    """(scheme, host, port) of `scheme://host[:port]`; None for anything else."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    plain = not (parts.path or parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in _PORTS or not parts.hostname or not plain:
        return None
    return parts.scheme, parts.hostname.rstrip("."), port or _PORTS[parts.scheme]
