"""Which pages may open a browser's stream: those of this very origin, by scheme, host and port.

Put around browsers' streams by `gpuplane.asgi`. A browser sends a session's cookie with any socket to the host, whatever page
opens it, and cookies know no ports: without this a page of another program on the same host could read along.

Invariants: the origin is compared whole with the address that was asked for; the host must be one of ours (`ALLOWED_HOSTS`); a
socket without an origin, or with `null`, is refused.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import validate_host

from gpuplane.doors import App, Receive, Scope, Send
from gpuplane.doors.answers import refuse_socket

_SCHEMES = {"ws": "http", "wss": "https"}
_PORTS = {"http": 80, "https": 443}
Origin = tuple[str, str, int]


class SameOrigin:
    """Refuses sockets of other origins with 403."""

    def __init__(self, application: App) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One socket."""
        if same_origin(scope):
            await self._application(scope, receive, send)
            return
        await receive()
        await refuse_socket(scope, send, 403, "a page of another origin may not open this stream")


def same_origin(scope: Scope) -> bool:
    """Whether the one `Origin` of the request is its own address."""
    origins = [value for name, value in scope["headers"] if name == b"origin"]
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(origins) != 1 or len(hosts) != 1:
        return False
    scheme = _SCHEMES.get(scope.get("scheme", "ws"), "")
    asked = _origin(f"{scheme}://{hosts[0].decode('latin-1')}")
    if asked is None or not validate_host(_bracketed(asked[1]), settings.ALLOWED_HOSTS):
        return False
    return _origin(origins[0].decode("latin-1")) == asked


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


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
