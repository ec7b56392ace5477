"""Whose word counts on where a request comes from: the proxies named by FORWARDED_ALLOW_IPS, and nobody else.

Put around pages, REST and browsers' streams by `gpuplane.asgi`. Invariants: from anybody else `X-Forwarded-For` and
`X-Forwarded-Proto` change nothing, loopback included: a port-forward, and whatever runs in the same pod, come from there.
The address is the last in `X-Forwarded-For` that is no trusted proxy itself; what stands before it may be made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from gpuplane.doors import App


def behind_proxies(application: App, trusted: Sequence[str]) -> App:
    """The application, told client and scheme as trusted proxies tell them. `trusted`: addresses and networks."""
    if not trusted:
        return application
    return cast("App", ProxyHeadersMiddleware(cast("Any", application), list(trusted)))
