"""The listeners: on which addresses gpuplane listens, what each permits, and the cluster's paths without Django.

`plan` reads the settings into listeners, `certificates` keeps their TLS fresh. `accepting`, `connections`,
`bounded_http` and `bounded_sockets` bound what a client takes before any application code runs, by the numbers of
`limits`. `cluster` answers `/extender/` and `/webhooks/`, `agents` and `runners` serve the programs on nodes, `static`
serves files. `gpuplane.application` puts them together; `gpuplane.serve` opens them. Invariants:
- `/extender/` is never reachable from outside this machine without a credential.
- Connections, heads, bodies and idle time are bounded before a request is handled.
- Slow work delays only work of its own kind (`threads`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LISTENER = "gpuplane.listener"
"""Key of the ASGI scope: the `ListenAddress` that took the request. Absent means the main one."""


def header(scope: Scope, name: bytes) -> bytes:
    """The first header of this lower-case name; empty without one."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""


def client_address(scope: Scope) -> str:
    """The peer's IP address; empty where the server does not know it."""
    client = scope.get("client")
    return str(client[0]) if client else ""
