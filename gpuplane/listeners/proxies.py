"""Takes client address and scheme from the proxies named by FORWARDED_ALLOW_IPS, and from no other peer.

Put around pages, REST and browsers' sockets by `gpuplane.application`. Invariants: `X-Forwarded-For` and
`X-Forwarded-Proto` of other peers are ignored, loopback included: port-forwards and other containers of the pod come
from there. The address is the last in `X-Forwarded-For` that is no trusted proxy itself; those before it may be forged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from gpuplane.listeners import App


def behind_proxies(application: App, trusted: Sequence[str]) -> App:
    """The application, its scopes with client and scheme from trusted proxies. `trusted`: addresses and networks."""
    if not trusted:
        return application
    return cast("App", ProxyHeadersMiddleware(cast("Any", application), list(trusted)))
