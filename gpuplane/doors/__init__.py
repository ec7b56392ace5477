"""The doors: on which addresses gpuplane listens, what each permits, and the cluster's paths without Django.

`plan` reads the settings into doors, `certificates` keeps their TLS fresh. `accepting`, `connections`,
`bounded_http` and `bounded_sockets` bound what a client takes before any application code runs, by the
numbers of `limits`. `cluster` answers
`/extender/` and `/webhooks/`, `agents` lets node agents in, `static` serves files. `gpuplane.asgi`
puts them together; `gpuplane.serve` opens them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

DOOR = "gpuplane.door"
"""Key of the ASGI scope under which the door is found; absent means the main door."""
