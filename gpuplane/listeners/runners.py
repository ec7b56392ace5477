"""Authenticates runners: `WS /ws/runners/<node>/`.

Called by `gpuplane.application`. Checks the token, which is that of the node's agent, and the node's name, then hands
over to `inference.runner_socket`. Only the main listener permits this path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from gpuplane.listeners import Receive, Scope, Send
from gpuplane.listeners.agents import NODE, node_in
from gpuplane.listeners.answers import Refused, refuse_socket
from gpuplane.listeners.bearer import Bearer
from gpuplane.listeners.node_sockets import Sessions, serve_node
from inference.runner_socket import runner_socket

SOCKET: Final = re.compile(f"/ws/runners/{NODE}/")


@dataclass(frozen=True, slots=True)
class Runners:
    """The endpoint."""

    bearer: Bearer
    sessions: Sessions = field(default_factory=Sessions)

    async def socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a WebSocket scope whose path begins with /ws/runners/."""
        try:
            node = node_in(SOCKET, scope)
            actor = await self.bearer.agent(scope, node=node)
        except Refused as refused:
            await receive()
            await refuse_socket(scope, send, refused.status, refused.detail, refused.headers)
            return
        await serve_node(runner_socket, self.sessions, scope, receive, send, node=node, actor=actor)
